"""Mistakes in SwiGLU and GELU."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
    *of(
        "swiglu",
        (
            "swiglu",
            "out_NF *= gate_NF",
            "out_NF *= 1",
            "the gate is σ(gate), and must be silu(gate) = gate · σ(gate)",
        ),
        (
            "swiglu",
            "sigmoid(gate_NF, out_NF)",
            "sigmoid(up_NF, out_NF)",
            "gate and up are swapped: silu(gate) · up",
        ),
        ("swiglu", "out_NF *= up_NF", "out_NF *= 1", "the factor up is missing"),
        (
            "swiglu_backward",
            "slope = 1 - sigma",
            "slope = sigma - 1",
            "the term silu(gate) (1 − σ) has the wrong sign in dgate",
        ),
        (
            "swiglu_backward",
            "slope *= silu",
            "slope *= 0",
            "the slope of σ is missing from dgate: σ + silu(gate) (1 − σ)",
        ),
        ("swiglu_backward", "slope *= up_NF", "slope *= 1", "the factor up is missing from dgate"),
        (
            "swiglu_backward",
            "dup = dout_NF * silu",
            "dup = dout_NF * sigma",
            "dup takes σ(gate), and must take silu(gate)",
        ),
        (
            "swiglu_backward",
            "dgate_NF[...] = slope\n        dup_NF[...] = dup",
            "dgate_NF[...] = dup\n        dup_NF[...] = slope",
            "the gradients of gate and up are swapped",
        ),
    ),
    *of(
        "gelu",
        (
            "gelu",
            "sigmoid(twice_gelu_angle(x_NF), out_NF)",
            "out_NF[...] = (1 + np.vectorize(math.erf)(x_NF / math.sqrt(2))) / 2",
            "this is the form with the error function; here GELU has the form with tanh",
        ),
        (
            "gelu",
            "twice_gelu_angle(x_NF)",
            "1.702 * x_NF",
            "this is x σ(1.702 x), an approximation; here GELU has the form with tanh",
        ),
        (
            "twice_gelu_angle",
            "angle *= CUBE",
            "angle *= 0",
            "the cubic term 0.044715 x³ is missing",
        ),
        (
            "gelu_backward",
            "dx_NF[...] = slope",
            "dx_NF[...] = -slope",
            "the gradient has the wrong sign",
        ),
        (
            "gelu_backward",
            "slope *= 2 * ROOT * x_NF * (1 - sigma)",
            "slope *= 0",
            "the slope of σ is missing: σ + x σ (1 − σ) · 2u′",
        ),
        (
            "gelu_backward",
            "slope *= 3 * CUBE",
            "slope *= CUBE",
            "the derivative of x³ is 3 x²: the 3 is missing",
        ),
    ),
]
