"""The specification: every primitive op in plain NumPy, forward and backward side by side.

Any float type will do. The other engines compute the same ops and are tested against this one in
float64. Names, shapes and the rules for outputs are those of the contract, `primitives.py`.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nanoeuler.backend import cached
from nanoeuler.backend.dropout import kept
from nanoeuler.backend.quantized import Quantized, in_floats
from nanoeuler.backend.records import (
    AttentionArrays,
    FlatState,
    LayerNorm,
    LogitRows,
    MatrixGroup,
    MuonConstants,
    NormGradients,
    ParameterRun,
    PreferencePairs,
    RmsNorm,
    RopeTable,
    Rotation,
)
from nanoeuler.backend.reference_forms import FormOps
from nanoeuler.system import provenance
from nanoeuler.system.arithmetic import exp, softplus
from nanoeuler.system.machine import memory, threads_asked

Array = np.ndarray
Matrix = Array | Quantized


class ReferenceBackend(FormOps):
    """NumPy arrays of one float type. Slow where clarity asks for it."""

    name = "reference"
    own_rounding = "NumPy's BLAS adds up in another order on each kind of processor"
    reads_codes = True

    def __init__(self, dtype: Any = np.float32):
        self.dtype = self.activation = self.residual = np.dtype(dtype)
        self.precision = f"fp{8 * self.dtype.itemsize}"
        self.algorithms: dict[str, str] = {}

    # ---- what it can do

    def environment(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "numpy": np.__version__,
            "processor": provenance.cpu_name(),
            "threads": self.thread_count(),
        }

    def thread_count(self) -> str:
        """Threads of NumPy's BLAS, as far as the environment tells."""
        asked = map(threads_asked, ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
        return str(next(filter(None, asked), os.cpu_count()))

    def activation_budget(self, state_bytes: int) -> int:
        return memory() // 8

    def workspace_bytes(self, heads: int, length: int) -> int:
        """Up to four arrays of attention scores (heads, length, length) exist at a time."""
        return 4 * heads * length**2 * self.dtype.itemsize

    # ---- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.empty(shape, dtype or self.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.zeros(shape, dtype or self.dtype)

    def from_host(self, array: Array, dtype: Any = None) -> Array:
        return np.ascontiguousarray(
            array, dtype or (self.dtype if array.dtype.kind == "f" else array.dtype)
        )

    def to_host(self, array: Array) -> Array:
        return np.asarray(array)

    # ---- matrix products:  out = x Wᵀ

    def linear(self, x_NI: Array, weight_OI: Matrix, out_NO: Array) -> None:
        np.matmul(x_NI, in_floats(weight_OI).T, out=out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Matrix, dx_NI: Array, scale: float = 1.0
    ) -> None:
        np.matmul(dout_NO, in_floats(weight_OI), out=dx_NI)
        if scale != 1.0:
            dx_NI *= scale

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        dweight = np.matmul(dout_NO.T, x_NI)
        if scale != 1.0:
            dweight *= scale
        store(dweight_OI, dweight, accumulate)

    def add_product(self, x_NR: Array, weight_RO: Matrix, out_NO: Array, scale: float) -> None:
        out_NO += scale * (x_NR @ in_floats(weight_RO))

    def dropout(self, x_NI: Array, seeds_N: Array, salt: int, share: float, out_NI: Array) -> None:
        np.multiply(x_NI, kept(seeds_N, salt, share, x_NI.shape[1]), out=out_NI)

    # ---- biases

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        out_NO += bias_O

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        store(dbias_O, scale * np.einsum("no->o", dout_NO), accumulate)

    # ---- embedding:  out_n = table[ids_n]

    def scale(self, x_ND: Array, factor: float) -> None:
        x_ND *= factor

    def embedding(self, ids_N: Array, table_VD: Matrix, out_ND: Array) -> None:
        # ids are checked where they enter
        out_ND[...] = in_floats(table_VD[np.clip(ids_N, 0, len(table_VD) - 1)])

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, *, accumulate: bool
    ) -> None:
        if not accumulate:
            dtable_VD[...] = 0
        order = np.argsort(ids_N, kind="stable")
        present, first = np.unique(ids_N[order], return_index=True)
        if len(present):
            dtable_VD[present] += np.add.reduceat(dout_ND[order], first, axis=0)

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        self.embedding(ids_N, table_VD, out_ND)
        out_ND += np.take(position_table_PD, positions_N, axis=0, mode="clip")

    def gather(self, x_ND: Array, index_R: Array, out_RD: Array | None = None) -> Array:
        return np.take(x_ND, index_R, axis=0, out=out_RD)

    # ---- RMSNorm (Zhang & Sennrich 2019, eq. 4):  out = w · x / r,  r = √(mean(x²) + ε)

    def rms_norm(self, norm: RmsNorm) -> None:
        x_ND, weight_D, epsilon, out_ND, inverse_rms_N = norm
        np.einsum("nd,nd->n", x_ND, x_ND, out=inverse_rms_N)
        inverse_rms_N /= x_ND.shape[1]
        inverse_rms_N += epsilon
        np.sqrt(inverse_rms_N, out=inverse_rms_N)
        np.reciprocal(inverse_rms_N, out=inverse_rms_N)
        np.multiply(x_ND, inverse_rms_N[:, None], out=out_ND)
        out_ND *= weight_D

    def add_rms_norm(self, x_ND: Array, delta_ND: Array, step_size: float, norm: RmsNorm) -> None:
        total_ND = norm.x_ND
        if step_size == 1.0:
            np.add(x_ND, delta_ND, out=total_ND)
        else:
            np.multiply(delta_ND, step_size, out=total_ND)
            total_ND += x_ND
        self.rms_norm(norm)

    def rms_norm_backward(self, dout_ND: Array, norm: RmsNorm, into: NormGradients) -> None:
        """With u = x / r and g = w · dout:  dx = (g − u · mean(g · u)) / r,  dw = Σₙ dout · u."""
        x_ND, weight_D, _, _, inverse_rms_N = norm
        dx_ND, dweight_D, _, add_to_dx, accumulate, out_ND = into
        unit = x_ND * inverse_rms_N[:, None]
        store(dweight_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)
        gradient = dout_ND * weight_D
        if out_ND is not None:
            np.multiply(unit, weight_D, out=out_ND)
        mean = np.einsum("nd,nd->n", gradient, unit)
        mean /= x_ND.shape[1]
        unit *= mean[:, None]
        gradient -= unit
        gradient *= inverse_rms_N[:, None]
        store(dx_ND, gradient, add_to_dx)

    # ---- LayerNorm (Ba, Kiros & Hinton 2016, eq. 4):  out = w · (x − m) / r + bias,
    #      m = mean(x),  r = √(mean((x − m)²) + ε)

    def layer_norm(self, norm: LayerNorm) -> None:
        x, weight, bias, epsilon, out, inverse_rms = norm
        np.subtract(x, x.mean(axis=1, keepdims=True), out=out)
        self.rms_norm(RmsNorm(out.copy(), weight, epsilon, out, inverse_rms))
        out += bias

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        total_ND = norm.x_ND
        np.add(delta_ND, bias_D, out=total_ND)
        total_ND *= step_size
        total_ND += x_ND
        self.layer_norm(norm)

    def layer_norm_backward(self, dout_ND: Array, norm: LayerNorm, into: NormGradients) -> None:
        """With u = (x − m) / r and g = w · dout:

        dx = (g − mean(g) − u · mean(g · u)) / r,  dw = Σₙ dout · u,  dbias = Σₙ dout
        """
        x, weight, bias, _, _, inverse_rms = norm
        dx_ND, dweight_D, dbias_D, add_to_dx, accumulate, out_ND = into
        unit = (x - x.mean(axis=1, keepdims=True)) * inverse_rms[:, None]
        store(dweight_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)
        store(dbias_D, np.einsum("nd->d", dout_ND), accumulate)
        gradient = dout_ND * weight
        if out_ND is not None:
            np.multiply(unit, weight, out=out_ND)
            out_ND += bias
        slope = np.einsum("nd,nd->n", gradient, unit) / x.shape[1]
        gradient -= gradient.mean(axis=1, keepdims=True)
        gradient -= unit * slope[:, None]
        gradient *= inverse_rms[:, None]
        store(dx_ND, gradient, add_to_dx)

    # ---- rotary positions (Su et al. 2021, eq. 34, halves instead of neighbours):
    #      (a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ),  φ = position · θ^(−2i/E)

    def rope_table(
        self,
        positions: int,
        head_size: int,
        theta: float,
        scale_I: np.ndarray | float = 1.0,
        factor: float = 1.0,
    ) -> RopeTable:
        frequencies = scale_I * theta ** (-np.arange(0, head_size, 2) / head_size)
        angles = np.arange(positions)[:, None] * frequencies
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        return cos.astype(self.dtype), sin.astype(self.dtype)

    def rope(
        self, x_NHE: Array, positions_N: Array, table: RopeTable, *, inverse: bool = False
    ) -> None:
        half = x_NHE.shape[2] // 2
        cos, sin = table[0][positions_N][:, None, :], table[1][positions_N][:, None, :]
        if inverse:
            sin = -sin
        first, second = x_NHE[..., :half], x_NHE[..., half:]
        rotated = second * cos
        rotated += first * sin
        first *= cos
        first -= second * sin
        second[...] = rotated

    # ---- causal grouped-query attention:  out = softmax(q kᵀ / √E) v

    def attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        query_BTHE, key_BSGE, value_BSGE, out_BTHE, cap = heads
        for row, queries, keys, position in documents(starts_BT, offset_B):
            key = key_BSGE[row, keys].transpose(1, 0, 2)  # (G, keys, E)
            value = value_BSGE[row, keys].transpose(1, 0, 2)
            query = by_group(query_BTHE[row, queries], len(key))  # (G, H/G, queries, E)
            scores = masked_scores(query, key, position, cap)
            top = scores.max(axis=-1, keepdims=True)
            scores -= top
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            scores /= total
            lse_BHT[row, :, queries] = by_head((top + np.log(total))[..., 0])
            out_BTHE[row, queries] = by_head(scores @ value[:, None]).transpose(1, 0, 2)

    def write_cache(self, cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> Array:
        return cached.write(cache_BSGE, new_BTGE, offset_B)

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None = None,
    ) -> None:
        """With p the probabilities, recomputed from lse, and dp = dout vᵀ:

        dv = pᵀ dout,  ds = p · (dp − Σ p · dp),  dq = ds k / √E,  dk = dsᵀ q / √E

        With a cap, of capped scores c, ds has the factor 1 − (c / cap)².
        Σ p · dp equals dout · out. Engines that never hold a row of p use `saved.out`; this one
        takes the sum, which is exact for a single key.
        """
        no_offset = np.zeros(len(starts_BT), np.int32)
        gradients.key[...] = gradients.value[...] = 0
        for row, queries, keys, position in documents(starts_BT, no_offset):
            key = saved.key[row, keys].transpose(1, 0, 2)
            value = saved.value[row, keys].transpose(1, 0, 2)
            query = by_group(saved.query[row, queries], len(key))
            dout = by_group(gradients.out[row, queries], len(key))
            scores = masked_scores(query, key, position, saved.cap)
            probabilities = scores - by_group(lse_BHT[row, :, queries].T[..., None], len(key))
            np.exp(probabilities, out=probabilities)
            dscores = dout @ value[:, None].swapaxes(-1, -2)
            dscores -= np.einsum("ghts,ghts->ght", probabilities, dscores)[..., None]
            dscores *= probabilities
            if cap := saved.cap:
                dscores *= 1 - (np.maximum(scores, -cap) / cap) ** 2  # 0 where −∞ masks
            dscores *= 1 / math.sqrt(query.shape[-1])
            gradients.query[row, queries] = by_head(dscores @ key[:, None]).transpose(1, 0, 2)
            # a key/value head serves H/G query heads: the product over all of their queries adds
            # their gradients up; and through a sliding window several runs see a key
            dkey = stacked(dscores).swapaxes(-1, -2) @ stacked(query)
            dvalue = stacked(probabilities).swapaxes(-1, -2) @ stacked(dout)
            gradients.key[row, keys] += dkey.transpose(1, 0, 2)
            gradients.value[row, keys] += dvalue.transpose(1, 0, 2)
        if rotation:
            for gradient in (gradients.query, gradients.key):
                self.rope(gradient.reshape(-1, *gradient.shape[2:]), *rotation, inverse=True)

    # ---- SwiGLU (Shazeer 2020, eq. 6):  out = silu(gate) · up,  silu(z) = z σ(z)

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        sigmoid(gate_NF, out_NF)
        out_NF *= gate_NF
        out_NF *= up_NF

    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
    ) -> None:
        """dup = dout · silu(gate),  dgate = dout · up · (σ + silu(gate) (1 − σ))"""
        sigma = sigmoid(gate_NF, np.empty_like(dout_NF))
        silu = gate_NF * sigma
        slope = 1 - sigma
        slope *= silu
        slope += sigma
        slope *= up_NF
        slope *= dout_NF
        dup = dout_NF * silu
        if out_NF is not None:
            np.multiply(silu, up_NF, out=out_NF)
        dgate_NF[...] = slope
        dup_NF[...] = dup

    # ---- GELU in the form with tanh (Hendrycks & Gimpel 2016):
    #      out = x (1 + tanh u) / 2 = x σ(2u),  u = √(2/π) (x + 0.044715 x³)

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        sigmoid(twice_gelu_angle(x_NF), out_NF)
        out_NF *= x_NF

    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        """dx = dout · (σ + x σ (1 − σ) · 2u′),  u′ = √(2/π) (1 + 3 · 0.044715 x²)"""
        sigma = sigmoid(twice_gelu_angle(x_NF), np.empty_like(dout_NF))
        slope = x_NF * x_NF
        slope *= 3 * CUBE
        slope += 1
        slope *= 2 * ROOT * x_NF * (1 - sigma)
        slope += 1
        slope *= sigma
        slope *= dout_NF
        if out_NF is not None:
            np.multiply(x_NF, sigma, out=out_NF)
        dx_NF[...] = slope

    # ---- ReLU² (So et al. 2021, section 3.1):  out = max(x, 0)²

    def relu2(self, x_NF: Array, out_NF: Array) -> None:
        np.maximum(x_NF, 0, out=out_NF)
        out_NF *= out_NF

    def relu2_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        """dx = dout · 2 max(x, 0)"""
        positive = np.maximum(x_NF, 0)
        slope = 2 * positive
        slope *= dout_NF
        if out_NF is not None:
            np.multiply(positive, positive, out=out_NF)
        dx_NF[...] = slope

    # ---- cross-entropy of R rows of logits; a target of −1 has no loss and no gradient

    def cross_entropy(self, rows: LogitRows) -> None:
        logits_RV, targets_R, logprobs_R, lse_R, _ = rows
        # some rows at a time: a copy of all logits would be the step's largest array
        for start in range(0, len(logits_RV), 1024):
            part = slice(start, start + 1024)
            top = logits_RV[part].max(axis=1)
            lse_R[part] = top + np.log(np.exp(logits_RV[part] - top[:, None]).sum(axis=1))
        logprobs_R[...] = logits_RV[np.arange(len(targets_R)), np.maximum(targets_R, 0)]
        logprobs_R -= lse_R
        logprobs_R[targets_R < 0] = 0

    def cross_entropy_backward(self, rows: LogitRows) -> None:
        """dlogits = weight · (softmax − one-hot of the target)"""
        logits_RV, targets_R, _, lse_R, weights_R = rows
        weights = np.where(targets_R < 0, 0, weights_R).astype(logits_RV.dtype)
        logits_RV -= lse_R[:, None]
        np.exp(logits_RV, out=logits_RV)
        logits_RV[np.arange(len(targets_R)), np.maximum(targets_R, 0)] -= 1
        logits_RV *= weights[:, None]

    def argmax(self, logits_RV: Array) -> Array:
        return logits_RV.argmax(axis=1)

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        nats_NK = logprobs_NK * weights_NK
        losses_2[0] -= nats_NK.sum(dtype=np.float64)
        losses_2[1] -= nats_NK[:, 0].sum(dtype=np.float64)

    def preference(
        self,
        logprobs_RTK: Array,
        pairs: PreferencePairs,
        margin: float,
        smoothing: float,
        weights_RTK: Array,
        losses_2: Array,
    ) -> None:
        """In float64, for the pair's reward r = scale · (Σ logprobs − reference) of each side and
        z = r_chosen − r_rejected − margin (Rafailov et al. 2023, eq. 7; the smoothing ε is that of
        Mitchell 2023; with scale β/tokens, reference 0 and a margin: Meng et al. 2024, eq. 6):

            loss = share · (−(1 − ε) log σ(z) − ε log σ(−z))
            −∂loss/∂logprob = ± share · scale · (1 − ε − σ(z)), + for the chosen side
        """
        for row, pair in zip(*np.nonzero(pairs.shares_RP), strict=True):
            first, middle, last = pairs.spans_RP3[row, pair]
            share, scales = float(pairs.shares_RP[row, pair]), pairs.scales_RP2[row, pair]
            sums = [
                float(logprobs_RTK[row, side, 0].sum(dtype=np.float64))
                for side in (slice(first, middle), slice(middle, last))
            ]
            chosen, rejected = scales * (sums - pairs.reference_RP2[row, pair])
            z = chosen - rejected - margin
            pull = 1 - smoothing - 1 / (1 + exp(-z))
            weights_RTK[row, first:middle, 0] = share * scales[0] * pull
            weights_RTK[row, middle:last, 0] = -share * scales[1] * pull
            loss = (1 - smoothing) * softplus(-z) + smoothing * softplus(z)
            losses_2 += share * loss

    # ---- optimizer

    def squares(self, values: Array) -> Array:
        if values.dtype == np.float64:
            return np.array([np.einsum("n,n->", values, values)])
        return np.array([squared_norm_blocked(values)])

    def begin_update(
        self, squares: Array, schedule_2: Array, losses_2: Array, report_2: Array, clip_norm: float
    ) -> Array:
        learning_rate, done = schedule_2.tolist()
        norm = report_2[0] = math.sqrt(squares.sum())
        finite = math.isfinite(norm) and math.isfinite(losses_2[0])
        report_2[1] += not finite
        return np.array([finite, min(1.0, clip_norm / (norm + 1e-6)), learning_rate, done + 1])

    def move(
        self,
        rule: str,
        flat: FlatState,
        tensors: Sequence[Array],
        runs: Sequence[ParameterRun],
        constants: Sequence[float],
        scalars: Array,
    ) -> None:
        if scalars[0] == 0:
            return
        for run in runs:
            arrays = [array[run.part] for array in (flat.parameters, flat.gradients, *tensors)]
            self.move_run(getattr(self, f"{rule}_run"), arrays, run, constants, scalars)
        self.refresh(flat.working, flat.parameters)

    def move_run(self, rule: Callable[..., None], arrays: Sequence[Array], *told: Any) -> None:
        """rule(*arrays, *told), or the same on parts of the arrays."""
        rule(*arrays, *told)

    def adamw_run(
        self,
        parameters: Array,
        gradients: Array,
        first_moment: Array,
        second_moment: Array,
        run: ParameterRun,
        constants: Sequence[float],
        scalars: Array,
    ) -> None:
        """AdamW (Loshchilov & Hutter 2019, algorithm 2): parameters and moments are written.

            g = scale · gradients,  m = β₁ m + (1 − β₁) g,  v = β₂ v + (1 − β₂) g²
            p −= lr · (m̂ / (√v̂ + ε) + decay · p),  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)

        `scalars`: whether to update at all (1 here), scale, lr, and t, which counts updates from 1.
        """
        _, gradient_scale, learning_rate, step = scalars.tolist()
        learning_rate *= run.rate
        beta1, beta2, epsilon, weight_decay = constants
        gradient = gradients * gradient_scale
        first_moment *= beta1
        first_moment += (1 - beta1) * gradient
        second_moment *= beta2
        gradient *= gradient
        gradient *= 1 - beta2
        second_moment += gradient
        denominator = np.sqrt(second_moment / (1 - beta2**step), out=gradient)
        denominator += epsilon
        update = first_moment / denominator
        update *= learning_rate / (1 - beta1**step)
        if run.decays:
            parameters *= 1 - learning_rate * weight_decay
        parameters -= update

    def lion_run(
        self,
        parameters: Array,
        gradients: Array,
        momentum: Array,
        run: ParameterRun,
        constants: Sequence[float],
        scalars: Array,
    ) -> None:
        """Lion (Chen et al. 2023, algorithm 2), with g = scale · gradients:

        p −= lr · (sign(β₁ m + (1 − β₁) g) + decay · p),  then  m = β₂ m + (1 − β₂) g
        """
        _, gradient_scale, learning_rate, _ = scalars.tolist()
        learning_rate *= run.rate
        beta1, beta2, weight_decay = constants
        gradient = gradients * gradient_scale
        update = beta1 * momentum
        update += (1 - beta1) * gradient
        np.sign(update, out=update)
        update *= learning_rate
        if run.decays:
            parameters *= 1 - learning_rate * weight_decay
        parameters -= update
        momentum *= beta2
        gradient *= 1 - beta2
        momentum += gradient

    def muon(
        self,
        flat: FlatState,
        momentum: Array,
        groups: Sequence[MatrixGroup],
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        """Muon (Jordan et al. 2024; scaled so that AdamW's learning rates fit: Liu et al. 2025).

        With g = gradient_scale · gradients, for each matrix:

            m = μ m + (1 − μ) g,  u = μ m + (1 − μ) g,  p −= lr · (scale · U Vᵀ + decay · p)

        where U Vᵀ is u's nearest orthogonal matrix: u = U Σ Vᵀ.
        """
        if scalars[0] == 0:
            return
        self.each_matrix(
            [(group, offset) for group in groups for offset in group.offsets],
            lambda group, offset: self.muon_matrix(
                flat, momentum, group, offset, constants, scalars
            ),
        )
        self.refresh(flat.working, flat.parameters)

    def each_matrix(
        self, matrices: list[tuple[MatrixGroup, int]], work: Callable[[MatrixGroup, int], None]
    ) -> None:
        """Do the work on each matrix, in any order."""
        for group, offset in matrices:
            work(group, offset)

    def muon_matrix(
        self,
        flat: FlatState,
        momentum: Array,
        group: MatrixGroup,
        offset: int,
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        """`muon` on one matrix of a group."""
        _, gradient_scale, learning_rate, _ = scalars.tolist()
        mu = constants.momentum
        part = slice(offset, offset + group.rows * group.columns)
        moment, gradient = momentum[part], (1 - mu) * gradient_scale * flat.gradients[part]
        moment *= mu
        moment += gradient
        gradient += mu * moment
        update_RK = self.orthogonalize(
            gradient.reshape(group.rows, group.columns), constants.polynomials
        )
        update_RK *= learning_rate * group.scale
        parameters = flat.parameters[part]
        parameters *= 1 - learning_rate * constants.weight_decay
        parameters -= update_RK.reshape(-1)

    def orthogonalize(
        self, x_RK: Array, polynomials: Sequence[tuple[float, float, float]]
    ) -> Array:
        """U Vᵀ of x = U Σ Vᵀ, nearly: each polynomial brings the singular values closer to 1.

            x ← x / (‖x‖ + 1e-20), by which they are at most 1; then for each (a, b, c)
            x ← a x + (b G + c G²) x,  G = x xᵀ

        The products are taken on the shorter side: with more rows than columns, G = xᵀ x stands
        behind x. Returns a new array.
        """
        norm = math.sqrt(float(self.squares(x_RK.reshape(-1)).sum()))
        x = x_RK / (norm + 1e-20)
        R, K = x.shape
        size = min(R, K)
        gram, square = (self.empty((size, size), x.dtype) for _ in range(2))
        product = self.empty((R, K), x.dtype)
        for a, b, c in polynomials:
            if R <= K:
                self.linear(x, x, gram)
            else:
                self.linear_backward_weight(x, x, gram, accumulate=False)
            self.linear(gram, gram, square)
            square *= c
            square += b * gram
            if R <= K:
                self.linear_backward_input(square, x, product)
            else:
                self.linear(x, square, product)
            x *= a
            x += product
        return x


def store(target: Array, value: Array, accumulate: bool) -> None:
    if accumulate:
        target += value
    else:
        target[...] = value


def sigmoid(z: Array, out: Array) -> Array:
    """σ(z) = (1 + tanh(z/2)) / 2, which overflows nowhere."""
    np.multiply(z, 0.5, out=out)
    np.tanh(out, out=out)
    out += 1
    out *= 0.5
    return out


CUBE, ROOT = 0.044715, math.sqrt(2 / math.pi)
"""The constants of `gelu`."""


def twice_gelu_angle(x: Array) -> Array:
    """2u = 2 √(2/π) (x + 0.044715 x³)"""
    angle = x * x
    angle *= CUBE
    angle += 1
    angle *= 2 * ROOT * x
    return angle


def documents(starts_BT: Array, offset_B: Array) -> Iterator[tuple[int, slice, slice, int]]:
    """The runs of queries that see keys from one start on.

    Yields row, queries, keys, and the position of the first query among those keys.
    """
    each_row = zip(starts_BT.tolist(), offset_B.tolist(), strict=True)
    for row, (starts, offset) in enumerate(each_row):
        first = 0
        for start, run in itertools.groupby(starts):
            stop = first + len(list(run))
            yield row, slice(first, stop), slice(start, offset + stop), offset + first - start
            first = stop


def by_group(x_THE: Array, groups: int) -> Array:
    """(T, H, E) → (G, H/G, T, E): the query heads beside the key/value head that they share."""
    T, H, E = x_THE.shape
    return x_THE.transpose(1, 0, 2).reshape(groups, H // groups, T, E)


def by_head(x: Array) -> Array:
    """(G, H/G, …) → (H, …)"""
    return x.reshape(-1, *x.shape[2:])


def stacked(x_GHTE: Array) -> Array:
    """(G, H/G, T, …) → (G, H/G·T, …)"""
    return x_GHTE.reshape(x_GHTE.shape[0], -1, x_GHTE.shape[-1])


def masked_scores(query_GHTE: Array, key_GSE: Array, position: int, cap: float) -> Array:
    """q kᵀ / √E, (G, H/G, T, S), with −inf where a key lies in the query's future.

    The first query sits at key `position`. A `cap` caps scores first.
    """
    T, S = query_GHTE.shape[2], key_GSE.shape[1]
    scores = query_GHTE @ key_GSE[:, None].swapaxes(-1, -2)
    scores *= 1 / math.sqrt(query_GHTE.shape[-1])
    if cap:
        scores = cap * np.tanh(scores / cap)
    if T > 1:
        np.copyto(scores, -np.inf, where=np.arange(S) > position + np.arange(T)[:, None])
    return scores


def squared_norm_blocked(values: Array, block: int = 1 << 20) -> float:
    """Σ values² of a float32 array in float64, without a float64 copy of the whole."""
    total = 0.0
    for start in range(0, len(values), block):
        part = values[start : start + block].astype(np.float64)
        total += float(part @ part)
    return total
