"""The gradient checks catch the mistakes that people make, planted one at a time in each op.

Each class below is the reference with one mistake: a sign, a swap or transpose, a term left out.
`check_ops` has to fail, and to blame the right op. Mistakes that show only in a whole model, such
as sums that are overwritten, have to fail in `check_model`.
"""

import math

import numpy as np
import pytest

from nanoeuler.backend.records import AttentionArrays
from nanoeuler.backend.reference import ReferenceBackend, sigmoid, store, twice_gelu_angle
from nanoeuler.model.checks.model_gradients import CASES, check_model
from nanoeuler.model.checks.op_gradients import check_ops

PLANTED = []


def planted(op):
    """Register the class below as a mistake in `op`."""

    def note(mistaken):
        PLANTED.append((op, mistaken))
        return mistaken

    return note


# ---- the ops of GPT-2


@planted("bias")
class BiasSign(ReferenceBackend):
    def bias_backward(self, dout_NO, dbias_O, *, accumulate, scale=1):
        super().bias_backward(dout_NO, dbias_O, accumulate=accumulate, scale=-scale)


@planted("bias")
class BiasGradientWithoutScale(ReferenceBackend):
    def bias_backward(self, dout_NO, dbias_O, *, accumulate, scale=1):
        super().bias_backward(dout_NO, dbias_O, accumulate=accumulate)


@planted("bias")
class BiasGradientNotAccumulated(ReferenceBackend):
    def bias_backward(self, dout_NO, dbias_O, *, accumulate, scale=1):
        super().bias_backward(dout_NO, dbias_O, accumulate=False, scale=scale)


@planted("bias")
class BiasGradientAveraged(ReferenceBackend):
    def bias_backward(self, dout_NO, dbias_O, *, accumulate, scale=1):
        store(dbias_O, scale * dout_NO.mean(axis=0), accumulate)


@planted("embedding_at")
class PositionsSign(ReferenceBackend):
    def embedding_at(self, ids_N, table_VD, positions_N, position_table_PD, out_ND):
        super().embedding_at(ids_N, table_VD, positions_N, -position_table_PD, out_ND)


@planted("embedding_at")
class PositionsNotAdded(ReferenceBackend):
    def embedding_at(self, ids_N, table_VD, positions_N, position_table_PD, out_ND):
        self.embedding(ids_N, table_VD, out_ND)


@planted("embedding_at")
class PositionsOfTokens(ReferenceBackend):
    def embedding_at(self, ids_N, table_VD, positions_N, position_table_PD, out_ND):
        super().embedding_at(ids_N, table_VD, ids_N, position_table_PD, out_ND)


class MistakenLayerNorm(ReferenceBackend):
    """The backward pass with `change` made to its record, its gradients, or its terms."""

    def layer_norm_backward(
        self, dout, norm, dx, dweight, dbias, *, add_to_dx, accumulate, out_ND=None
    ):
        options = {"add_to_dx": add_to_dx, "accumulate": accumulate, "out_ND": out_ND}
        super().layer_norm_backward(*self.change(dout, norm, dx, dweight, dbias), **options)


@planted("add_layer_norm")
class LayerNormMeanNotTakenOff(MistakenLayerNorm):
    def layer_norm_backward(
        self, dout, norm, dx, dweight, dbias, *, add_to_dx, accumulate, out_ND=None
    ):
        saved = norm.x_ND, norm.weight_D, norm.inverse_rms_N, dx, dweight
        super().rms_norm_backward(
            dout, *saved, add_to_dx=add_to_dx, accumulate=accumulate, out_ND=out_ND
        )
        store(dbias, dout.sum(axis=0), accumulate)


@planted("add_layer_norm")
class LayerNormWeightMissing(MistakenLayerNorm):
    def change(self, dout, norm, *gradients):
        return dout, norm._replace(weight_D=np.ones_like(norm.weight_D)), *gradients


@planted("add_layer_norm")
class LayerNormStatisticSquared(MistakenLayerNorm):
    def change(self, dout, norm, *gradients):
        return dout, norm._replace(inverse_rms_N=norm.inverse_rms_N**2), *gradients


@planted("add_layer_norm")
class LayerNormGradientsSwapped(MistakenLayerNorm):
    def change(self, dout, norm, dx, dweight, dbias):
        return dout, norm, dx, dbias, dweight


@planted("add_layer_norm")
class LayerNormStepBiasNotScaled(ReferenceBackend):
    def add_layer_norm(self, x_ND, delta_ND, bias_D, step_size, norm):
        super().add_layer_norm(x_ND, delta_ND, bias_D / step_size, step_size, norm)


@planted("gelu")
class GeluSign(ReferenceBackend):
    def gelu_backward(self, dout_NF, x_NF, dx_NF, out_NF=None):
        super().gelu_backward(dout_NF, x_NF, dx_NF, out_NF)
        dx_NF *= -1


@planted("gelu")
class GeluOfTheErrorFunction(ReferenceBackend):
    """The other form: its derivative differs by 1e-3."""

    def gelu(self, x_NF, out_NF):
        out_NF[...] = x_NF * (1 + np.vectorize(math.erf)(x_NF / math.sqrt(2))) / 2


@planted("gelu")
class GeluSlopeOfSigmoidAlone(ReferenceBackend):
    def gelu_backward(self, dout_NF, x_NF, dx_NF, out_NF=None):
        if out_NF is not None:
            self.gelu(x_NF, out_NF)
        dx_NF[...] = dout_NF * sigmoid(twice_gelu_angle(x_NF), np.empty_like(x_NF))


# ---- linear


@planted("linear")
class LinearInputSign(ReferenceBackend):
    def linear_backward_input(self, dout_NO, weight_OI, dx_NI, scale=1.0):
        dx_NI[...] = -scale * (dout_NO @ weight_OI)


@planted("linear")
class LinearWeightTransposed(ReferenceBackend):
    def linear_backward_weight(self, dout_NO, x_NI, dweight_OI, *, accumulate, scale=1.0):
        store(dweight_OI, scale * (x_NI.T @ dout_NO).reshape(dweight_OI.shape), accumulate)


@planted("linear")
class LinearInputTransposed(ReferenceBackend):
    def linear_backward_input(self, dout_NO, weight_OI, dx_NI, scale=1.0):
        dx_NI[...] = scale * (dout_NO @ weight_OI.T.reshape(weight_OI.shape))


@planted("linear")
class LinearScaleMissing(ReferenceBackend):
    def linear_backward_weight(self, dout_NO, x_NI, dweight_OI, *, accumulate, scale=1.0):
        super().linear_backward_weight(dout_NO, x_NI, dweight_OI, accumulate=accumulate)


@planted("linear")
class LinearLastRowMissing(ReferenceBackend):
    def linear_backward_weight(self, dout_NO, x_NI, dweight_OI, *, accumulate, scale=1.0):
        super().linear_backward_weight(
            dout_NO[:-1], x_NI[:-1], dweight_OI, accumulate=accumulate, scale=scale
        )


@planted("linear")
class LinearNotAccumulated(ReferenceBackend):
    def linear_backward_weight(self, dout_NO, x_NI, dweight_OI, *, accumulate, scale=1.0):
        super().linear_backward_weight(dout_NO, x_NI, dweight_OI, accumulate=False, scale=scale)


# ---- embedding


@planted("embedding")
class EmbeddingSign(ReferenceBackend):
    def embedding_backward(self, ids_N, dout_ND, dtable_VD, *, accumulate):
        super().embedding_backward(ids_N, -dout_ND, dtable_VD, accumulate=accumulate)


@planted("embedding")
class EmbeddingRowsSwapped(ReferenceBackend):
    def embedding_backward(self, ids_N, dout_ND, dtable_VD, *, accumulate):
        super().embedding_backward(ids_N[::-1], dout_ND, dtable_VD, accumulate=accumulate)


@planted("embedding")
class EmbeddingRepeatsMissing(ReferenceBackend):
    """Of a repeated id only one row counts, as with NumPy's `table[ids] += dout`."""

    def embedding_backward(self, ids_N, dout_ND, dtable_VD, *, accumulate):
        if not accumulate:
            dtable_VD[...] = 0
        dtable_VD[ids_N] += dout_ND


# ---- RMSNorm


class NormGradient(ReferenceBackend):
    """The backward pass of RMSNorm, written again in methods that a mistake can replace."""

    def rms_norm_backward(
        self,
        dout_ND,
        x_ND,
        weight_D,
        inverse_rms_N,
        dx_ND,
        dweight_D,
        *,
        add_to_dx,
        accumulate,
        out_ND=None,
    ):
        r = inverse_rms_N[:, None]
        unit = x_ND * r
        store(dweight_D, self.weight_gradient(dout_ND, x_ND, unit), accumulate)
        store(dx_ND, self.input_gradient(dout_ND, unit, weight_D, r), add_to_dx)
        if out_ND is not None:
            out_ND[...] = unit * weight_D

    def weight_gradient(self, dout, x, unit):
        return (dout * unit).sum(axis=0)

    def input_gradient(self, dout, unit, weight, r):
        g = dout * weight
        return (g - unit * (g * unit).mean(axis=1, keepdims=True)) * r


@planted("add_rms_norm")
class NormSign(NormGradient):
    def input_gradient(self, dout, unit, weight, r):
        g = dout * weight
        return (g + unit * (g * unit).mean(axis=1, keepdims=True)) * r


@planted("add_rms_norm")
class NormProjectionMissing(NormGradient):
    def input_gradient(self, dout, unit, weight, r):
        return dout * weight * r


@planted("add_rms_norm")
class NormWeightMissing(NormGradient):
    def input_gradient(self, dout, unit, weight, r):
        return super().input_gradient(dout, unit, 1.0, r)


@planted("add_rms_norm")
class NormAxesSwapped(NormGradient):
    def input_gradient(self, dout, unit, weight, r):
        g = dout * weight
        return (g - unit * (g * unit).mean(axis=0, keepdims=True)) * r


@planted("add_rms_norm")
class NormWeightFromUnnormedInput(NormGradient):
    def weight_gradient(self, dout, x, unit):
        return (dout * x).sum(axis=0)


@planted("add_rms_norm")
class NormResidualOverwritten(ReferenceBackend):
    def rms_norm_backward(self, *arrays, add_to_dx, **options):
        super().rms_norm_backward(*arrays, add_to_dx=False, **options)


# ---- rotary positions


@planted("rope")
class RopeSign(ReferenceBackend):
    def rope(self, x_NHE, positions_N, table, *, inverse=False):
        # the backward pass rotates in the direction of the forward pass
        super().rope(x_NHE, positions_N, table)


@planted("rope")
class RopeHalvesSwapped(ReferenceBackend):
    def rope(self, x_NHE, positions_N, table, *, inverse=False):
        super().rope(x_NHE, positions_N, table, inverse=inverse)
        if inverse:
            x_NHE[...] = np.roll(x_NHE, x_NHE.shape[2] // 2, axis=2)


@planted("rope")
class RopeSineMissing(ReferenceBackend):
    def rope(self, x_NHE, positions_N, table, *, inverse=False):
        without = table[0], 0 * table[1]
        super().rope(x_NHE, positions_N, without if inverse else table, inverse=inverse)


@planted("rope")
class RopePositionsOffByOne(ReferenceBackend):
    def rope(self, x_NHE, positions_N, table, *, inverse=False):
        before = np.maximum(positions_N - 1, 0)
        super().rope(x_NHE, before if inverse else positions_N, table, inverse=inverse)


# ---- attention


def by_group(x_BTHE, groups):
    """(B, T, H, E) → (B, G, H/G·T, E): query heads that share a key/value head are adjacent."""
    B, T, H, E = x_BTHE.shape
    return x_BTHE.transpose(0, 2, 1, 3).reshape(B, groups, H // groups * T, E)


def from_groups(x_BGNE, heads):
    """(B, G, H/G·T, E) → (B, T, H, E), the inverse of `by_group`."""
    B, G, N, E = x_BGNE.shape
    return x_BGNE.reshape(B, heads, G * N // heads, E).transpose(0, 2, 1, 3)


class AttentionGradient(ReferenceBackend):
    """The backward pass of attention, written again in methods that a mistake can replace."""

    def attention_backward(self, saved, gradients, starts, lse, rotation=None):
        B, T, H, E = saved.query.shape
        G = saved.key.shape[2]
        q, k, v, d = (by_group(x, G) for x in (saved.query, saved.key, saved.value, gradients.out))
        scores = (q @ k.swapaxes(-1, -2) / math.sqrt(E)).reshape(B, H, T, T)
        scores += self.mask(starts, T)[:, None]
        p = np.exp(scores - lse[..., None]).reshape(B, G, -1, T)
        ds = self.score_gradient(p, d @ v.swapaxes(-1, -2))
        gradients.query[...] = self.query_gradient(from_groups(ds @ k, H), E)
        gradients.key[...] = self.key_gradient(from_groups(ds.swapaxes(-1, -2) @ q, G), E)
        gradients.value[...] = self.value_gradient(p, d, G)
        for gradient in (gradients.query, gradients.key) if rotation else ():
            self.rope(gradient.reshape(-1, *gradient.shape[2:]), *rotation, inverse=True)

    def mask(self, starts, T):
        """(B, T, T): 0 where a query sees a key, −inf for later keys and other documents."""
        slots = np.arange(T)
        return np.where((slots <= slots[:, None]) & (slots >= starts[..., None]), 0, -np.inf)

    def score_gradient(self, p, dp):
        return p * (dp - (p * dp).sum(axis=-1, keepdims=True))

    def query_gradient(self, dquery, E):
        return dquery / math.sqrt(E)

    def key_gradient(self, dkey, E):
        return dkey / math.sqrt(E)

    def value_gradient(self, p, dout, G):
        return from_groups(p.swapaxes(-1, -2) @ dout, G)


@planted("attention")
class AttentionSign(AttentionGradient):
    def score_gradient(self, p, dp):
        return p * (dp + (p * dp).sum(axis=-1, keepdims=True))


@planted("attention")
class AttentionSumMissing(AttentionGradient):
    def score_gradient(self, p, dp):
        return p * dp


@planted("attention")
class AttentionScaleMissing(AttentionGradient):
    def query_gradient(self, dquery, E):
        return dquery


@planted("attention")
class AttentionDocumentBordersMissing(AttentionGradient):
    def mask(self, starts, T):
        return super().mask(np.zeros_like(starts), T)


@planted("attention")
class AttentionOnlyFirstHeadOfGroup(AttentionGradient):
    def value_gradient(self, p, dout, G):
        T = p.shape[3]
        return from_groups(p[:, :, :T].swapaxes(-1, -2) @ dout[:, :, :T], G)


@planted("attention")
class AttentionKeyAndValueSwapped(ReferenceBackend):
    def attention_backward(self, saved, gradients, starts, lse, rotation=None):
        swapped = AttentionArrays(gradients.query, gradients.value, gradients.key, gradients.out)
        super().attention_backward(saved, swapped, starts, lse, rotation)


@planted("attention")
class AttentionProbabilitiesTransposed(AttentionGradient):
    def value_gradient(self, p, dout, G):
        B, _, N, T = p.shape
        transposed = p.reshape(B, G, N // T, T, T).swapaxes(-1, -2).reshape(p.shape)
        return super().value_gradient(transposed, dout, G)


# ---- SwiGLU


class SwigluGradient(ReferenceBackend):
    """The backward pass of SwiGLU, written again in methods that a mistake can replace."""

    def swiglu_backward(self, dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, out_NF=None):
        sigma = sigmoid(gate_NF, np.empty_like(gate_NF))
        dgate, dup = self.gradients(dout_NF, gate_NF, up_NF, sigma)
        if out_NF is not None:
            out_NF[...] = gate_NF * sigma * up_NF
        dgate_NF[...] = dgate
        dup_NF[...] = dup

    def gradients(self, dout, gate, up, sigma):
        return dout * up * (sigma + gate * sigma * (1 - sigma)), dout * gate * sigma


@planted("swiglu")
class SwigluSign(SwigluGradient):
    def gradients(self, dout, gate, up, sigma):
        return dout * up * (sigma - gate * sigma * (1 - sigma)), dout * gate * sigma


@planted("swiglu")
class SwigluGateAndUpSwapped(SwigluGradient):
    def gradients(self, dout, gate, up, sigma):
        return super().gradients(dout, gate, up, sigma)[::-1]


@planted("swiglu")
class SwigluSlopeOfSigmoidMissing(SwigluGradient):
    def gradients(self, dout, gate, up, sigma):
        return dout * up * sigma, dout * gate * sigma


# ---- cross-entropy


@planted("cross_entropy")
class CrossEntropySign(ReferenceBackend):
    def cross_entropy_backward(self, logits_RV, targets_R, weights_R, lse_R):
        super().cross_entropy_backward(logits_RV, targets_R, -weights_R, lse_R)


@planted("cross_entropy")
class CrossEntropyTargetsSwapped(ReferenceBackend):
    def cross_entropy_backward(self, logits_RV, targets_R, weights_R, lse_R):
        others = np.where(targets_R < 0, -1, (targets_R + 1) % logits_RV.shape[1])
        super().cross_entropy_backward(logits_RV, others, weights_R, lse_R)


@planted("cross_entropy")
class CrossEntropyTargetMissing(ReferenceBackend):
    def cross_entropy_backward(self, logits_RV, targets_R, weights_R, lse_R):
        weights = np.where(targets_R < 0, 0, weights_R)
        logits_RV[...] = np.exp(logits_RV - lse_R[:, None]) * weights[:, None]


@planted("cross_entropy")
class CrossEntropyMaskMissing(ReferenceBackend):
    def cross_entropy_backward(self, logits_RV, targets_R, weights_R, lse_R):
        super().cross_entropy_backward(logits_RV, np.maximum(targets_R, 0), weights_R, lse_R)


@planted("cross_entropy")
class CrossEntropyWeightsMissing(ReferenceBackend):
    def cross_entropy_backward(self, logits_RV, targets_R, weights_R, lse_R):
        super().cross_entropy_backward(logits_RV, targets_R, np.ones_like(weights_R), lse_R)


# ---- preferences


class PreferenceGradient(ReferenceBackend):
    """The weights, written again in methods that a mistake can replace; the loss stays right."""

    def preference(self, logprobs_RTK, pairs, margin, smoothing, weights_RTK, losses_2):
        super().preference(logprobs_RTK, pairs, margin, smoothing, weights_RTK, losses_2)
        spans_RP3, reference_RP2, scales_RP2, shares_RP = pairs
        for row, pair in zip(*np.nonzero(shares_RP), strict=True):
            sides = [slice(*spans_RP3[row, pair, side : side + 2]) for side in range(2)]
            gains = [
                logprobs_RTK[row, side, 0].sum() - before
                for side, before in zip(sides, reference_RP2[row, pair], strict=True)
            ]
            rewards = scales_RP2[row, pair] * gains
            preferred = 1 / (1 + np.exp(-(rewards[0] - rewards[1] - margin)))
            pull = self.share(shares_RP[row, pair]) * self.pull(preferred, smoothing)
            weights = self.signs() * self.scales(scales_RP2[row, pair]) * pull
            for side, weight in zip(sides, weights, strict=True):
                weights_RTK[row, side, 0] = weight

    def share(self, share):
        return share

    def pull(self, preferred, smoothing):
        return 1 - smoothing - preferred

    def signs(self):
        return np.array([1.0, -1.0])

    def scales(self, scales_2):
        return scales_2


@planted("preference")
class PreferenceSign(PreferenceGradient):
    def signs(self):
        return np.array([-1.0, 1.0])


@planted("preference")
class PreferenceScalesSwapped(PreferenceGradient):
    def scales(self, scales_2):
        return scales_2[::-1]


@planted("preference")
class PreferenceSmoothingMissing(PreferenceGradient):
    def pull(self, preferred, smoothing):
        return 1 - preferred


@planted("preference")
class PreferenceShareMissing(PreferenceGradient):
    def share(self, share):
        return 1.0


@planted("preference")
class PreferenceRejectedMissing(PreferenceGradient):
    def signs(self):
        return np.array([1.0, 0.0])


# ---- the checks


def failures(comparisons):
    return {comparison.case for comparison in comparisons if not comparison.passed}


@pytest.mark.parametrize(
    ("op", "mistaken"), PLANTED, ids=[f"{op}-{mistaken.__name__}" for op, mistaken in PLANTED]
)
def test_a_mistake_fails_the_check_of_its_op_and_of_no_other(op, mistaken):
    assert failures(check_ops(mistaken(np.float64))) == {op}


def test_every_op_has_a_sign_a_swap_and_a_missing_term_planted():
    assert {op for op, _ in PLANTED} == {comparison.case for comparison in check_ops()}
    for op in {op for op, _ in PLANTED}:
        assert sum(planted_op == op for planted_op, _ in PLANTED) >= 3


@pytest.mark.parametrize(
    "harmless", [NormGradient, AttentionGradient, SwigluGradient, PreferenceGradient]
)
def test_the_rewritten_backward_passes_are_right_without_a_mistake(harmless):
    assert failures(check_ops(harmless(np.float64))) == set()


class TiedGradientOverwritten(ReferenceBackend):
    """The embedding's gradient replaces head 0's instead of adding to it.

    No op is wrong, but the model is.
    """

    def embedding_backward(self, ids_N, dout_ND, dtable_VD, *, accumulate):
        super().embedding_backward(ids_N, dout_ND, dtable_VD, accumulate=False)


class EulerStepIgnored(ReferenceBackend):
    """The backward pass leaves out h."""

    def linear_backward_input(self, dout_NO, weight_OI, dx_NI, scale=1.0):
        super().linear_backward_input(dout_NO, weight_OI, dx_NI)


class HeadNormIgnored(ReferenceBackend):
    """The backward pass takes the norm of heads for no norm at all."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        if dweight_E is not None:
            dweight_E[...] = 0


class HeadNormWithoutItsProjection(ReferenceBackend):
    """The gradient along the head itself, which the norm takes away, stays."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        before = dx_NHE.copy()
        super().head_norm_backward(dx_NHE, norm, dweight_E, accumulate=accumulate)
        weight = 1.0 if norm.weight_E is None else norm.weight_E
        dx_NHE[...] = before * weight * norm.inverse_rms_NH[..., None]


class HeadNormWeightForgotten(ReferenceBackend):
    """The gradient of a head's input leaves the weight out."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        plain, scratch = norm._replace(weight_E=None), dx_NHE.copy()
        super().head_norm_backward(scratch, norm, dweight_E, accumulate=accumulate)
        super().head_norm_backward(dx_NHE, plain, None, accumulate=False)


QK_NORM = "QK-norm with weights, one key/value head"


@pytest.mark.parametrize(
    ("mistaken", "case"),
    [
        (HeadNormIgnored, "QK-norm without weights"),
        (HeadNormIgnored, QK_NORM),
        (HeadNormWithoutItsProjection, "QK-norm without weights"),
        (HeadNormWithoutItsProjection, QK_NORM),
        (HeadNormWeightForgotten, QK_NORM),
        (TiedGradientOverwritten, "tied heads, head size apart from dim / heads"),
        (EulerStepIgnored, "one layer, K = 2, step size 0.5, two documents a row"),
    ],
)
def test_a_mistake_between_the_ops_fails_the_check_of_the_model(mistaken, case):
    assert failures(check_model(case, mistaken(np.float64))) == {case}


def test_the_quick_form_catches_a_mistake_in_the_backward_pass_of_every_op():
    llama, gpt2 = list(CASES)[-1], list(CASES)[-2]
    # the first mistake of each op, its sign; preferences are no part of a model
    chosen = {op: mistaken for op, mistaken in reversed(PLANTED) if op != "preference"}
    for op, mistaken in chosen.items():
        quick = gpt2 if op in ("bias", "embedding_at", "add_layer_norm", "gelu") else llama
        assert failures(check_model(quick, mistaken(np.float64))) == {quick}, op
