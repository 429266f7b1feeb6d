"""Mistakes in optimizers."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
    *of(
        "adamw",
        (
            "adamw_run",
            "learning_rate / (1 - beta1**step)",
            "learning_rate / 1",
            "the bias correction of the first moment is missing: m̂ = m / (1 − β₁ᵗ)",
        ),
        (
            "adamw_run",
            "second_moment / (1 - beta2**step)",
            "second_moment / 1",
            "the bias correction of the second moment is missing: v̂ = v / (1 − β₂ᵗ)",
        ),
        ("adamw_run", "denominator += epsilon", "denominator += 0", "epsilon is missing"),
        (
            "adamw_run",
            "second_moment / (1 - beta2**step), out=gradient)\n        denominator += epsilon",
            "second_moment / (1 - beta2**step) + epsilon, out=gradient)",
            "epsilon is under the square root, and must be added behind it",
        ),
        (
            "adamw_run",
            "np.sqrt(second_moment",
            "np.positive(second_moment",
            "the square root of the second moment is missing",
        ),
        (
            "adamw_run",
            "gradient *= gradient",
            "gradient *= 1",
            "the second moment takes g, and must take g²",
        ),
        (
            "adamw_run",
            "parameters -= update",
            "parameters += update",
            "the update has the wrong sign: it goes against the gradient",
        ),
        (
            "adamw_run",
            "beta1, beta2, epsilon",
            "beta2, beta1, epsilon",
            "β₁ and β₂ are swapped",
        ),
        (
            "adamw_run",
            "gradients * gradient_scale",
            "gradients * 1.0",
            "the gradient is not multiplied by its scale, which clips its norm",
        ),
        ("adamw_run", "if run.decays:", "if False:", "the weight decay is missing"),
        (
            "adamw_run",
            "if run.decays:",
            "if True:",
            "the weight decays although `run.decays` is False",
        ),
        (
            "adamw_run",
            "1 - learning_rate * weight_decay",
            "1 - weight_decay",
            "the weight decay is not multiplied by the learning rate",
        ),
        (
            "adamw_run",
            "gradient = gradients * gradient_scale",
            "gradient = gradients * gradient_scale + weight_decay * run.decays * parameters\n"
            "        weight_decay = 0.0",
            "the weight decay is added to the gradient (Adam with L2), and must act on the "
            "parameters themselves",
        ),
        (
            "adamw_run",
            "learning_rate *= run.rate",
            "pass",
            "the learning rate is not multiplied by `run.rate`",
        ),
    ),
    *of(
        "muon",
        (
            "orthogonalize",
            "x_RK / (np.linalg.norm(x_RK) + 1e-20)",
            "x_RK / 1.0",
            "x is not divided by its norm first, so the polynomials diverge",
        ),
        ("orthogonalize", "x *= a", "x *= 1", "the factor a is missing: a X + b (X Xᵀ) X + …"),
        (
            "orthogonalize",
            "square *= c",
            "square *= 0",
            "the term c (X Xᵀ)² X is missing",
        ),
        (
            "orthogonalize",
            "square += b * gram",
            "square += c * gram",
            "b and c are confused: b is the factor of X Xᵀ, c that of its square",
        ),
        (
            "orthogonalize",
            "for a, b, c in polynomials:",
            "for a, b, c in polynomials[:1]:",
            "only the first polynomial is applied",
        ),
    ),
]
