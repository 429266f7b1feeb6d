"""The ops on a GPU. `backend/reference.py` says what each computes, the `.cu` file of its name how.

Everything runs on one stream. Sums are taken in a fixed order, so equal inputs give equal bits.
"""

from collections.abc import Sequence
from types import MappingProxyType

import cupy
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.attention import HEAD_SIZES, UNIT_OF, Attention
from nanoeuler.backend.cuda.biased_ops import BiasedOps
from nanoeuler.backend.cuda.decoding import DecodingOps
from nanoeuler.backend.cuda.form_ops import PLAIN_HEAD_SIZES, FormOps
from nanoeuler.backend.cuda.fp8 import NOT_QUANTIZED, Quantized
from nanoeuler.backend.cuda.kernel_sources import (
    ADDING_WARPS,
    ELEMENTWISE_THREADS,
    HEAD_NORM_BLOCKS,
    WIDTH,
    is_wide,
    row_blocks,
    row_warps,
    spread_shift,
)
from nanoeuler.backend.cuda.kernels import WARP, blocks, row_stride
from nanoeuler.backend.cuda.logit_ops import LogitOps
from nanoeuler.backend.cuda.optimizer_ops import OptimizerOps
from nanoeuler.backend.records import (
    AttentionArrays,
    AttentionForm,
    BiasedAttentionForm,
    BlockForm,
    EulerStep,
    GateUp,
    GeluForm,
    HeadNorm,
    LayerNorm,
    NormGradients,
    RmsNorm,
    RopeTable,
    Rotation,
    SwigluForm,
)
from nanoeuler.errors import UserError


class CudaBackend(DecodingOps, LogitOps, BiasedOps, FormOps, OptimizerOps):
    """CuPy arrays. `precision` is that of products and activations: fp32, tf32, bf16 or fp8.

    Sums and statistics are float32 or better. fp8 is bf16 but for most products of training: see
    fp8.py.
    """

    name = "cuda"
    own_rounding = "cuBLASLt chooses its algorithms for each model of GPU"
    checked_precisions = ("fp32", "tf32", "bf16")  # fp8 is bf16 outside of training
    keeps_caches = True  # with the graphs recorded for them
    fused_layers = ((AttentionForm, SwigluForm), (BiasedAttentionForm, GeluForm))
    fused_variants = MappingProxyType({AttentionForm: frozenset({"qk_norm"})})
    draft_cost = 0.13
    scored_logits_at_once = 1 << 27  # the host waits for each part

    # ---- what it can do

    def check_form(self, form: BlockForm, dim: int) -> None:
        if isinstance(form, AttentionForm) and form.head_size not in PLAIN_HEAD_SIZES:
            sizes = ", ".join(map(str, PLAIN_HEAD_SIZES))
            raise UserError(
                f"--device cuda: model.head_size is {form.head_size}; "
                f"the kernels are made for {sizes}; use --device cpu"
            )
        if form.rank and self.fp8:
            raise UserError(
                "--device cuda: nothing adds what adapters compute to products in fp8; set "
                "precision to bf16"
            )
        if form.dropout and self.fp8:  # what a product reads was rounded before
            raise UserError("--device cuda: no dropout in fp8; set precision to bf16")
        if dim % WIDTH:
            raise UserError(
                f"--device cuda: model.dim is {dim}; the kernels read {WIDTH} elements at a time, "
                f"so it must be a multiple of {WIDTH}; use --device cpu"
            )

    def repeats(self, layer: Sequence[type[BlockForm]], forms: Sequence[BlockForm]) -> bool:
        sizes = {form.head_size for form in forms if isinstance(form, AttentionForm)}
        return sizes <= {*HEAD_SIZES} and super().repeats(layer, forms)

    def activation_budget(self, state_bytes: int) -> int:
        """Nine tenths of the device's memory, less the training state and 1 GiB."""
        return max(0, int(0.9 * self.device.memory - state_bytes - 2**30))

    # ---- embedding

    def gather(
        self, x_ND: Array, index_R: np.ndarray | Array, out_RD: Array | None = None
    ) -> Array:
        # as whole numbers: CuPy does not know bfloat16
        bits = f"u{x_ND.itemsize}"
        out = None if out_RD is None else out_RD.view(bits)
        return x_ND.view(bits).take(cupy.asarray(index_R), axis=0, out=out).view(x_ND.dtype)

    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        if self.fp8:
            self.fp8.begin_pass()
        N, D = out_ND.shape
        arrays = ids_N, table_VD, out_ND
        self.launch_elementwise(self.sources.embedding(D), "embedding", N * D, *arrays, N)

    def scale(self, x_ND: Array, factor: float) -> None:
        N, D = x_ND.shape
        kernel = "scale_stream" if x_ND.dtype == self.residual else "scale_gradient"
        source, arguments = self.sources.embedding(D), (x_ND, float(factor), N)
        self.launch_elementwise(source, kernel, N * D, *arguments)

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, *, accumulate: bool
    ) -> None:
        (N, D), V = dout_ND.shape, len(dtable_VD)
        source, shift = self.sources.embedding(D), spread_shift(V)
        grid, threads = min(V, 1 << shift), row_warps(D) * WARP
        (order,) = self.scratch.take("embedding", ((N,), np.int32))
        arrays = ids_N, dout_ND, dtable_VD, order
        sizes = N, V, shift, accumulate
        self.launch(source, "embedding_backward", grid, threads, *arrays, *sizes)

    # ---- RMSNorm

    def rms_norm(self, norm: RmsNorm) -> None:
        x_ND, weight_D, epsilon, out_ND, inverse_rms_N = norm
        N, D = x_ND.shape
        warps = row_warps(D)
        out, copy = self.copies_of_norm(out_ND, weight_D)
        grid, threads = blocks(N, warps), warps * WARP
        arrays = x_ND, weight_D, epsilon, out, inverse_rms_N
        source = self.sources.rms_norm(D, fp8=copy.values is not None)
        self.launch(source, "rms_norm", grid, threads, *arrays, N, *copy)

    def add_rms_norm(self, x_ND: Array, delta_ND: Array, step_size: float, norm: RmsNorm) -> None:
        total_ND, weight_D, epsilon, out_ND, inverse_rms_N = norm
        N, D = x_ND.shape
        warps, copy = row_warps(D), self.copy_of("norm", out_ND)
        grid, threads = blocks(N, warps), warps * WARP
        inputs = x_ND, delta_ND, float(step_size), weight_D, epsilon
        outputs = total_ND, out_ND, inverse_rms_N
        source = self.sources.rms_norm(D, fp8=copy.values is not None)
        self.launch(source, "add_rms_norm", grid, threads, *inputs, *outputs, N, *copy)

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        x, _, step_size, norm, _ = step
        if isinstance(norm, LayerNorm):
            super().euler_step(inner_NI, weight_DI, step)
            return
        # the product adds x itself, in float32 before it rounds: that saves writing and reading
        # `delta`
        self.multiply_rows(inner_NI, weight_DI, norm.x_ND, step_size, x)
        self.rms_norm(norm)

    def rms_norm_backward(self, dout_ND: Array, norm: RmsNorm, into: NormGradients) -> None:
        x_ND, weight_D, _, _, inverse_rms_N = norm
        dx_ND, dweight_D, _, add_to_dx, accumulate, out_ND = into
        N, D = x_ND.shape
        warps = row_warps(D)
        out, copies, shared = self.copies_of_dx(dx_ND, out_ND)
        source = self.sources.rms_norm(D, fp8=copies[0] is not None)
        parts = min(row_blocks(D) * self.device.multiprocessors, blocks(N, warps))
        (partial,) = self.scratch.take("rms_norm", ((parts, D), np.float32))
        arrays = dout_ND, x_ND, weight_D, inverse_rms_N, dx_ND, add_to_dx, out, partial
        arguments = *arrays, N, *copies
        self.launch(source, "rms_norm_backward", parts, warps * WARP, *arguments, shared=shared)
        self.sum_weight_gradient(partial, dweight_D, accumulate=accumulate)

    def head_norm(self, x_NHE: Array, norm: HeadNorm) -> None:
        N, H, E = x_NHE.shape
        arrays = x_NHE, row_stride(x_NHE), norm.weight_E, norm.epsilon
        saved = norm.raw_NHE, norm.inverse_rms_NH
        arguments = *arrays, *saved, N, H
        grid = self.norm_blocks(N * H, E)
        self.launch(self.sources.head_norm(E), "head_norm", grid, ELEMENTWISE_THREADS, *arguments)

    def head_norm_backward(
        self, dx_NHE: Array, norm: HeadNorm, dweight_E: Array | None, *, accumulate: bool
    ) -> None:
        N, H, E = dx_NHE.shape
        if self.fp8:
            self.fp8.forget(dx_NHE)
        parts = min(HEAD_NORM_BLOCKS * self.device.multiprocessors, self.norm_blocks(N * H, E))
        partial = None
        if dweight_E is not None:
            (partial,) = self.scratch.take("head_norm", ((parts, E), np.float32))
        arrays = dx_NHE, row_stride(dx_NHE), norm.raw_NHE, norm.weight_E, norm.inverse_rms_NH
        source = self.sources.head_norm(E)
        threads = ELEMENTWISE_THREADS
        self.launch(source, "head_norm_backward", parts, threads, *arrays, partial, N, H)
        if dweight_E is not None:
            self.sum_weight_gradient(partial, dweight_E, accumulate=accumulate)

    def norm_blocks(self, heads: int, size: int) -> int:
        """Blocks that norm so many heads, all at once."""
        return heads if is_wide(size) else blocks(heads * size, ELEMENTWISE_THREADS * WIDTH)

    def sum_weight_gradient(self, partial: Array, dweight_D: Array, *, accumulate: bool) -> None:
        """Add up the rows of `partial`, each the sum of what one block took."""
        parts, D = partial.shape
        grid, threads = blocks(D, WARP), ADDING_WARPS * WARP
        sums = partial, parts, dweight_D, accumulate
        self.launch(self.sources.rms_norm(D), "sum_weight_gradient", grid, threads, *sums)

    # ---- rotary positions

    def rope(
        self, x_NHE: Array, positions_N: Array, table: RopeTable, *, inverse: bool = False
    ) -> None:
        N, H, E = x_NHE.shape
        pairs, direction = N * H * E // 2, -1.0 if inverse else 1.0
        arrays = x_NHE, row_stride(x_NHE), positions_N, *table
        self.launch_elementwise(self.sources.rope(E), "rope", pairs, *arrays, N, H, direction)

    def linear_rope(
        self, x_NI: Array, weight_OI: Array, out_NO: Array, rotated: list[Array], by: Rotation
    ) -> None:
        in_front = len(rotated) == 1 and rotated[0].data.ptr == out_NO.data.ptr
        _, H, E = rotated[0].shape
        if self.fused and self.fused.fits(len(x_NI)) and in_front and E in HEAD_SIZES:
            factors = self.factors(x_NI, weight_OI)
            self.fused.rope(x_NI, weight_OI, out_NO, H * E, *by, E, factors)
        else:
            super().linear_rope(x_NI, weight_OI, out_NO, rotated, by)

    # ---- attention

    def attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        if self.is_plain(heads):
            self.plain_attention(heads, starts_BT, offset_B, lse_BHT)
            return
        copy = NOT_QUANTIZED
        if self.fp8:
            B, T, H, E = heads.out.shape
            copy = self.copy_of("attention", heads.out.reshape(B * T, H * E))
        attention = self.heads(heads.query, heads.key)
        attention.forward(heads, starts_BT, offset_B, lse_BHT, copy)

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None = None,
    ) -> None:
        if self.is_plain(saved):
            self.plain_attention_backward(saved, gradients, starts_BT, lse_BHT, rotation)
            return
        heads, (B, T) = self.heads(saved.query, saved.key), saved.query.shape[:2]
        (workspace,) = self.scratch.take("attention", ((heads.workspace_bytes(B, T),), np.uint8))
        heads.backward(
            saved,
            gradients,
            starts_BT,
            lse_BHT,
            workspace,
            (rotation.positions_N, *rotation.table) if rotation else None,
            self.copies_of_heads(gradients),
        )

    def copies_of_heads(self, gradients: AttentionArrays) -> tuple[Quantized, Quantized, Quantized]:
        """Where copies of the gradients of query, key and value go, parts of one packed array."""
        if self.fp8 is None:
            return (NOT_QUANTIZED,) * 3
        parts = gradients.query, gradients.key, gradients.value
        B, T = gradients.query.shape[:2]
        sizes = [part.shape[2] * part.shape[3] for part in parts]
        shape = B * T, gradients.query.strides[1] // gradients.query.itemsize
        if sum(sizes) != shape[1]:  # padding, of which a copy would not be zero
            return (NOT_QUANTIZED,) * 3
        packed = cupy.ndarray(shape, gradients.query.dtype, gradients.query.data)
        values, slot = self.copy_of("dqkv", packed)
        if values is None:
            return (NOT_QUANTIZED,) * 3
        starts = [(part.data.ptr - packed.data.ptr) // packed.itemsize for part in parts]
        query, key, value = (Quantized(values[0, start:], slot) for start in starts)
        return query, key, value

    def heads(self, query_BTHE: Array, key_BSGE: Array) -> Attention:
        """The attention of these numbers of heads."""
        shape = query_BTHE.shape[2], key_BSGE.shape[2], query_BTHE.shape[3]
        if shape not in self.attentions:
            unit = UNIT_OF[self.form] if self.portable else None
            self.attentions[shape] = Attention(self.kernels, *shape, self.form, unit)
        return self.attentions[shape]

    def write_cache(self, cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> Array:
        (B, S, G, E), T = cache_BSGE.shape, new_BTGE.shape[1]
        strides = row_stride(new_BTGE), np.int64(cache_BSGE.strides[0] // cache_BSGE.itemsize)
        source, elements = self.sources.cache(G * E), B * T * G * E
        arrays = new_BTGE, strides[0], offset_B, cache_BSGE
        self.launch_elementwise(source, "write_cache", elements, *arrays, B * T, T, S, strides[1])
        return cache_BSGE

    # ---- SwiGLU

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        arrays = gate_NF, up_NF, row_stride(gate_NF), out_NF
        self.launch_on_rows("swiglu", "swiglu", out_NF, *arrays)

    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
    ) -> None:
        inputs = dout_NF, gate_NF, up_NF, row_stride(gate_NF)
        outputs = dgate_NF, dup_NF, row_stride(dgate_NF), out_NF
        self.launch_on_rows("swiglu", "swiglu_backward", dout_NF, *inputs, *outputs)

    def linear_swiglu(self, x_NI: Array, weight_OI: Array, product: GateUp, out_NF: Array) -> None:
        if self.fused and self.fused.fits(*out_NF.shape):
            factors = self.factors(x_NI, weight_OI)
            copy = self.copy_of("hidden", out_NF, in_place=True)
            packed = product.packed_NO, product.up.start
            self.fused.swiglu(x_NI, weight_OI, *packed, out_NF, factors, copy)
            if factors is None:
                self.measure(out_NF, copy)
        else:
            super().linear_swiglu(x_NI, weight_OI, product, out_NF)

    def linear_swiglu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, product: GateUp, out_NF: Array
    ) -> None:
        if self.fused and self.fused.fits(*out_NF.shape):
            packed_NO = product.packed_NO
            arrays = dx_ND, weight_DF, scale, packed_NO, product.up.start, out_NF
            quantized = self.copies_of_mlp("dgate_up", packed_NO, out_NF, dx_ND, weight_DF)
            if quantized is None:
                self.fused.swiglu_backward(*arrays)
                return
            factors, copies = quantized
            self.fused.swiglu_backward(*arrays, factors, copies)
            if factors is None:
                self.measure(packed_NO, copies[0])
                self.measure(out_NF, copies[2])
        else:
            super().linear_swiglu_backward(dx_ND, weight_DF, scale, product, out_NF)

    # ---- ReLU²

    def relu2(self, x_NF: Array, out_NF: Array) -> None:
        self.launch_on_rows("relu2", "relu2", x_NF, x_NF, out_NF)

    def relu2_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        self.launch_on_rows("relu2", "relu2_backward", x_NF, dout_NF, x_NF, dx_NF, out_NF)
