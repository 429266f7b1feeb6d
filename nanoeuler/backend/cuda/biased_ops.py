"""The ops of the GPT-2 family on a GPU: biases, learned positions, LayerNorm and GELU."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.backend.cuda.device import Device
from nanoeuler.backend.cuda.kernel_sources import (
    ADDING_WARPS,
    ELEMENTWISE_THREADS,
    WARP,
    WIDTH,
    KernelSources,
    Source,
    row_warps,
)
from nanoeuler.backend.cuda.kernels import Argument, blocks
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, LayerNorm

if TYPE_CHECKING:
    from nanoeuler.backend.cuda.cublaslt import CublasLt

SUM_BLOCKS = 4
"""Blocks of a multiprocessor that add up a bias's gradient."""


class BiasedOps(Backend):
    """Kernels of layer_norm.cu, gelu.cu and embedding.cu."""

    device: Device
    sources: KernelSources
    scratch: Scratch
    launch: Callable[..., None]
    products: "CublasLt"

    @abstractmethod
    def launch_elementwise(
        self, source: Source, kernel: str, elements: int, *arguments: Argument
    ) -> None:
        """Launch threads that take `WIDTH` elements each."""

    # ---- biases

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        N, O = out_NO.shape  # noqa: E741
        self.launch_elementwise(self.sources.gelu(O), "add_bias", N * O, out_NO, bias_O, N)

    def linear_bias(self, x_NI: Array, weight_OI: Array, bias_O: Array, out_NO: Array) -> None:
        if not self.products.multiply_biased(x_NI, weight_OI, out_NO, bias_O, None):
            super().linear_bias(x_NI, weight_OI, bias_O, out_NO)

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        N, O = dout_NO.shape  # noqa: E741
        columns = blocks(O, WARP * WIDTH)
        rows = blocks(N, ELEMENTWISE_THREADS // WARP)
        parts = max(1, min(rows, SUM_BLOCKS * self.device.multiprocessors // columns))
        (partial,) = self.scratch.take("bias", ((parts, O), np.float32))
        source, threads = self.sources.gelu(O), ELEMENTWISE_THREADS
        self.launch(source, "bias_backward", (columns, parts), threads, dout_NO, partial, N)
        sums = partial, parts, dbias_O, float(scale), accumulate
        self.launch(source, "sum_bias", blocks(O, threads), threads, *sums)

    # ---- embedding

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        N, D = out_ND.shape
        arrays = ids_N, table_VD, positions_N, position_table_PD, len(position_table_PD), out_ND
        self.launch_elementwise(self.sources.embedding(D), "embedding_at", N * D, *arrays, N)

    # ---- LayerNorm

    def layer_norm(self, norm: LayerNorm) -> None:
        x, weight, bias, epsilon, out, inverse_rms = norm
        N, D = x.shape
        warps = row_warps(D)
        arrays = x, weight, bias, float(epsilon), out, inverse_rms
        source, grid = self.sources.layer_norm(D), blocks(N, warps)
        self.launch(source, "layer_norm", grid, warps * WARP, *arrays, N)

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        total, weight, bias, epsilon, out, inverse_rms = norm
        N, D = x_ND.shape
        warps = row_warps(D)
        inputs = x_ND, delta_ND, bias_D, float(step_size)
        outputs = total, weight, bias, float(epsilon), out, inverse_rms
        source, grid = self.sources.layer_norm(D), blocks(N, warps)
        self.launch(source, "add_layer_norm", grid, warps * WARP, *inputs, *outputs, N)

    def layer_norm_backward(
        self,
        dout_ND: Array,
        norm: LayerNorm,
        dx_ND: Array,
        dweight_D: Array,
        dbias_D: Array,
        *,
        add_to_dx: bool,
        accumulate: bool,
        out_ND: Array | None = None,
    ) -> None:
        x, weight, bias, _, _, inverse_rms = norm
        N, D = x.shape
        source, warps = self.sources.layer_norm(D), row_warps(D)
        most = self.sources.layer_norm_blocks(D) * self.device.multiprocessors
        parts = min(most, blocks(N, warps))
        (partial,) = self.scratch.take("layer_norm", ((parts, 2 * D), np.float32))
        arrays = dout_ND, x, weight, bias, inverse_rms, dx_ND, add_to_dx, out_ND, partial
        self.launch(source, "layer_norm_backward", parts, warps * WARP, *arrays, N)
        grid, sums = blocks(2 * D, WARP), (partial, parts, dweight_D, dbias_D, accumulate)
        self.launch(source, "sum_gradients", grid, ADDING_WARPS * WARP, *sums)

    # ---- GELU

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        self.bias_gelu(x_NF, None, out_NF)

    def bias_gelu(self, x_NF: Array, bias_F: Array | None, out_NF: Array) -> None:
        """x += bias, out = gelu(x)"""
        N, F = x_NF.shape
        arrays = x_NF, bias_F, out_NF
        self.launch_elementwise(self.sources.gelu(F), "bias_gelu", N * F, *arrays, N)

    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        N, F = x_NF.shape
        arrays = dout_NF, x_NF, dx_NF, out_NF
        self.launch_elementwise(self.sources.gelu(F), "gelu_backward", N * F, *arrays, N)

    def linear_gelu(
        self, x_NI: Array, weight_FI: Array, bias_F: Array, up_NF: Array, out_NF: Array
    ) -> None:
        if not self.products.multiply_biased(x_NI, weight_FI, out_NF, bias_F, up_NF):
            self.linear(x_NI, weight_FI, up_NF)
            self.bias_gelu(up_NF, bias_F, out_NF)
