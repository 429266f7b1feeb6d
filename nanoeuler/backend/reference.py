"""The specification: every op of the model in plain NumPy, forward and backward side by side, for any float type.

The other backends implement the same table of ops and are tested against this one in float64.

Shapes: N rows of tokens (batch × length), B batch, T new tokens per row, S keys per row, D dim, H query heads, G key/value
heads, E head_size, F ffn, V vocabulary. Weights are (out, in). `out` arguments are written in full. A `d` in front of a
name means the gradient of the loss with respect to it. Gradients of weights are overwritten, or added to when
`accumulate` is set.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nanoeuler.backend.attention_arrays import AttentionArrays
from nanoeuler.backend.flat_places import lay_out

Array = np.ndarray


class ReferenceBackend:
    """NumPy arrays of one float type. Slow where clarity asks for it, and never wrong."""

    name = "reference"

    def __init__(self, dtype: Any = np.float32):
        self.dtype = self.activation = self.residual = np.dtype(dtype)
        """Type of parameters and statistics; of what the products read and write; of the residual stream. Here they are one."""
        self.algorithms: dict[str, str] = {}
        """What was chosen by measuring and has to be chosen again for the same bits; here nothing is."""

    # ---- memory

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.empty(shape, dtype or self.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.zeros(shape, dtype or self.dtype)

    def from_host(self, array: Array, dtype: Any = None) -> Array:
        """A NumPy array as this backend's; floats take the type of parameters unless told otherwise."""
        return np.ascontiguousarray(
            array, dtype or (self.dtype if array.dtype.kind == "f" else array.dtype)
        )

    def to_host(self, array: Array) -> Array:
        return np.asarray(array)

    def working_copy(self, parameters: Array) -> Array:
        """The parameters in the type that matrix products read: an array of its own where that is another type than theirs."""
        return parameters

    def refresh(self, working: Array, parameters: Array) -> None:
        """Bring a working copy up to date after `parameters` were written otherwise than by `update`."""

    # ---- a step as a whole: a device records the work of `function` once and replays it

    def load(self, target: Array, values: list[Array]) -> None:
        """Lay host `values` out in the flat array `target` (see `places`) before the next `run`; a device copies while it computes."""
        lay_out(target, values)

    def run(self, function: Callable[[], None], recorded: Any = None, often: bool = False) -> Any:
        """Do the work of `function`, which always uses the same arrays. Returns what the next such call passes as `recorded`.

        `often`: it is a training step, of which there will be so many that an engine may first find out how best to do it.
        """
        function()
        return None

    def check(self, config: Any) -> None:
        """Raise `UserError` for a model that this backend cannot compute."""

    def finish(self) -> None:
        """Wait until everything asked for is done."""

    # ---- matrix products:  out = x Wᵀ

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        np.matmul(x_NI, weight_OI.T, out=out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        """dx = scale · dout W"""
        np.matmul(dout_NO, weight_OI, out=dx_NI)
        if scale != 1.0:
            dx_NI *= scale

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, accumulate: bool, scale: float = 1.0
    ) -> None:
        """dW = scale · doutᵀ x"""
        dweight = np.matmul(dout_NO.T, x_NI)
        if scale != 1.0:
            dweight *= scale
        store(dweight_OI, dweight, accumulate)

    # ---- embedding:  out_n = table[ids_n]

    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        np.take(
            table_VD, ids_N, axis=0, out=out_ND, mode="clip"
        )  # ids are checked where they enter; "clip" writes without a copy

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, accumulate: bool
    ) -> None:
        """dtable[v] = Σ of dout_n over the n with ids_n = v, summed in the order of n"""
        if not accumulate:
            dtable_VD[...] = 0
        order = np.argsort(ids_N, kind="stable")
        present, first = np.unique(ids_N[order], return_index=True)
        if len(present):
            dtable_VD[present] += np.add.reduceat(dout_ND[order], first, axis=0)

    def gather(self, x_ND: Array, index_R: Array) -> Array:
        """Some rows of x; `index` is NumPy's on every backend."""
        return x_ND[index_R]

    # ---- RMSNorm (Zhang & Sennrich 2019, eq. 4):  out = w · x / r,  r = √(mean(x²) + ε)

    def rms_norm(
        self, x_ND: Array, weight_D: Array, epsilon: float, out_ND: Array, inverse_rms_N: Array
    ) -> None:
        np.einsum("nd,nd->n", x_ND, x_ND, out=inverse_rms_N)
        inverse_rms_N /= x_ND.shape[1]
        inverse_rms_N += epsilon
        np.sqrt(inverse_rms_N, out=inverse_rms_N)
        np.reciprocal(inverse_rms_N, out=inverse_rms_N)
        np.multiply(x_ND, inverse_rms_N[:, None], out=out_ND)
        out_ND *= weight_D

    def add_rms_norm(
        self,
        x_ND: Array,
        delta_ND: Array,
        step_size: float,
        weight_D: Array,
        epsilon: float,
        sum_ND: Array,
        out_ND: Array,
        inverse_rms_N: Array,
    ) -> None:
        """An Euler step and the norm behind it: sum = x + h · delta, out = rms_norm(sum)."""
        if step_size == 1.0:
            np.add(x_ND, delta_ND, out=sum_ND)
        else:
            np.multiply(delta_ND, step_size, out=sum_ND)
            sum_ND += x_ND
        self.rms_norm(sum_ND, weight_D, epsilon, out_ND, inverse_rms_N)

    def euler_step(
        self,
        inner_NI: Array,
        weight_DI: Array,
        delta_ND: Array,
        x_ND: Array,
        step_size: float,
        norm_D: Array,
        epsilon: float,
        sum_ND: Array,
        out_ND: Array,
        inverse_rms_N: Array,
    ) -> None:
        """A block's last product with the step that it makes and the norm behind it: sum = x + h · inner Wᵀ, out = rms_norm(sum).

        `delta` is room for the product, where a backend wants it.
        """
        self.linear(inner_NI, weight_DI, delta_ND)
        self.add_rms_norm(x_ND, delta_ND, step_size, norm_D, epsilon, sum_ND, out_ND, inverse_rms_N)

    def rms_norm_backward(
        self,
        dout_ND: Array,
        x_ND: Array,
        weight_D: Array,
        inverse_rms_N: Array,
        dx_ND: Array,
        dweight_D: Array,
        add_to_dx: bool,
        accumulate: bool,
        out_ND: Array | None = None,
    ) -> None:
        """With u = x / r and g = w · dout:  dx = (g − u · mean(g · u)) / r,  dw = Σₙ dout · u.

        `add_to_dx`: dx already holds the gradient that flows past the norm along the residual stream. `out` receives what the
        forward pass gave, w · u, so that nobody has to keep it; it may be the array of `dout`.
        """
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

    # ---- rotary positions (Su et al. 2021, eq. 34, halves instead of neighbours):
    #      (a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ),  φ = position · θ^(−2i/E)

    def rope_table(self, positions: int, head_size: int, theta: float) -> tuple[Array, Array]:
        """cos φ and sin φ, each (positions, E / 2), computed in float64."""
        frequencies = theta ** (-np.arange(0, head_size, 2) / head_size)
        angles = np.arange(positions)[:, None] * frequencies
        return np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)

    def rope(
        self, x_NHE: Array, positions_N: Array, table: tuple[Array, Array], inverse: bool = False
    ) -> None:
        """Rotate in place; a rotation's backward is its inverse, the rotation by −φ."""
        half = x_NHE.shape[2] // 2
        cos, sin = table[0][positions_N][:, None, :], table[1][positions_N][:, None, :]
        if inverse:
            sin = -sin
        first, second = x_NHE[..., :half], x_NHE[..., half:]
        turned = second * cos
        turned += first * sin
        first *= cos
        first -= second * sin
        second[...] = turned

    def linear_rope(
        self,
        x_NI: Array,
        weight_OI: Array,
        out_NO: Array,
        rotated: list[Array],
        positions_N: Array,
        table: tuple[Array, Array],
    ) -> None:
        """A product and `rope` on parts of it, views (N, H, E) of `out`."""
        self.linear(x_NI, weight_OI, out_NO)
        for part in rotated:
            self.rope(part, positions_N, table)

    # ---- causal grouped-query attention:  out = softmax(q kᵀ / √E) v

    def attention(
        self,
        query_BTHE: Array,
        key_BSGE: Array,
        value_BSGE: Array,
        starts_BT: Array,
        offset_B: Array,
        out_BTHE: Array,
        lse_BHT: Array,
    ) -> None:
        """Query i of row b sits at key position offset_b + i and sees the keys from starts_bi up to itself.

        `lse` is the log of the sum of exp(score) over the keys seen, all that the backward pass needs beside its inputs.
        """
        for row, queries, keys, place in documents(starts_BT, offset_B):
            key, value = (
                x[row, keys].transpose(1, 0, 2) for x in (key_BSGE, value_BSGE)
            )  # (G, keys, E)
            query = by_group(query_BTHE[row, queries], len(key))  # (G, H/G, queries, E)
            scores = masked_scores(query, key, place)
            top = scores.max(axis=-1, keepdims=True)
            scores -= top
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            scores /= total
            lse_BHT[row, :, queries] = by_head((top + np.log(total))[..., 0])
            out_BTHE[row, queries] = by_head(scores @ value[:, None]).transpose(1, 0, 2)

    def write_cache(self, cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> None:
        """Token i of row b goes to place offset_b + i of the cache; what would lie past its end is dropped."""
        for cache, new, offset in zip(cache_BSGE, new_BTGE, offset_B.tolist(), strict=True):
            cache[offset : offset + len(new)] = new[: max(0, len(cache) - offset)]

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: tuple[Array, tuple[Array, Array]] | None = None,
    ) -> None:
        """From `gradients.out` to the other three, from the start of each row.

        With p the probabilities, recomputed from lse:  dv = pᵀ dout,  ds = p · (dp − Σ p · dp) with dp = dout vᵀ,  dq = ds k / √E,  dk = dsᵀ q / √E.

        Σ p · dp equals dout · out: backends that never hold a row of p use `saved.out`; this one keeps the sum, which is exact for a single key.
        `rotation`: positions (N,) and table of the `rope` that had turned queries and keys; their gradients are turned back.
        """
        for row, queries, keys, place in documents(starts_BT, np.zeros(len(starts_BT), np.int32)):
            key, value = (x[row, keys].transpose(1, 0, 2) for x in (saved.key, saved.value))
            query, dout = (
                by_group(x[row, queries], len(key)) for x in (saved.query, gradients.out)
            )
            probabilities = masked_scores(query, key, place)
            probabilities -= by_group(lse_BHT[row, :, queries].T[..., None], len(key))
            np.exp(probabilities, out=probabilities)
            dscores = dout @ value[:, None].swapaxes(-1, -2)
            dscores -= np.einsum("ghts,ghts->ght", probabilities, dscores)[..., None]
            dscores *= probabilities
            dscores *= 1 / math.sqrt(query.shape[-1])
            gradients.query[row, queries] = by_head(dscores @ key[:, None]).transpose(1, 0, 2)
            # a key/value head serves H/G query heads: their gradients add up in the product over all of their queries
            gradients.key[row, keys] = (
                stacked(dscores).swapaxes(-1, -2) @ stacked(query)
            ).transpose(1, 0, 2)
            gradients.value[row, keys] = (
                stacked(probabilities).swapaxes(-1, -2) @ stacked(dout)
            ).transpose(1, 0, 2)
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
        """dup = dout · silu(gate),  dgate = dout · up · (σ + silu(gate) (1 − σ))

        The gradients may take the places of `gate` and `up`. `out` receives what the forward pass gave; it may be the array of `dout`.
        """
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

    def linear_swiglu(
        self, x_NI: Array, weight_OI: Array, packed_NO: Array, gate: slice, up: slice, out_NF: Array
    ) -> None:
        """The product of which gate and up are columns, and SwiGLU of them."""
        self.linear(x_NI, weight_OI, packed_NO)
        self.swiglu(packed_NO[:, gate], packed_NO[:, up], out_NF)

    def linear_swiglu_backward(
        self,
        dx_ND: Array,
        weight_DF: Array,
        scale: float,
        packed_NO: Array,
        gate: slice,
        up: slice,
        out_NF: Array,
    ) -> None:
        """From the gradient of scale · out Wᵀ to those of gate and up, in their places; `out` receives what the forward pass gave."""
        self.linear_backward_input(dx_ND, weight_DF, out_NF, scale)
        parts = packed_NO[:, gate], packed_NO[:, up]
        self.swiglu_backward(out_NF, *parts, *parts, out_NF)

    # ---- cross-entropy of R rows of logits; a target of −1 has no loss and no gradient

    def cross_entropy(
        self, logits_RV: Array, targets_R: Array, logprobs_R: Array, lse_R: Array
    ) -> None:
        """logprobs = logit of the target − lse,  lse = log Σ exp(logits); a masked row's logprob is 0."""
        for start in range(
            0, len(logits_RV), 1024
        ):  # some rows at a time: a copy of all logits would be the step's largest array
            part = slice(start, start + 1024)
            top = logits_RV[part].max(axis=1)
            lse_R[part] = top + np.log(np.exp(logits_RV[part] - top[:, None]).sum(axis=1))
        logprobs_R[...] = logits_RV[np.arange(len(targets_R)), np.maximum(targets_R, 0)]
        logprobs_R -= lse_R
        logprobs_R[targets_R < 0] = 0

    def cross_entropy_backward(
        self, logits_RV: Array, targets_R: Array, weights_R: Array, lse_R: Array
    ) -> None:
        """Of the loss −Σ weights · logprobs. The logits become their gradient, weight · (softmax − one-hot of the target)."""
        weights = np.where(targets_R < 0, 0, weights_R).astype(logits_RV.dtype)
        logits_RV -= lse_R[:, None]
        np.exp(logits_RV, out=logits_RV)
        logits_RV[np.arange(len(targets_R)), np.maximum(targets_R, 0)] -= 1
        logits_RV *= weights[:, None]

    def cross_entropy_with_gradient(
        self, logits_RV: Array, targets_R: Array, weights_R: Array, logprobs_R: Array, lse_R: Array
    ) -> None:
        """Both at once, for weights that are known beforehand."""
        self.cross_entropy(logits_RV, targets_R, logprobs_R, lse_R)
        self.cross_entropy_backward(logits_RV, targets_R, weights_R, lse_R)

    def argmax(self, logits_RV: Array) -> Array:
        """The likeliest id of each row, of equals the lowest."""
        return logits_RV.argmax(axis=1)

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        """Add −Σ weights · logprobs, of all heads and of head 0, to `losses` (float64)."""
        nats_NK = logprobs_NK * weights_NK
        losses_2[0] -= nats_NK.sum(dtype=np.float64)
        losses_2[1] -= nats_NK[:, 0].sum(dtype=np.float64)

    def preference(
        self,
        logprobs_RTK: Array,
        spans_RP3: Array,
        reference_RP2: Array,
        scales_RP2: Array,
        shares_RP: Array,
        margin: float,
        smoothing: float,
        weights_RTK: Array,
        losses_2: Array,
    ) -> None:
        """The weights of head 0 by which −Σ weights · logprobs descends the preference loss; that loss is added to `losses` (float64).

        Pair p of row r has its chosen tokens from span 0 to span 1 and its rejected ones from there to span 2. In float64, with the reward
        r = scale · (Σ logprobs − reference) of a side and z = r_chosen − r_rejected − margin (Rafailov et al. 2023, eq. 7; smoothing ε as in
        Mitchell 2023; scale β/tokens, reference 0 and a margin make it Meng et al. 2024, eq. 6):

            loss = share · (−(1 − ε) log σ(z) − ε log σ(−z)),    −∂loss/∂logprob = ± share · scale · (1 − ε − σ(z)), + for the chosen
        """
        for row, pair in zip(*np.nonzero(shares_RP), strict=True):
            first, middle, last = spans_RP3[row, pair]
            chosen, rejected = (
                float(logprobs_RTK[row, side, 0].sum(dtype=np.float64))
                for side in (slice(first, middle), slice(middle, last))
            )
            scales, share = scales_RP2[row, pair], float(shares_RP[row, pair])
            z = (
                scales[0] * (chosen - reference_RP2[row, pair, 0])
                - scales[1] * (rejected - reference_RP2[row, pair, 1])
                - margin
            )
            pull = 1 - smoothing - np.exp(-np.logaddexp(0, -z))
            weights_RTK[row, first:middle, 0] = share * scales[0] * pull
            weights_RTK[row, middle:last, 0] = -share * scales[1] * pull
            losses_2 += share * (
                (1 - smoothing) * np.logaddexp(0, -z) + smoothing * np.logaddexp(0, z)
            )

    # ---- optimizer

    def update(
        self,
        parameters: Array,
        working: Array,
        gradients: Array,
        first_moment: Array,
        second_moment: Array,
        decay_slices: list[tuple[slice, bool]],
        optimizer: Any,
        schedule_2: Array,
        losses_2: Array,
        report_2: Array,
    ) -> None:
        """One step of AdamW on the flat buffers with the gradient's norm clipped; nothing changes when loss or norm are not finite.

        `schedule` (float64) holds the learning rate and the number of updates done so far; `report` (float64) receives the
        gradient's norm before clipping, and in its second place counts the updates left out. `working` follows `parameters`.
        """
        learning_rate, done = schedule_2.tolist()
        norm = report_2[0] = math.sqrt(self.squared_norm(gradients))
        if not (math.isfinite(norm) and math.isfinite(losses_2[0])):
            report_2[1] += 1
            return
        o, scale = optimizer, min(1.0, optimizer.clip_norm / (norm + 1e-6))
        for part, decays in decay_slices:
            flat = parameters[part], gradients[part], first_moment[part], second_moment[part]
            decay = o.weight_decay if decays else 0.0
            self.adamw(
                *flat, decay, learning_rate, (o.beta1, o.beta2), o.epsilon, int(done) + 1, scale
            )
        self.refresh(working, parameters)

    def squared_norm(self, values: Array) -> float:
        """Σ values², in float64."""
        return (
            float(np.einsum("n,n->", values, values, dtype=np.float64))
            if values.dtype == np.float64
            else squared_norm_blocked(values)
        )

    def adamw(
        self,
        parameters: Array,
        gradients: Array,
        first_moment: Array,
        second_moment: Array,
        decay: float,
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        step: int,
        gradient_scale: float,
    ) -> None:
        """One step of AdamW (Loshchilov & Hutter 2019, algorithm 2) on a slice of the flat buffers; `step` counts from 1.

        m = β₁ m + (1 − β₁) g,  v = β₂ v + (1 − β₂) g²,  p −= lr · (m̂ / (√v̂ + ε) + decay · p),  g = gradient_scale · gradients.
        """
        beta1, beta2 = betas
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
        if decay:
            parameters *= 1 - learning_rate * decay
        parameters -= update


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


def documents(starts_BT: Array, offset_B: Array) -> Iterator[tuple[int, slice, slice, int]]:
    """The runs of queries that see keys from one start on: (row, queries, keys, place of the first query among the keys)."""
    for row, (starts_T, offset) in enumerate(zip(starts_BT, offset_B.tolist(), strict=True)):
        borders = [0, *(np.flatnonzero(np.diff(starts_T)) + 1).tolist(), len(starts_T)]
        for first, stop in itertools.pairwise(borders):
            start = int(starts_T[first])
            yield row, slice(first, stop), slice(start, offset + stop), offset + first - start


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


def masked_scores(query_GHTE: Array, key_GSE: Array, place: int) -> Array:
    """q kᵀ / √E, (G, H/G, T, S), with −inf where a key lies in the query's future; the first query sits at key `place`."""
    T, S = query_GHTE.shape[2], key_GSE.shape[1]
    scores = query_GHTE @ key_GSE[:, None].swapaxes(-1, -2)
    scores *= 1 / math.sqrt(query_GHTE.shape[-1])
    if T > 1:
        scores += np.triu(np.full((T, S), -np.inf, scores.dtype), place + 1)
    return scores


def squared_norm_blocked(values: Array, block: int = 1 << 20) -> float:
    """Σ values² of a float32 array in float64, without a float64 copy of the whole."""
    total = 0.0
    for start in range(0, len(values), block):
        part = values[start : start + block].astype(np.float64)
        total += float(part @ part)
    return total
