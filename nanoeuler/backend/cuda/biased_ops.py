"""The ops of the GPT-2 family on a GPU: biases, learned positions, LayerNorm and GELU."""

import numpy as np

from nanoeuler.backend.cuda.fp8 import NOT_QUANTIZED
from nanoeuler.backend.cuda.kernel_sources import (
    ADDING_WARPS,
    ELEMENTWISE_THREADS,
    WIDTH,
    row_warps,
)
from nanoeuler.backend.cuda.kernels import WARP, blocks
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.records import Array, EulerStep, LayerNorm, NormGradients

SUM_BLOCKS = 4
"""Blocks of a multiprocessor that add up a bias's gradient."""


class BiasedOps(CudaParts):
    """Kernels of layer_norm.cu, gelu.cu and embedding.cu."""

    # ---- biases

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        self.launch_on_rows("gelu", "add_bias", out_NO, out_NO, bias_O)

    def linear_bias(self, x_NI: Array, weight_OI: Array, bias_O: Array, out_NO: Array) -> None:
        if not self.multiply_biased(x_NI, weight_OI, out_NO, bias_O):
            super().linear_bias(x_NI, weight_OI, bias_O, out_NO)

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        N, O = dout_NO.shape  # noqa: E741
        columns = blocks(O, WARP * WIDTH)
        rows = blocks(N, ELEMENTWISE_THREADS // WARP)
        parts = max(1, min(rows, SUM_BLOCKS * self.device.multiprocessors // columns))
        (partial,) = self.scratch.take("bias", ((parts, O), np.float32))
        source, threads = self.sources.elementwise("gelu", O), ELEMENTWISE_THREADS
        self.launch(source, "bias_backward", (columns, parts), threads, dout_NO, partial, N)
        sums = partial, parts, dbias_O, float(scale), accumulate
        self.launch(source, "sum_bias", blocks(O, threads), threads, *sums)

    def linear_bias_backward(
        self,
        dout_NO: Array,
        x_NI: Array,
        dweight_OI: Array,
        dbias_O: Array,
        *,
        accumulate: bool,
        scale: float = 1,
    ) -> None:
        factors = self.transposed_factors(dout_NO, x_NI)
        if factors is None:
            arrays = dout_NO, x_NI, dweight_OI, dbias_O
            super().linear_bias_backward(*arrays, accumulate=accumulate, scale=scale)
            return
        self.multiply_e4m3(factors, dweight_OI, scale, dweight_OI if accumulate else None)
        N, O = dout_NO.shape  # noqa: E741
        grid, threads = blocks(O, ELEMENTWISE_THREADS // WARP), ELEMENTWISE_THREADS
        arguments = *factors[0], dbias_O, float(scale), accumulate, N
        self.launch(
            self.sources.elementwise("gelu", O),
            "bias_backward_transposed",
            grid,
            threads,
            *arguments,
        )

    # ---- embedding

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        if self.fp8:
            self.fp8.begin_pass()
        N, D = out_ND.shape
        arrays = ids_N, table_VD, positions_N, position_table_PD, len(position_table_PD), out_ND
        self.launch_elementwise(self.sources.embedding(D), "embedding_at", N * D, *arrays, N)

    # ---- LayerNorm

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        x, _, step_size, norm, bias = step
        quantized = self.factors(inner_NI, weight_DI) is not None
        adds = quantized and step_size == 1 and self.residual == self.activation
        if adds and self.multiply_biased(inner_NI, weight_DI, norm.x_ND, bias, x):
            self.norm(norm)
        else:
            super().euler_step(inner_NI, weight_DI, step)

    def layer_norm(self, norm: LayerNorm) -> None:
        x, weight, bias, epsilon, out, inverse_rms = norm
        N, D = x.shape
        warps = row_warps(D)
        written, copy = self.copies_of_norm(out, weight)
        arrays = x, weight, bias, float(epsilon), written, inverse_rms
        source = self.sources.layer_norm(D, fp8=copy.values is not None)
        self.launch(source, "layer_norm", blocks(N, warps), warps * WARP, *arrays, N, *copy)

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        total, weight, bias, epsilon, out, inverse_rms = norm
        N, D = x_ND.shape
        warps = row_warps(D)
        written, copy = self.copies_of_norm(out, weight)
        inputs = x_ND, delta_ND, bias_D, float(step_size)
        outputs = total, weight, bias, float(epsilon), written, inverse_rms
        source, grid = self.sources.layer_norm(D, fp8=copy.values is not None), blocks(N, warps)
        self.launch(source, "add_layer_norm", grid, warps * WARP, *inputs, *outputs, N, *copy)

    def layer_norm_backward(self, dout_ND: Array, norm: LayerNorm, into: NormGradients) -> None:
        x, weight, bias, _, _, inverse_rms = norm
        dx_ND, dweight_D, dbias_D, add_to_dx, accumulate, out_ND = into
        N, D = x.shape
        out, copies, shared = self.copies_of_dx(dx_ND, out_ND)
        source, warps = self.sources.layer_norm(D, fp8=copies[0] is not None), row_warps(D)
        most = self.sources.layer_norm_blocks(D) * self.device.multiprocessors
        parts = min(most, blocks(N, warps))
        (partial,) = self.scratch.take("layer_norm", ((parts, 2 * D), np.float32))
        arrays = dout_ND, x, weight, bias, inverse_rms, dx_ND, add_to_dx, out, partial
        arguments = *arrays, N, *copies
        self.launch(source, "layer_norm_backward", parts, warps * WARP, *arguments, shared=shared)
        grid, sums = blocks(2 * D, WARP), (partial, parts, dweight_D, dbias_D, accumulate)
        self.launch(source, "sum_gradients", grid, ADDING_WARPS * WARP, *sums)

    # ---- GELU

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        self.bias_gelu(x_NF, None, out_NF)

    def bias_gelu(self, x_NF: Array, bias_F: Array | None, out_NF: Array) -> None:
        """x += bias, out = gelu(x)"""
        self.launch_on_rows("gelu", "bias_gelu", x_NF, x_NF, bias_F, out_NF)

    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        self.launch_on_rows("gelu", "gelu_backward", x_NF, dout_NF, x_NF, dx_NF, out_NF)

    def linear_gelu(
        self, x_NI: Array, weight_FI: Array, bias_F: Array, up_NF: Array, out_NF: Array
    ) -> None:
        factors, copy = self.factors(x_NI, weight_FI), NOT_QUANTIZED
        if self.fused and self.fused.fits(*out_NF.shape):
            copy = self.copy_of("hidden", out_NF, in_place=True)
            if factors:
                self.fused.gelu(bias_F, up_NF, factors, copy)
                return
        if factors:
            super().linear_gelu(x_NI, weight_FI, bias_F, up_NF, out_NF)
        elif not self.products.multiply_biased(x_NI, weight_FI, out_NF, bias_F, up_NF):
            self.linear(x_NI, weight_FI, up_NF)
            self.bias_gelu(up_NF, bias_F, out_NF)
        self.measure(out_NF, copy)

    def linear_gelu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, up_NF: Array, out_NF: Array
    ) -> None:
        arrays = dx_ND, weight_DF, scale, up_NF, out_NF
        quantized = None
        if self.fused and self.fused.fits(*out_NF.shape):
            quantized = self.copies_of_mlp("dup", up_NF, out_NF, dx_ND, weight_DF)
        if self.fused is None or quantized is None:
            super().linear_gelu_backward(*arrays)
            return
        factors, copies = quantized
        if factors:
            self.fused.gelu_backward(scale, up_NF, factors, copies)
        else:
            super().linear_gelu_backward(*arrays)
            self.measure(up_NF, copies[0])
            self.measure(out_NF, copies[2])
