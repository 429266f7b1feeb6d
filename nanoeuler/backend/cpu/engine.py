"""The table of ops on a CPU, in float32."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.backend.cpu import attention, cross_entropy, decoding, glue, optimizer
from nanoeuler.backend.cpu.blas import Products, threads_allowed
from nanoeuler.backend.cpu.team import Team
from nanoeuler.backend.reference import ReferenceBackend

Array = np.ndarray

SLICE_TOKENS = 512
"""Tokens that a thread computes at once when threads share a step's rows: their activations mostly stay in the last-level cache."""
COPIES_BYTES = 512 * 2**20
"""Most that one copy of the gradients per thread may take; above, the threads share the work of every op instead."""
LEAST_ELEMENTS, LEAST_PRODUCT = 1 << 16, 1 << 23
"""Of an op on elements, and of a product in multiply-adds, what is worth handing to another thread: it takes 0.1 ms, the handing over half of that."""

LEAST_SEQUENCES = 4
"""Rows of a batch being decoded that are worth a thread: fewer are bound by reading the weights, which one thread does as fast as memory allows."""


def least(amount: int, row: int) -> int:
    """Rows of `row` elements (or multiply-adds) each that come to `amount`."""
    return -(-amount // max(1, row))


class CpuBackend(ReferenceBackend):
    """NumPy arrays; BLAS for the products, compiled loops for the rest.

    Memory and what is cheap are the reference's. Small models: `workers` engines of one thread each take a share of a step's
    rows (`TrainingState`). Large ones: one engine whose ops share their rows among `threads`.
    """

    name = "cpu"
    few_rows = 32
    """Rows up to which a product is done as sums along the rows of its weight, and `decode` is worth taking."""

    def __init__(self, threads: int | None = None):
        super().__init__(np.float32)
        self.threads = threads or threads_allowed()
        self.team = Team(self.threads)
        self.products = Products()
        self.rooms: dict[str, Array] = {}

    # ---- threads

    def workers(self, elements: int) -> "list[CpuBackend]":
        """The engines that share a step's rows, for a model of that many parameters; each has gradients of its own."""
        shares = self.slices(elements)[1]
        return [self] if shares == 1 else [CpuBackend(1) for _ in range(shares)]

    def slices(self, elements: int) -> tuple[int, int]:
        """Tokens to compute at once, and the number of engines that do so side by side, for a model of that many parameters."""
        if 4 * elements * self.threads > COPIES_BYTES:
            return 8192, 1
        return SLICE_TOKENS, self.threads

    def together(self, parts: int, work: Callable[[int], None]) -> None:
        self.team.each(parts, work)

    def sum_into(self, target: Array, others: list[Array]) -> None:
        """target += others, in their order."""

        def work(first: int, stop: int) -> None:
            for other in others:
                optimizer.add(target[first:stop], other[first:stop])

        self.team.share(len(target), optimizer.BLOCK, work)

    def room(self, name: str, floats: int) -> Array:
        """Scratch memory, kept for the next call."""
        if name not in self.rooms or len(self.rooms[name]) < floats:
            self.rooms[name] = np.empty(floats, np.float32)
        return self.rooms[name][:floats]

    def share_rows(self, x: Array, work: Callable[[int, int], None]) -> None:
        """work(first, stop) on parts of the rows of `x`, an op on its elements."""
        self.team.share(len(x), least(LEAST_ELEMENTS, x.size // max(1, len(x))), work)

    # ---- matrix products

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        if len(x_NI) <= self.few_rows and x_NI.flags.c_contiguous:
            decoding.products(weight_OI, x_NI, out_NO)
            return
        weight = weight_OI.T
        self.team.share(len(x_NI), least(LEAST_PRODUCT, weight.size), lambda first, stop: self.products(x_NI[first:stop], weight, out_NO[first:stop]))

    def linear_backward_input(self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0) -> None:
        def work(first: int, stop: int) -> None:
            self.products(dout_NO[first:stop], weight_OI, dx_NI[first:stop], scale)

        self.team.share(len(dout_NO), least(LEAST_PRODUCT, weight_OI.size), work)

    def linear_backward_weight(self, dout_NO: Array, x_NI: Array, dweight_OI: Array, accumulate: bool, scale: float = 1.0) -> None:
        dout = dout_NO.T

        def work(first: int, stop: int) -> None:
            self.products(dout[first:stop], x_NI, dweight_OI[first:stop], scale, accumulate)

        self.team.share(len(dout), least(LEAST_PRODUCT, x_NI.size), work)

    # ---- embedding, norm, positions, SwiGLU

    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        self.share_rows(out_ND, lambda *rows: glue.embedding(ids_N, table_VD, out_ND, *rows))

    def embedding_backward(self, ids_N: Array, dout_ND: Array, dtable_VD: Array, accumulate: bool) -> None:
        columns = max(16, least(LEAST_ELEMENTS, len(ids_N)))
        self.team.share(dout_ND.shape[1], columns, lambda *columns: glue.embedding_backward(ids_N, dout_ND, dtable_VD, accumulate, *columns))

    def rms_norm(self, x_ND: Array, weight_D: Array, epsilon: float, out_ND: Array, inverse_rms_N: Array) -> None:
        epsilon = np.float32(epsilon)
        self.share_rows(x_ND, lambda *rows: glue.rms_norm(x_ND, weight_D, epsilon, out_ND, inverse_rms_N, *rows))

    def add_rms_norm(
        self, x_ND: Array, delta_ND: Array, step_size: float, weight_D: Array, epsilon: float, sum_ND: Array, out_ND: Array, inverse_rms_N: Array
    ) -> None:
        arguments = x_ND, delta_ND, np.float32(step_size), weight_D, np.float32(epsilon), sum_ND, out_ND, inverse_rms_N
        self.share_rows(x_ND, lambda *rows: glue.add_rms_norm(*arguments, *rows))

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
        N, D = x_ND.shape
        parts = max(1, min(self.threads, x_ND.size // LEAST_ELEMENTS))
        sums_PD = self.room("norm", 2 * parts * D).reshape(-1, D)
        restored = dout_ND if out_ND is None else out_ND
        arguments = dout_ND, x_ND, weight_D, inverse_rms_N, dx_ND, sums_PD, add_to_dx, out_ND is not None, restored
        self.team.each(parts, lambda part: glue.rms_norm_backward(*arguments, part, part * N // parts, (part + 1) * N // parts))
        if not accumulate:
            dweight_D[...] = 0
        for part in range(parts):
            dweight_D += sums_PD[2 * part]

    def rope(self, x_NHE: Array, positions_N: Array, table: tuple[Array, Array], inverse: bool = False) -> None:
        sign = np.float32(-1 if inverse else 1)
        self.share_rows(x_NHE, lambda *rows: glue.rope(x_NHE, positions_N, *table, sign, *rows))

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        self.share_rows(gate_NF, lambda *rows: glue.swiglu(gate_NF, up_NF, out_NF, *rows))

    def swiglu_backward(self, dout_NF: Array, gate_NF: Array, up_NF: Array, dgate_NF: Array, dup_NF: Array, out_NF: Array | None = None) -> None:
        arguments = dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, out_NF is not None, dout_NF if out_NF is None else out_NF
        self.share_rows(gate_NF, lambda *rows: glue.swiglu_backward(*arguments, *rows))

    # ---- attention

    def attention(self, query_BTHE: Array, key_BSGE: Array, value_BSGE: Array, starts_BT: Array, offset_B: Array, out_BTHE: Array, lse_BHT: Array) -> None:
        arguments = query_BTHE, key_BSGE, value_BSGE, starts_BT, offset_B, out_BTHE, lse_BHT
        self.each_pair(attention.attention, arguments, key_BSGE)

    def attention_backward(
        self,
        dout_BTHE: Array,
        query_BTHE: Array,
        key_BTGE: Array,
        value_BTGE: Array,
        starts_BT: Array,
        out_BTHE: Array,
        lse_BHT: Array,
        dquery_BTHE: Array,
        dkey_BTGE: Array,
        dvalue_BTGE: Array,
    ) -> None:
        arguments = dout_BTHE, query_BTHE, key_BTGE, value_BTGE, starts_BT, out_BTHE, lse_BHT, dquery_BTHE, dkey_BTGE, dvalue_BTGE
        self.each_pair(attention.attention_backward, arguments, key_BTGE)

    def each_pair(self, kernel: Callable[..., None], arguments: tuple[Array, ...], key_BSGE: Array) -> None:
        """Share the pairs of row and key/value head among the threads, each with room of its own."""
        B, S, G, E = key_BSGE.shape
        floats, pairs = attention.work_floats(S, E), B * G
        parts = min(self.threads, pairs)
        room = self.room("attention", parts * floats)
        self.team.each(parts, lambda part: kernel(*arguments, room[part * floats :][:floats], part * pairs // parts, (part + 1) * pairs // parts))

    def decode(
        self,
        x_BD: Array,
        lengths_B: Array,
        layers: Any,
        columns: Any,
        table: tuple[Array, Array],
        keys: list[Array],
        values: list[Array],
        epsilon: float,
        step_size: float,
    ) -> None:
        """x ← the output of all layers for one new token per row, whose keys and values go to place lengths[b] of the cache.

        An op of this engine only, for `few_rows` rows at most: a layer is one call, and threads share the rows.
        """
        capacity, dim, attended, ffn = keys[0].shape[1], x_BD.shape[1], layers[0].attention_output.shape[1], layers[0].down.shape[1]
        floats = decoding.room_floats(dim, columns.query_key_value, attended, columns.gate_up, ffn, capacity)
        room = self.room("decode", len(x_BD) * floats)
        parts, constants = (columns.key.start, columns.value.start, columns.up.start), (np.float32(epsilon), np.float32(step_size))

        def work(first: int, stop: int) -> None:
            rows = slice(first, stop)
            for w, key_BSGE, value_BSGE in zip(layers, keys, values, strict=True):
                matrices = w.attention_norm, w.query_key_value, w.attention_output, w.mlp_norm, w.gate_up, w.down
                caches = key_BSGE[rows], value_BSGE[rows]
                decoding.layer(x_BD[rows], lengths_B[rows], matrices, parts, *table, *caches, constants, room[first * floats : stop * floats])

        self.team.share(len(x_BD), LEAST_SEQUENCES, work)

    # ---- cross-entropy

    def few_targets(self, targets_NK: Array) -> Array | None:
        """The tokens that have a target for any head, where they are less than half of all (and not none); else None."""
        index_R = np.flatnonzero((targets_NK >= 0).any(axis=1))
        return index_R if 0 < 2 * len(index_R) < len(targets_NK) else None

    def cross_entropy(self, logits_RV: Array, targets_R: Array, logprobs_R: Array, lse_R: Array) -> None:
        self.share_rows(logits_RV, lambda *rows: cross_entropy.cross_entropy(logits_RV, targets_R, logprobs_R, lse_R, *rows))

    def cross_entropy_backward(self, logits_RV: Array, targets_R: Array, weights_R: Array, lse_R: Array) -> None:
        self.share_rows(logits_RV, lambda *rows: cross_entropy.cross_entropy_backward(logits_RV, targets_R, weights_R, lse_R, *rows))

    def cross_entropy_with_gradient(self, logits_RV: Array, targets_R: Array, weights_R: Array, logprobs_R: Array, lse_R: Array) -> None:
        arguments = logits_RV, targets_R, weights_R, logprobs_R, lse_R
        self.share_rows(logits_RV, lambda *rows: cross_entropy.cross_entropy_with_gradient(*arguments, *rows))

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        cross_entropy.add_losses(logprobs_NK, weights_NK, losses_2)

    # ---- optimizer

    def squared_norm(self, values: Array) -> float:
        blocks = -(-len(values) // optimizer.BLOCK)
        sums = self.room("squares", 2 * blocks).view(np.float64)
        self.team.share(blocks, 1, lambda first, stop: optimizer.squared_norms(values, sums, first, stop))
        return float(sums.sum())

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
        beta1, beta2 = betas
        rate, correction = learning_rate / (1 - beta1**step), 1 / (1 - beta2**step)
        constants = [np.float32(x) for x in (1 - learning_rate * decay, rate, beta1, beta2, correction, epsilon, gradient_scale)]

        def work(first: int, stop: int) -> None:
            optimizer.adamw(*(flat[first:stop] for flat in (parameters, gradients, first_moment, second_moment)), *constants)

        self.team.share(len(parameters), optimizer.BLOCK, work)
