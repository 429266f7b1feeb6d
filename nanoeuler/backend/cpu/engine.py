"""The ops on a CPU, in float32: BLAS for the products, compiled kernels for the rest."""

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import llvmlite
import numba
import numpy as np

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.cpu import (
    attention,
    decoding,
    elementwise,
    functions,
    fused_products,
    quantized,
    teams,
    training,
)
from nanoeuler.backend.cpu.blas import Blas
from nanoeuler.backend.cpu.ordered import OrderedProducts, unordered
from nanoeuler.backend.cpu.runtime import CpuRuntime, ThreadPool, aligned
from nanoeuler.backend.dropout import threshold
from nanoeuler.backend.quantized import Quantized
from nanoeuler.backend.records import (
    AttentionArrays,
    AttentionForm,
    BiasedAttentionForm,
    DecodeStep,
    EulerStep,
    GateUp,
    GeluForm,
    LayerNorm,
    LogitRows,
    MatrixGroup,
    NormGradients,
    ParameterRun,
    RmsNorm,
    RopeTable,
    Rotation,
    SwigluForm,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.system.arithmetic import power
from nanoeuler.system.machine import threads_allowed

Array = np.ndarray

LEAST_ELEMENTS = 1 << 16
LEAST_PRODUCT = 1 << 23
"""Smallest elementwise op, and smallest product in multiply-adds, worth splitting across threads:
each takes 0.1 ms, and giving a part to another thread takes half of that."""
FEW_ROWS = 32
"""Most rows for which a product is computed as sums along the rows of its weight."""
ZERO, ONE = np.float32(0), np.float32(1)


class CpuBackend(ReferenceBackend, FusingBackend):
    """NumPy arrays; cheap ops are inherited from the reference.

    For a small model, replicas of one thread each share the rows of a training step. For a large
    model there is one replica, and `threads` share the rows of each op.
    """

    name = "cpu"
    fused_layers = ((AttentionForm, SwigluForm), (BiasedAttentionForm, GeluForm))
    fused_variants = MappingProxyType({AttentionForm: frozenset({"qk_norm"})})
    fused_rows = FEW_ROWS
    fused_tokens = 8
    keeps_caches = True  # with the buffers of their steps

    def __init__(self, threads: int | None = None, products: Blas | OrderedProducts | None = None):
        """`products`: what multiplies matrices, by default BLAS."""
        super().__init__(np.float32)
        self.threads = threads or threads_allowed()
        self.least_elements, self.least_product = LEAST_ELEMENTS, LEAST_PRODUCT
        self.thread_pool = ThreadPool(self.threads)
        self.blas = products or Blas()
        self.scratch_arrays: dict[str, Array] = {}
        no_table = np.zeros((1, 1), np.float32)
        self.no_rotation = np.zeros(1, np.int32), no_table, no_table
        """Positions and a rotary table that stand in where attention has no rotation."""
        self.runtime: CpuRuntime = CpuRuntime(self.thread_pool, self.blas)

    # ---- capabilities

    def environment(self) -> dict[str, Any]:
        versions = {"numba": numba.__version__, "llvmlite": llvmlite.__version__}
        found = super().environment() | versions | {"blas": self.blas.label}
        if isinstance(self.blas, OrderedProducts):
            del found["processor"], found["threads"]
        return found

    def thread_count(self) -> str:
        return str(self.threads)

    def workspace_bytes(self, heads: int, length: int) -> int:
        return 0

    def with_threads(self, threads: int) -> "CpuBackend":
        """The same engine with so many threads, and memory of its own."""
        return type(self)(threads, self.blas)

    def for_any_processor(self, key: str) -> "CpuBackend":
        if problem := unordered():
            raise UserError(f"{key}: chip {problem}; take ranks")
        return type(self)(self.threads, OrderedProducts())

    def as_for(self, elements: int) -> "CpuBackend":
        engine = self.with_threads(self.threads)
        engine.runtime.sized_for = self.runtime.sized_for or elements
        if self.runtime.slices(elements)[1] == 1:
            # threads share every op, however small it is in a check
            engine.least_elements = engine.least_product = 1
        return engine

    # ---- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.empty, shape, np.dtype(dtype or self.dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.zeros, shape, np.dtype(dtype or self.dtype))

    # ---- threads

    def scratch(self, name: str, floats: int) -> Array:
        """Scratch memory of an op, kept for its next call."""
        if name not in self.scratch_arrays or len(self.scratch_arrays[name]) < floats:
            self.scratch_arrays[name] = self.empty((floats,))
        return self.scratch_arrays[name][:floats]

    def share_rows(self, x: Array, kernel: Callable[..., None], *arguments: Any) -> None:
        """kernel(*arguments, first, stop) on parts of the rows of `x`, for an elementwise op."""
        self.thread_pool.share(len(x), x.size // self.least_elements, kernel, *arguments)

    def share_product(
        self, count: int, weight_OI: Array, rows: int, kernel: Callable[..., None], *arguments: Any
    ) -> None:
        """kernel(sgemm, *arguments, first, stop) on parts of range(count), for a product.

        It takes `rows` · `weight.size` multiply-adds.
        """
        most = rows * weight_OI.size // self.least_product
        self.thread_pool.share(count, most, kernel, self.blas.sgemm, *arguments)

    def share_outputs(
        self, weight: Array | Quantized, rows: int, kernel: Callable[..., None], *arguments: Any
    ) -> None:
        """kernel(*arguments, first, stop) on parts of the rows of `weight`, for few rows of x."""
        most = rows * weight.size // self.least_product
        self.thread_pool.share(len(weight), most, kernel, *arguments)

    # ---- matrix products

    def linear(self, x_NI: Array, weight_OI: Array | Quantized, out_NO: Array) -> None:
        N = len(x_NI)
        if isinstance(weight_OI, Quantized):
            self.quantized_linear(x_NI, weight_OI, out_NO)
            return
        if N <= FEW_ROWS and x_NI.flags.c_contiguous and weight_OI.flags.c_contiguous:
            self.share_outputs(weight_OI, N, decoding.products, weight_OI, x_NI, out_NO)
            return
        self.share_product(N, weight_OI, N, fused_products.linear, x_NI, weight_OI, out_NO)

    def quantized_linear(self, x_NI: Array, weight: Quantized, out_NO: Array) -> None:
        """Few rows read the codes; for many, BLAS gets a tile of the weight in floats at a time."""
        N = len(x_NI)
        if N <= FEW_ROWS and x_NI.flags.c_contiguous and out_NO.flags.c_contiguous:
            rounded = self.scratch("rounded", quantized.rounded_floats(weight.columns, N))
            quantized.round_rows(weight.codes, x_NI, rounded)
            arguments = *quantized.arrays_of(weight), rounded, out_NO
            self.share_outputs(weight, N, quantized.products, *arguments)
            return
        for rows, tile in self.tiles(weight):
            out = out_NO[:, rows]
            self.share_product(N, tile, N, fused_products.linear, x_NI, tile, out)

    def tiles(self, weight: Array | Quantized) -> Iterator[tuple[slice, Array]]:
        """A matrix in floats, some rows at a time where it has codes; each tile overwrites the
        one before."""
        if not isinstance(weight, Quantized):
            yield slice(0, len(weight)), weight
            return
        columns = weight.columns
        rows = min(len(weight), max(1, quantized.TILE // columns))
        tile_RI = self.scratch("tile", rows * columns).reshape(rows, columns)
        for first in range(0, len(weight), rows):
            part = weight[first : first + rows]
            tile = tile_RI[: len(part)]
            self.share_rows(tile, quantized.dense_rows, *quantized.arrays_of(part), tile)
            yield slice(first, first + len(part)), tile

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array | Quantized, dx_NI: Array, scale: float = 1.0
    ) -> None:
        self.multiply_across(dout_NO, weight_OI, dx_NI, scale, ZERO)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        kernel = fused_products.linear_backward_weight
        arguments = dout_NO, x_NI, dweight_OI, np.float32(scale), ONE if accumulate else ZERO
        self.share_product(len(dweight_OI), dweight_OI, len(x_NI), kernel, *arguments)

    def add_product(
        self, x_NR: Array, weight_RO: Array | Quantized, out_NO: Array, scale: float
    ) -> None:
        self.multiply_across(x_NR, weight_RO, out_NO, scale, ONE)

    def multiply_across(
        self,
        x_NR: Array,
        weight_RO: Array | Quantized,
        out_NO: Array,
        scale: float,
        kept: np.float32,
    ) -> None:
        """out = scale · x W + kept · out"""
        N, kernel = len(x_NR), fused_products.linear_backward_input
        for rows, tile in self.tiles(weight_RO):
            arguments = x_NR[:, rows], tile, out_NO, np.float32(scale), kept
            self.share_product(N, tile, N, kernel, *arguments)
            kept = ONE

    def dropout(self, x_NI: Array, seeds_N: Array, salt: int, share: float, out_NI: Array) -> None:
        if out_NI is not x_NI:
            out_NI[...] = x_NI
        arguments = out_NI, seeds_N, np.uint32(salt), threshold(share)
        self.share_rows(out_NI, elementwise.dropout, *arguments)

    # ---- biases

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        self.share_rows(out_NO, elementwise.add_bias, out_NO, bias_O)

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        O = len(dbias_O)  # noqa: E741
        sums_2O = self.scratch("bias", 2 * O).reshape(2, O)
        arguments = dout_NO, np.float32(scale), accumulate, dbias_O, sums_2O
        most = dout_NO.size // self.least_elements
        self.thread_pool.share(O, most, elementwise.bias_backward, *arguments)

    def composes(self, rows: int, weight: Array | Quantized) -> bool:
        """Is a product with so many rows followed by its other ops, and not one call with them?"""
        return rows <= FEW_ROWS or isinstance(weight, Quantized)

    def linear_bias(self, x_NI: Array, weight_OI: Array, bias_O: Array, out_NO: Array) -> None:
        N = len(x_NI)
        if self.composes(N, weight_OI):
            super().linear_bias(x_NI, weight_OI, bias_O, out_NO)
            return
        arguments = x_NI, weight_OI, bias_O, out_NO
        self.share_product(N, weight_OI, N, fused_products.linear_bias, *arguments)

    # ---- embedding

    def embedding(self, ids_N: Array, table_VD: Array | Quantized, out_ND: Array) -> None:
        if isinstance(table_VD, Quantized):
            arguments = ids_N, *quantized.arrays_of(table_VD), out_ND
            self.share_rows(out_ND, quantized.embedding, *arguments)
            return
        self.share_rows(out_ND, elementwise.embedding, ids_N, table_VD, out_ND)

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, *, accumulate: bool
    ) -> None:
        kernel, most = elementwise.embedding_backward, dout_ND.size // self.least_elements
        arguments = ids_N, dout_ND, dtable_VD, accumulate
        self.thread_pool.share(dout_ND.shape[1], most, kernel, *arguments)

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        if isinstance(table_VD, Quantized):
            super().embedding_at(ids_N, table_VD, positions_N, position_table_PD, out_ND)
            return
        arguments = ids_N, table_VD, positions_N, position_table_PD, out_ND
        self.share_rows(out_ND, elementwise.embedding_at, *arguments)

    # ---- norms and Euler steps

    def rms_norm(self, norm: RmsNorm) -> None:
        x_ND, weight_D, epsilon, out_ND, inverse_rms_N = norm
        arguments = x_ND, weight_D, np.float32(epsilon), out_ND, inverse_rms_N
        self.share_rows(x_ND, elementwise.rms_norm, *arguments)

    def add_rms_norm(self, x_ND: Array, delta_ND: Array, step_size: float, norm: RmsNorm) -> None:
        arguments = x_ND, delta_ND, np.float32(step_size), *norm_arguments(norm)
        self.share_rows(x_ND, elementwise.add_rms_norm, *arguments)

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        N = len(inner_NI)
        if self.composes(N, weight_DI):
            super().euler_step(inner_NI, weight_DI, step)
            return
        x, delta, step_size, norm, bias = step
        if isinstance(norm, LayerNorm):
            biased = inner_NI, weight_DI, delta, x, bias, np.float32(step_size)
            kernel = fused_products.biased_euler_step
            self.share_product(N, weight_DI, N, kernel, *biased, layer_norm_arguments(norm))
            return
        arguments = inner_NI, weight_DI, delta, x, np.float32(step_size), norm_arguments(norm)
        self.share_product(N, weight_DI, N, fused_products.euler_step, *arguments)

    def rms_norm_backward(self, dout_ND: Array, norm: RmsNorm, into: NormGradients) -> None:
        x_ND, weight_D, _, _, inverse_rms_N = norm
        inputs = dout_ND, x_ND, weight_D, inverse_rms_N
        self.share_norm(elementwise.rms_norm_backward, inputs, into, [into.dweight_D])

    def share_norm(
        self,
        kernel: Callable[..., None],
        inputs: tuple[Any, ...],
        into: NormGradients,
        gradients: Sequence[Array],
    ) -> None:
        """The backward pass of a norm on parts of the rows, each with sums of its own for the
        gradients of weight and bias, and as many rows of scratch memory."""
        N, D = into.dx_ND.shape
        parts, rows = max(1, min(self.threads, N * D // self.least_elements)), 2 * len(gradients)
        sums_PD = self.scratch("norm", rows * parts * D).reshape(-1, D)
        dout = inputs[0]
        restored = (False, dout) if into.out_ND is None else (True, into.out_ND)

        def work(part: int) -> None:
            first, stop = part * N // parts, (part + 1) * N // parts
            outputs = into.dx_ND, sums_PD, into.add_to_dx, *restored
            kernel(*inputs, *outputs, part, first, stop)

        self.thread_pool.each(parts, work)
        for row, target in enumerate(gradients):
            if not into.accumulate:
                target[...] = 0
            for part in range(parts):
                target += sums_PD[rows * part + row]

    def layer_norm(self, norm: LayerNorm) -> None:
        self.share_rows(norm.x_ND, elementwise.layer_norm, *layer_norm_arguments(norm))

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        arguments = x_ND, delta_ND, bias_D, np.float32(step_size), layer_norm_arguments(norm)
        self.share_rows(x_ND, elementwise.add_layer_norm, *arguments)

    def layer_norm_backward(self, dout_ND: Array, norm: LayerNorm, into: NormGradients) -> None:
        inputs, gradients = (dout_ND, layer_norm_arguments(norm)), [into.dweight_D, into.dbias_D]
        self.share_norm(elementwise.layer_norm_backward, inputs, into, gradients)

    # ---- rotary positions

    def rope_table(
        self,
        positions: int,
        head_size: int,
        theta: float,
        scale_I: np.ndarray | float = 1.0,
        factor: float = 1.0,
    ) -> RopeTable:
        frequencies_I = scale_I * functions.frequencies(head_size, theta)
        shape = positions, len(frequencies_I)
        tables = self.empty(shape), self.empty(shape)
        functions.rope_table(frequencies_I, factor, *tables)
        return tables

    def rope(
        self, x_NHE: Array, positions_N: Array, table: RopeTable, *, inverse: bool = False
    ) -> None:
        sign = np.float32(-1 if inverse else 1)
        self.share_rows(x_NHE, elementwise.rope, x_NHE, positions_N, *table, sign)

    def linear_rope(
        self, x_NI: Array, weight_OI: Array, out_NO: Array, rotated: list[Array], by: Rotation
    ) -> None:
        N = len(x_NI)
        if len(rotated) > 1 or self.composes(N, weight_OI):
            super().linear_rope(x_NI, weight_OI, out_NO, rotated, by)
            return
        arguments = x_NI, weight_OI, out_NO, rotated[0], by.positions_N, *by.table
        self.share_product(N, weight_OI, N, fused_products.linear_rope, *arguments)

    # ---- SwiGLU

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        self.share_rows(gate_NF, elementwise.swiglu, gate_NF, up_NF, out_NF)

    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
    ) -> None:
        restored = (False, dout_NF) if out_NF is None else (True, out_NF)
        arguments = dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, *restored
        self.share_rows(gate_NF, elementwise.swiglu_backward, *arguments)

    def linear_swiglu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, product: GateUp, out_NF: Array
    ) -> None:
        N = len(dx_ND)
        kernel = fused_products.linear_swiglu_backward
        arguments = dx_ND, weight_DF, np.float32(scale), *product.parts, out_NF
        self.share_product(N, weight_DF, N, kernel, *arguments)

    # ---- GELU

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        self.share_rows(x_NF, elementwise.gelu, x_NF, out_NF)

    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        restored = (False, dout_NF) if out_NF is None else (True, out_NF)
        self.share_rows(x_NF, elementwise.gelu_backward, dout_NF, x_NF, dx_NF, *restored)

    def linear_gelu(
        self, x_NI: Array, weight_FI: Array, bias_F: Array, up_NF: Array, out_NF: Array
    ) -> None:
        N = len(x_NI)
        if self.composes(N, weight_FI):
            super().linear_gelu(x_NI, weight_FI, bias_F, up_NF, out_NF)
            return
        arguments = x_NI, weight_FI, bias_F, up_NF, out_NF
        self.share_product(N, weight_FI, N, fused_products.linear_gelu, *arguments)

    def linear_gelu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, up_NF: Array, out_NF: Array
    ) -> None:
        N, arguments = len(dx_ND), (dx_ND, weight_DF, np.float32(scale), up_NF, out_NF)
        self.share_product(N, weight_DF, N, fused_products.linear_gelu_backward, *arguments)

    # ---- attention

    def attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        inputs = heads.query, heads.key, heads.value, starts_BT, offset_B
        arguments = *inputs, heads.out, lse_BHT, np.float32(heads.cap)
        self.share_pairs(attention.attention, arguments, heads.key)

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None = None,
    ) -> None:
        inputs = gradients.out, saved.query, saved.key, saved.value, starts_BT, saved.out, lse_BHT
        outputs = gradients.query, gradients.key, gradients.value
        rotated = False, *self.no_rotation
        if rotation:
            rotated = True, rotation.positions_N, *rotation.table
        arguments = *inputs, *outputs, *rotated, np.float32(saved.cap)
        self.share_pairs(attention.attention_backward, arguments, saved.key)

    def share_pairs(
        self, kernel: Callable[..., None], arguments: tuple[Any, ...], key_BSGE: Array
    ) -> None:
        """Share the pairs of row and key/value head among the threads, each with scratch memory."""
        B, S, G, E = key_BSGE.shape
        pairs = B * G
        parts = min(self.threads, pairs)
        floats = attention.work_floats(S, E)
        scratch = self.scratch("attention", parts * floats)
        if parts == 1:
            kernel(*arguments, scratch, 0, pairs)
            return

        def work(part: int) -> None:
            first, stop = part * pairs // parts, (part + 1) * pairs // parts
            kernel(*arguments, scratch[part * floats :][:floats], first, stop)

        self.thread_pool.each(parts, work)

    # ---- soft caps

    def soft_cap(self, x_NV: Array, cap: float, slope_NV: Array | None = None) -> None:
        slopes = (False, x_NV) if slope_NV is None else (True, slope_NV)
        self.share_rows(x_NV, elementwise.soft_cap, x_NV, np.float32(cap), *slopes)

    # ---- decoding

    def head_logits(self, normed_ND: Array, weight_VD: Array | Quantized, out_NV: Array) -> None:
        if len(normed_ND) <= FEW_ROWS and not isinstance(weight_VD, Quantized):
            arguments = weight_VD, normed_ND, out_NV
            self.share_outputs(weight_VD, len(normed_ND), decoding.shared_products, *arguments)
        else:
            self.linear(normed_ND, weight_VD, out_NV)

    def decode_fused(self, step: DecodeStep) -> None:
        """One compiled call for each layer and thread: the threads are a team."""
        if step.prepared is None:
            size = sum(
                weight.size
                for block in step.weights
                for weight in vars(block).values()
                if weight is not None
            )
            step.prepared = decoding.layers_of(step), decoding.scratch_floats(step), size
        layers, (shared, own), size = step.prepared
        x, lengths, table = step.x_ND, step.lengths_B, step.rope_table
        N = len(x)
        parts = max(1, min(self.threads, N * size // self.least_product))
        scratch = self.scratch("decode", N * (shared + parts * own))
        gate = teams.new_gate()

        def work(part: int) -> None:
            memory = scratch[: N * shared], scratch[N * (shared + part * own) :][: N * own]
            team = part, parts, gate
            with teams.opening(gate):
                for layer, weights, sizes, constants, keys, values in layers:
                    rotation = table if layer is decoding.layer else ()
                    arrays = x, lengths, weights, sizes, *rotation, keys, values
                    layer(*arrays, constants, memory, team)

        self.thread_pool.each(parts, work)

    # ---- losses

    def few_targets(self, targets_NK: Array) -> Array | None:
        """Tokens with a target for any head, if there are some, but less than half of all."""
        index_R = np.flatnonzero((targets_NK >= 0).any(axis=1))
        return index_R if 0 < 2 * len(index_R) < len(targets_NK) else None

    def cross_entropy(self, rows: LogitRows) -> None:
        logits, targets, logprobs, lse, _ = rows
        self.share_rows(logits, training.cross_entropy, logits, targets, logprobs, lse)

    def cross_entropy_backward(self, rows: LogitRows) -> None:
        logits, targets, _, lse, weights = rows
        self.share_rows(logits, training.cross_entropy_backward, logits, targets, weights, lse)

    def cross_entropy_with_gradient(self, rows: LogitRows) -> None:
        logits, targets, logprobs, lse, weights = rows
        arguments = logits, targets, weights, logprobs, lse
        self.share_rows(logits, training.cross_entropy_with_gradient, *arguments)

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        training.add_losses(logprobs_NK, weights_NK, losses_2)

    # ---- optimizer

    def squares(self, values: Array) -> Array:
        blocks = -(-len(values) // training.BLOCK)
        sums = self.scratch("squares", 2 * blocks).view(np.float64)
        self.thread_pool.share(blocks, blocks, training.squared_norms, values, sums)
        return sums.sum(keepdims=True)

    def each_matrix(
        self, matrices: list[tuple[MatrixGroup, int]], work: Callable[[MatrixGroup, int], None]
    ) -> None:
        self.thread_pool.each(len(matrices), lambda index: work(*matrices[index]))

    def orthogonalize(
        self, x_RK: Array, polynomials: Sequence[tuple[float, float, float]]
    ) -> Array:
        alone = self.with_threads(1)  # matrices are shared by threads, and not the ops of each
        return ReferenceBackend.orthogonalize(alone, x_RK, polynomials)

    def move_run(self, rule: Callable[..., None], arrays: Sequence[Array], *told: Any) -> None:
        def work(first: int, stop: int) -> None:
            rule(*(array[first:stop] for array in arrays), *told)

        size = len(arrays[0])
        self.thread_pool.share(size, size // training.BLOCK, work)

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
        _, gradient_scale, learning_rate, step = scalars.tolist()
        learning_rate *= run.rate
        beta1, beta2, epsilon, weight_decay = constants
        kept = 1 - learning_rate * (weight_decay if run.decays else 0.0)
        rate = learning_rate / (1 - power(beta1, step))
        correction = 1 / (1 - power(beta2, step))
        numbers = kept, rate, beta1, beta2, correction, epsilon, gradient_scale
        arrays = parameters, gradients, first_moment, second_moment
        training.adamw(*arrays, *map(np.float32, numbers))


def norm_arguments(norm: RmsNorm) -> tuple[Any, ...]:
    """The arguments of a compiled norm behind an Euler step."""
    x_ND, weight_D, epsilon, out_ND, inverse_rms_N = norm
    return weight_D, np.float32(epsilon), x_ND, out_ND, inverse_rms_N


def layer_norm_arguments(norm: LayerNorm) -> tuple[Any, ...]:
    """The arguments of a compiled LayerNorm."""
    x_ND, weight_D, bias_D, epsilon, out_ND, inverse_rms_N = norm
    return x_ND, weight_D, bias_D, np.float32(epsilon), out_ND, inverse_rms_N
