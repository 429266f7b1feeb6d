"""Mistakes in losses and their weights."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
    *of(
        "cross_entropy",
        (
            "cross_entropy",
            "logprobs_R[targets_R < 0] = 0",
            "pass",
            "a target of −1 has no loss: its log-probability is 0",
        ),
        (
            "cross_entropy",
            "logprobs_R[targets_R < 0] = 0",
            "logprobs_R[targets_R < 0] = (logits_RV[:, -1] - lse_R)[targets_R < 0]",
            "a target of −1 is read as the last token; it has no loss: its log-probability is 0",
        ),
        (
            "cross_entropy_backward",
            "logits_RV *= weights[:, None]",
            "logits_RV *= -weights[:, None]",
            "the gradient has the wrong sign: softmax − one-hot",
        ),
        (
            "cross_entropy_backward",
            "np.maximum(targets_R, 0)] -= 1",
            "(np.maximum(targets_R, 0) + 1) % logits_RV.shape[1]] -= 1",
            "the one-hot is off by one: 1 is taken off at the target itself",
        ),
        (
            "cross_entropy_backward",
            "] -= 1",
            "] -= 0",
            "the one-hot of the target is missing: softmax − one-hot",
        ),
        (
            "cross_entropy_backward",
            "np.where(targets_R < 0, 0, weights_R)",
            "np.where(False, 0, weights_R)",
            "a row whose target is −1 must have no gradient",
        ),
        (
            "cross_entropy_backward",
            "np.maximum(targets_R, 0)] -= 1\n        logits_RV *= weights[:, None]",
            "targets_R] -= 1\n        logits_RV *= weights_R[:, None]",
            "a target of −1 is read as the last token; its row must have no gradient",
        ),
        (
            "cross_entropy_backward",
            "logits_RV *= weights[:, None]",
            "logits_RV *= (targets_R >= 0)[:, None]",
            "the rows' weights are missing",
        ),
    ),
    *of(
        "cross_entropy",
        (
            "cross_entropy",
            "top = logits_RV[part].max(axis=1)",
            "top = np.zeros(len(logits_RV[part]))",
            "the exponential of a large logit overflows: take the row's largest logit off first",
        ),
        unseen=True,
    ),
    *of(
        "loss_weights",
        (
            "loss_weights",
            "(targets_RTK >= 0) *",
            "(targets_RTK >= -1) *",
            "a target of −1 has no loss: its weight is 0",
        ),
        (
            "loss_weights",
            "importance_RT[..., None]",
            "np.ones_like(importance_RT)[..., None]",
            "the importance of the targets is left out",
        ),
        (
            "loss_weights",
            "totals_K = importance_RTK.sum(axis=(0, 1))",
            "totals_K = (targets_RTK >= 0).sum(axis=(0, 1)).astype(float)",
            "the mean divides by the number of targets, and must by the sum of their importance",
        ),
        (
            "loss_weights",
            "shares_K / max(shares_K.sum(), 1e-30)",
            "shares_K / 1",
            "a head without targets must leave its share to the others: the weights sum to 1",
        ),
        (
            "loss_weights",
            "(shares_K / np.where(totals_K > 0, totals_K, 1.0))",
            "(shares_K / max(totals_K.sum(), 1))",
            "all heads are divided by one sum; each head has a mean over its own targets",
        ),
        (
            "loss_weights",
            "mtp_weights, 0.0)",
            "1.0, 0.0)",
            "the heads' shares, mtp_weights, are left out",
        ),
    ),
    *of(
        "preference",
        (
            "preference",
            "pull = 1 - smoothing",
            "pull = -1 + smoothing + 2 * np.exp(-np.logaddexp(0, -z))",
            "the weights have the wrong sign: they raise the chosen reply",
        ),
        (
            "preference",
            "np.exp(-np.logaddexp(0, -z))",
            "np.exp(-np.logaddexp(0, z))",
            "the sigmoid is that of −z: the pull is 1 − ε − σ(z)",
        ),
        (
            "preference",
            "pull = 1 - smoothing",
            "pull = 1",
            "the smoothing ε is missing from the weights",
        ),
        (
            "preference",
            "share * scales[0] * pull",
            "scales[0] * pull",
            "the pair's share is missing from the chosen reply's weights",
        ),
        (
            "preference",
            "losses_2 += share * loss",
            "losses_2 += loss",
            "the pair's share is missing from the loss",
        ),
        (
            "preference",
            "-share * scales[1] * pull",
            "0 * pull",
            "the rejected reply has no weights, and must be lowered",
        ),
        (
            "preference",
            "-share * scales[1] * pull",
            "share * scales[1] * pull",
            "the rejected reply's weights have the wrong sign: they lower it",
        ),
        (
            "preference",
            "share * scales[0] * pull\n            weights_RTK[row, middle:last, 0] = "
            "-share * scales[1]",
            "share * scales[1] * pull\n            weights_RTK[row, middle:last, 0] = "
            "-share * scales[0]",
            "the scales of chosen and rejected are swapped",
        ),
        (
            "preference",
            "z = chosen - rejected",
            "z = rejected - chosen",
            "chosen and rejected are swapped in z",
        ),
    ),
    *of(
        "preference",
        (
            "preference",
            "(sums - pairs.reference_RP2[row, pair])",
            "np.array(sums)",
            "the reference's log-probability is not taken off",
        ),
        (
            "preference",
            "z = chosen - rejected - margin",
            "z = chosen - rejected",
            "the margin is missing",
        ),
        unseen=True,
    ),
]
