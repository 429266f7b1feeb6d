"""The ops on a GPU of the forms that released models vary, without a fast path of their own."""

import numpy as np

from nanoeuler.backend.cuda.attention import HEAD_SIZES, view
from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS, WIDTH
from nanoeuler.backend.cuda.kernels import WARP, Argument, blocks, row_stride
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.dropout import threshold
from nanoeuler.backend.records import Array, AttentionArrays, Rotation

PLAIN_HEAD_SIZES = (*HEAD_SIZES, WARP * WIDTH)
"""Sizes of heads that attention takes with tiles or without."""


class FormOps(CudaParts):
    """Kernels of plain_attention.cu, soft_cap.cu, dropout.cu, geglu.cu, and the windows of
    cache.cu."""

    # ---- attention without tiles

    def is_plain(self, heads: AttentionArrays) -> bool:
        """Do these heads lack tiles, or have their scores a cap?"""
        return bool(heads.cap) or heads.query.shape[3] not in HEAD_SIZES

    def plain_attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        query, key, value, out, _ = heads
        inputs = *view(query), *view(key), *view(value), starts_BT, offset_B
        sizes = query.shape[1], key.shape[1]
        self.launch_plain("plain_attention", heads, query, *inputs, *view(out), lse_BHT, *sizes)

    def plain_attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None,
    ) -> None:
        query, key, value, out, _ = saved
        T = query.shape[1]
        (products,) = self.scratch.take("attention", (lse_BHT.shape, np.float32))
        inputs = *view(gradients.out), *view(query), *view(key), *view(value), starts_BT
        both = lse_BHT, products
        outputs = *both, *view(gradients.query), T
        self.launch_plain("plain_attention_dquery", saved, query, *inputs, *view(out), *outputs)
        others = *both, *view(gradients.key), *view(gradients.value), T
        self.launch_plain("plain_attention_dkey", saved, key, *inputs, *others)
        if rotation:
            for gradient in (gradients.query, gradients.key):
                self.rope(gradient.reshape(-1, *gradient.shape[2:]), *rotation, inverse=True)

    def launch_plain(
        self, kernel: str, heads: AttentionArrays, like: Array, *arguments: Argument
    ) -> None:
        """A warp for each head of each token of `like`."""
        B, T, H, E = like.shape
        shape = heads.query.shape[2], heads.key.shape[2], E**-0.5, float(heads.cap)
        grid, threads = (blocks(T, ELEMENTWISE_THREADS // WARP), H, B), ELEMENTWISE_THREADS
        source = self.sources.plain_attention(E)
        self.launch(source, kernel, grid, threads, *arguments, *shape)

    def window_starts(
        self, starts_BT: Array, offset_B: Array, window: int, last: int, out_BT: Array
    ) -> None:
        B, T = starts_BT.shape
        arguments = starts_BT, offset_B, window, last, out_BT, B * T, T
        grid, threads = blocks(B * T, ELEMENTWISE_THREADS), ELEMENTWISE_THREADS
        self.launch(self.sources.cache(WIDTH), "window_starts", grid, threads, *arguments)

    # ---- soft caps

    def soft_cap(self, x_NV: Array, cap: float, slope_NV: Array | None = None) -> None:
        kernel = "soft_cap" if x_NV.dtype == self.activation else "soft_cap_float"
        self.launch_on_rows("soft_cap", kernel, x_NV, x_NV, float(cap), slope_NV)

    def soft_cap_backward(self, dx_NV: Array, slope_NV: Array) -> None:
        if self.fp8:
            self.fp8.forget(dx_NV)
        self.launch_on_rows("soft_cap", "soft_cap_backward", dx_NV, dx_NV, slope_NV)

    # ---- dropout

    def dropout(self, x_NI: Array, seeds_N: Array, salt: int, share: float, out_NI: Array) -> None:
        arrays = x_NI, row_stride(x_NI), seeds_N, salt, threshold(share).view(np.int32)
        self.launch_on_rows("dropout", "dropout", out_NI, *arrays, out_NI, row_stride(out_NI))

    # ---- GEGLU

    def geglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        arrays = gate_NF, up_NF, row_stride(gate_NF), out_NF
        self.launch_on_rows("geglu", "geglu", out_NF, *arrays)

    def geglu_backward(
        self, dout_NF: Array, gate_NF: Array, up_NF: Array, dgate_NF: Array, dup_NF: Array
    ) -> None:
        inputs = dout_NF, gate_NF, up_NF, row_stride(gate_NF)
        outputs = dgate_NF, dup_NF, row_stride(dgate_NF)
        self.launch_on_rows("geglu", "geglu_backward", dout_NF, *inputs, *outputs)
