"""Mistakes in the norms."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
    *of(
        "rms_norm",
        (
            "rms_norm",
            "inverse_rms_N /= x_ND.shape[1]",
            "inverse_rms_N /= 1",
            "the squares are summed where their mean is needed",
        ),
        (
            "rms_norm",
            'np.einsum("nd,nd->n", x_ND, x_ND, out=inverse_rms_N)',
            "inverse_rms_N[...] = (x_ND**2).sum() / len(x_ND)",
            "the wrong axis: the mean is over all tokens together, and each token (row) has its "
            "own",
        ),
        (
            "rms_norm",
            "inverse_rms_N += epsilon\n        np.sqrt(inverse_rms_N, out=inverse_rms_N)",
            "np.sqrt(inverse_rms_N, out=inverse_rms_N)\n        inverse_rms_N += epsilon",
            "epsilon is added behind the square root, and belongs under it",
        ),
        (
            "rms_norm",
            "np.sqrt(inverse_rms_N, out=inverse_rms_N)",
            "pass",
            "the square root is missing: x is divided by the mean square",
        ),
        (
            "rms_norm",
            "np.reciprocal(inverse_rms_N, out=inverse_rms_N)",
            "pass",
            "x is multiplied by the root mean square, and must be divided by it",
        ),
        ("rms_norm", "out_ND *= weight_D", "out_ND *= 1", "the weight is missing"),
        (
            "rms_norm",
            'np.einsum("nd,nd->n", x_ND, x_ND',
            "x_ND = x_ND - x_ND.mean(axis=1, keepdims=True)\n"
            '        np.einsum("nd,nd->n", x_ND, x_ND',
            "this is LayerNorm: RMSNorm takes no mean off",
        ),
        (
            "add_rms_norm",
            "np.multiply(delta_ND, step_size,",
            "np.multiply(delta_ND, 1.0,",
            "the Euler step leaves its step size out: x + h · delta",
        ),
        (
            "rms_norm_backward",
            "gradient -= unit",
            "gradient += unit",
            "the term u · mean(g · u) has the wrong sign: it is taken off",
        ),
        (
            "rms_norm_backward",
            "unit *= mean[:, None]",
            "unit *= 0",
            "the term u · mean(g · u) is missing: x changes its own root mean square, too",
        ),
        (
            "rms_norm_backward",
            "gradient = dout_ND * weight_D",
            "gradient = dout_ND * 1.0",
            "the weight is missing from dx: it begins with g = w · dout",
        ),
        (
            "rms_norm_backward",
            "unit *= mean[:, None]",
            "unit *= (gradient * unit).mean(axis=0)",
            "the wrong axis: mean(g · u) is over dim (axis 1), one number for each token",
        ),
        (
            "rms_norm_backward",
            "mean /= x_ND.shape[1]",
            "mean /= 1",
            "g · u is summed where its mean is needed",
        ),
        (
            "rms_norm_backward",
            "gradient *= inverse_rms_N[:, None]",
            "gradient *= 1",
            "the last division by r is missing from dx",
        ),
        (
            "rms_norm_backward",
            'np.einsum("nd,nd->d", dout_ND, unit)',
            'np.einsum("nd,nd->d", dout_ND, x_ND)',
            "the weight's gradient takes x as it is, and must take the normed x / r",
        ),
        (
            "rms_norm_backward",
            'np.einsum("nd,nd->d", dout_ND, unit)',
            "(dout_ND * unit).mean(axis=0)",
            "the weight's gradient is a mean over tokens, and must be their sum",
        ),
        (
            "rms_norm_backward",
            "gradient, add_to_dx",
            "gradient, False",
            "dx is overwritten where `add_to_dx` asks to add: the residual stream has a gradient "
            "of its own",
        ),
    ),
    *of(
        "rms_norm",
        ("rms_norm", "inverse_rms_N += epsilon", "inverse_rms_N += 0", "epsilon is missing"),
        (
            "rms_norm_backward",
            "unit), accumulate",
            "unit), False",
            "the weight's gradient overwrites where `accumulate` asks it to add",
        ),
        unseen=True,
    ),
    *of(
        "layer_norm",
        (
            "layer_norm",
            "np.subtract(x, x.mean(axis=1, keepdims=True), out=out)",
            "np.subtract(x, 0, out=out)",
            "the mean is not taken off: this is RMSNorm",
        ),
        (
            "layer_norm",
            "x.mean(axis=1, keepdims=True)",
            "x.mean(axis=0, keepdims=True)",
            "the wrong axis: the mean is over dim (axis 1), one number for each token",
        ),
        ("layer_norm", "out += bias", "out += 0", "the bias is missing"),
        (
            "add_layer_norm",
            "total_ND *= step_size",
            "total_ND += (step_size - 1) * delta_ND",
            "the step's bias is not scaled: h · (delta + bias)",
        ),
        (
            "layer_norm_backward",
            "unit = (x - x.mean(axis=1, keepdims=True))",
            "unit = (x - 0)",
            "u is x / r, and must be (x − m) / r",
        ),
        (
            "layer_norm_backward",
            "gradient -= gradient.mean(axis=1, keepdims=True)",
            "gradient -= 0",
            "the term mean(g) is missing from dx: x changes its own mean, too",
        ),
        (
            "layer_norm_backward",
            "gradient -= unit * slope[:, None]",
            "gradient += unit * slope[:, None]",
            "the term u · mean(g · u) has the wrong sign: it is taken off",
        ),
        (
            "layer_norm_backward",
            "gradient = dout_ND * weight",
            "gradient = dout_ND * 1.0",
            "the weight is missing from dx: it begins with g = w · dout",
        ),
        (
            "layer_norm_backward",
            "keepdims=True)) * inverse_rms[:, None]",
            "keepdims=True)) * inverse_rms[:, None] ** 2",
            "x − m is divided by r twice",
        ),
        (
            "layer_norm_backward",
            'store(dweight_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)\n'
            "        store(dbias_D,",
            'store(dbias_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)\n'
            "        store(dweight_D,",
            "the gradients of weight and bias are swapped",
        ),
    ),
]
