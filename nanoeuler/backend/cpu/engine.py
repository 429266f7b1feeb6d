"""The table of ops on a CPU, in float32."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.backend.attention_arrays import AttentionArrays
from nanoeuler.backend.cpu import attention, cross_entropy, decoding, fused, glue, optimizer
from nanoeuler.backend.cpu.blas import Blas
from nanoeuler.backend.cpu.memory import Block, aligned
from nanoeuler.backend.cpu.team import Team
from nanoeuler.backend.cpu.transposes import Transposes
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cores import threads_allowed

Array = np.ndarray

SLICE_TOKENS = 512
"""Tokens that a thread computes at once when threads share a step's rows: their activations mostly stay in the last-level cache."""
SHORT_SLICE_TOKENS, SHORT_SLICE_BYTES = 256, 8 * 2**20
"""The same for a model of at most so many bytes. Half the activations cost no speed, since gradients, which are read and written for every slice,
stay in the cache as well."""
SHORT_SLICE_LOGITS = 1 << 18
"""Logits that such a model makes at once: they stay in the second-level cache until their gradient has been used."""
COPIES_BYTES = 512 * 2**20
"""Most that one copy of the gradients per thread may take; above, the threads share the work of every op instead."""
LEAST_ELEMENTS, LEAST_PRODUCT = 1 << 16, 1 << 23
"""Of an op on elements, and of a product in multiply-adds, what is worth handing to another thread: it takes 0.1 ms, the handing over half of that."""

LEAST_SEQUENCES = 4
"""Rows of a batch being decoded that are worth a thread: fewer are bound by reading the weights, which one thread does as fast as memory allows."""
ZERO, ONE = np.float32(0), np.float32(1)


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
        self.blas = Blas()
        self.sgemm = self.blas.address, self.blas.wide, self.blas.unpacked
        self.rooms: dict[str, Array] = {}
        self.not_turned = np.zeros(1, np.int32), *(np.zeros((1, 1), np.float32) for _ in range(2))
        """Positions and a rotary table for a backward pass of attention without them."""

    # ---- memory

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.empty, shape, np.dtype(dtype or self.dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.zeros, shape, np.dtype(dtype or self.dtype))

    def in_one_block(self, lay_out: Callable[[Any], None]) -> None:
        """lay_out(memory), whose arrays then lie side by side."""
        count = Block(None)
        lay_out(count)
        lay_out(Block(self.zeros((count.taken,), np.uint8)))

    def transposes(self, weights: Any) -> Transposes | None:
        """Of the weights of a model whose slices are short: for longer ones and larger weights they would cost more than they save."""
        return (
            Transposes(weights, self)
            if self.slices(weights.buffer.array.size)[0] == SHORT_SLICE_TOKENS
            else None
        )

    # ---- threads

    def workers(self, elements: int) -> "list[CpuBackend]":
        """The engines that share a step's rows, for a model of that many parameters; each has gradients of its own."""
        tokens, shares = self.slices(elements)
        engines = [self] if shares == 1 else [CpuBackend(1) for _ in range(shares)]
        if tokens == SHORT_SLICE_TOKENS:
            for engine in engines:
                engine.logits_at_once = SHORT_SLICE_LOGITS
        return engines

    def slices(self, elements: int) -> tuple[int, int]:
        """Tokens to compute at once, and the number of engines that do so side by side, for a model of that many parameters."""
        if 4 * elements * self.threads > COPIES_BYTES:
            return 8192, 1
        return (
            SHORT_SLICE_TOKENS if 4 * elements <= SHORT_SLICE_BYTES else SLICE_TOKENS,
            self.threads,
        )

    def together(self, parts: int, work: Callable[[int], None]) -> None:
        self.team.each(parts, work)

    def sum_into(self, target: Array, others: list[Array]) -> None:
        """target += others, in their order."""

        def work(first: int, stop: int) -> None:
            for other in others:
                optimizer.add(target[first:stop], other[first:stop])

        self.team.share(len(target), len(target) // optimizer.BLOCK, work)

    def room(self, name: str, floats: int) -> Array:
        """Scratch memory, kept for the next call."""
        if name not in self.rooms or len(self.rooms[name]) < floats:
            self.rooms[name] = self.empty((floats,))
        return self.rooms[name][:floats]

    def share_rows(self, x: Array, kernel: Callable[..., None], *arguments: Any) -> None:
        """kernel(*arguments, first, stop) on parts of the rows of `x`, an op on its elements."""
        self.team.share(len(x), x.size // LEAST_ELEMENTS, kernel, *arguments)

    def share_product(
        self,
        count: int,
        weight_OI: Array,
        others: int,
        kernel: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """The same on parts of range(count), of a product of `others` · `weight.size` multiply-adds."""
        self.team.share(
            count, others * weight_OI.size // LEAST_PRODUCT, kernel, *self.sgemm, *arguments
        )

    # ---- matrix products

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        if len(x_NI) <= self.few_rows and x_NI.flags.c_contiguous and weight_OI.flags.c_contiguous:
            decoding.products(weight_OI, x_NI, out_NO)
            return
        self.share_product(len(x_NI), weight_OI, len(x_NI), fused.linear, x_NI, weight_OI, out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        self.share_product(
            len(dout_NO),
            weight_OI,
            len(dout_NO),
            fused.linear_backward_input,
            dout_NO,
            weight_OI,
            dx_NI,
            np.float32(scale),
            ZERO,
        )

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, accumulate: bool, scale: float = 1.0
    ) -> None:
        arguments = dout_NO, x_NI, dweight_OI, np.float32(scale), ONE if accumulate else ZERO
        self.share_product(
            len(dweight_OI), dweight_OI, len(x_NI), fused.linear_backward_weight, *arguments
        )

    # ---- embedding, norm, positions, SwiGLU, and products that these follow

    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        self.share_rows(out_ND, glue.embedding, ids_N, table_VD, out_ND)

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, accumulate: bool
    ) -> None:
        self.team.share(
            dout_ND.shape[1],
            dout_ND.size // LEAST_ELEMENTS,
            glue.embedding_backward,
            ids_N,
            dout_ND,
            dtable_VD,
            accumulate,
        )

    def rms_norm(
        self, x_ND: Array, weight_D: Array, epsilon: float, out_ND: Array, inverse_rms_N: Array
    ) -> None:
        self.share_rows(
            x_ND, glue.rms_norm, x_ND, weight_D, np.float32(epsilon), out_ND, inverse_rms_N
        )

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
        arguments = (
            x_ND,
            delta_ND,
            np.float32(step_size),
            weight_D,
            np.float32(epsilon),
            sum_ND,
            out_ND,
            inverse_rms_N,
        )
        self.share_rows(x_ND, glue.add_rms_norm, *arguments)

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
        if len(inner_NI) <= self.few_rows:
            super().euler_step(
                inner_NI,
                weight_DI,
                delta_ND,
                x_ND,
                step_size,
                norm_D,
                epsilon,
                sum_ND,
                out_ND,
                inverse_rms_N,
            )
            return
        arguments = (
            inner_NI,
            weight_DI,
            delta_ND,
            x_ND,
            np.float32(step_size),
            norm_D,
            np.float32(epsilon),
            sum_ND,
            out_ND,
            inverse_rms_N,
        )
        self.share_product(len(x_ND), weight_DI, len(x_ND), fused.euler_step, *arguments)

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
        arguments = (
            dout_ND,
            x_ND,
            weight_D,
            inverse_rms_N,
            dx_ND,
            sums_PD,
            add_to_dx,
            out_ND is not None,
            restored,
        )
        self.team.each(
            parts,
            lambda part: glue.rms_norm_backward(
                *arguments, part, part * N // parts, (part + 1) * N // parts
            ),
        )
        if not accumulate:
            dweight_D[...] = 0
        for part in range(parts):
            dweight_D += sums_PD[2 * part]

    def rope(
        self, x_NHE: Array, positions_N: Array, table: tuple[Array, Array], inverse: bool = False
    ) -> None:
        self.share_rows(
            x_NHE, glue.rope, x_NHE, positions_N, *table, np.float32(-1 if inverse else 1)
        )

    def linear_rope(
        self,
        x_NI: Array,
        weight_OI: Array,
        out_NO: Array,
        rotated: list[Array],
        positions_N: Array,
        table: tuple[Array, Array],
    ) -> None:
        if len(rotated) > 1 or len(x_NI) <= self.few_rows:
            super().linear_rope(x_NI, weight_OI, out_NO, rotated, positions_N, table)
        else:
            self.share_product(
                len(x_NI),
                weight_OI,
                len(x_NI),
                fused.linear_rope,
                x_NI,
                weight_OI,
                out_NO,
                rotated[0],
                positions_N,
                *table,
            )

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        self.share_rows(gate_NF, glue.swiglu, gate_NF, up_NF, out_NF)

    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
    ) -> None:
        arguments = (
            dout_NF,
            gate_NF,
            up_NF,
            dgate_NF,
            dup_NF,
            out_NF is not None,
            dout_NF if out_NF is None else out_NF,
        )
        self.share_rows(gate_NF, glue.swiglu_backward, *arguments)

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
        arguments = (
            dx_ND,
            weight_DF,
            np.float32(scale),
            packed_NO[:, gate],
            packed_NO[:, up],
            out_NF,
        )
        self.share_product(
            len(dx_ND), weight_DF, len(dx_ND), fused.linear_swiglu_backward, *arguments
        )

    # ---- attention

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
        arguments = query_BTHE, key_BSGE, value_BSGE, starts_BT, offset_B, out_BTHE, lse_BHT
        self.each_pair(attention.attention, arguments, key_BSGE)

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: tuple[Array, tuple[Array, Array]] | None = None,
    ) -> None:
        inputs = gradients.out, saved.query, saved.key, saved.value, starts_BT, saved.out, lse_BHT
        turned = (True, rotation[0], *rotation[1]) if rotation else (False, *self.not_turned)
        self.each_pair(
            attention.attention_backward,
            (*inputs, gradients.query, gradients.key, gradients.value, *turned),
            saved.key,
        )

    def each_pair(
        self, kernel: Callable[..., None], arguments: tuple[Array, ...], key_BSGE: Array
    ) -> None:
        """Share the pairs of row and key/value head among the threads, each with room of its own."""
        B, S, G, E = key_BSGE.shape
        floats, pairs = attention.work_floats(S, E), B * G
        parts = min(self.threads, pairs)
        room = self.room("attention", parts * floats)
        if parts == 1:
            kernel(*arguments, room, 0, pairs)
            return
        self.team.each(
            parts,
            lambda part: kernel(
                *arguments,
                room[part * floats :][:floats],
                part * pairs // parts,
                (part + 1) * pairs // parts,
            ),
        )

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
        capacity, dim, attended, ffn = (
            keys[0].shape[1],
            x_BD.shape[1],
            layers[0].attention_output.shape[1],
            layers[0].down.shape[1],
        )
        floats = decoding.room_floats(
            dim, columns.query_key_value, attended, columns.gate_up, ffn, capacity
        )
        room = self.room("decode", len(x_BD) * floats)
        parts, constants = (
            (columns.key.start, columns.value.start, columns.up.start),
            (np.float32(epsilon), np.float32(step_size)),
        )

        def work(first: int, stop: int) -> None:
            rows = slice(first, stop)
            for w, key_BSGE, value_BSGE in zip(layers, keys, values, strict=True):
                matrices = (
                    w.attention_norm,
                    w.query_key_value,
                    w.attention_output,
                    w.mlp_norm,
                    w.gate_up,
                    w.down,
                )
                caches = key_BSGE[rows], value_BSGE[rows]
                decoding.layer(
                    x_BD[rows],
                    lengths_B[rows],
                    matrices,
                    parts,
                    *table,
                    *caches,
                    constants,
                    room[first * floats : stop * floats],
                )

        self.team.share(len(x_BD), len(x_BD) // LEAST_SEQUENCES, work)

    # ---- cross-entropy

    def few_targets(self, targets_NK: Array) -> Array | None:
        """The tokens that have a target for any head, where they are less than half of all (and not none); else None."""
        index_R = np.flatnonzero((targets_NK >= 0).any(axis=1))
        return index_R if 0 < 2 * len(index_R) < len(targets_NK) else None

    def cross_entropy(
        self, logits_RV: Array, targets_R: Array, logprobs_R: Array, lse_R: Array
    ) -> None:
        self.share_rows(
            logits_RV, cross_entropy.cross_entropy, logits_RV, targets_R, logprobs_R, lse_R
        )

    def cross_entropy_backward(
        self, logits_RV: Array, targets_R: Array, weights_R: Array, lse_R: Array
    ) -> None:
        self.share_rows(
            logits_RV, cross_entropy.cross_entropy_backward, logits_RV, targets_R, weights_R, lse_R
        )

    def cross_entropy_with_gradient(
        self, logits_RV: Array, targets_R: Array, weights_R: Array, logprobs_R: Array, lse_R: Array
    ) -> None:
        self.share_rows(
            logits_RV,
            cross_entropy.cross_entropy_with_gradient,
            logits_RV,
            targets_R,
            weights_R,
            logprobs_R,
            lse_R,
        )

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        cross_entropy.add_losses(logprobs_NK, weights_NK, losses_2)

    # ---- optimizer

    def squared_norm(self, values: Array) -> float:
        blocks = -(-len(values) // optimizer.BLOCK)
        sums = self.room("squares", 2 * blocks).view(np.float64)
        self.team.share(blocks, blocks, optimizer.squared_norms, values, sums)
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
        constants = [
            np.float32(x)
            for x in (
                1 - learning_rate * decay,
                rate,
                beta1,
                beta2,
                correction,
                epsilon,
                gradient_scale,
            )
        ]

        def work(first: int, stop: int) -> None:
            optimizer.adamw(
                *(
                    flat[first:stop]
                    for flat in (parameters, gradients, first_moment, second_moment)
                ),
                *constants,
            )

        self.team.share(len(parameters), len(parameters) // optimizer.BLOCK, work)
