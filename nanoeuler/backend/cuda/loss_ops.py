"""The losses of training on a GPU, and the gradients of logits."""

import cupy
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.kernel_sources import (
    PAIR_THREADS,
    SUM_THREADS,
    loss_threads,
)
from nanoeuler.backend.cuda.kernels import row_stride
from nanoeuler.backend.cuda.quantized_ops import QuantizedOps
from nanoeuler.backend.records import LogitRows, PreferencePairs


class LossOps(QuantizedOps):
    """Kernels of cross_entropy.cu, losses.cu and preference.cu."""

    def cross_entropy(self, rows: LogitRows) -> None:
        arrays = rows.targets_R, rows.logprobs_R, rows.lse_R
        self.launch_rows("cross_entropy", rows.logits_RV, *arrays)

    def cross_entropy_backward(self, rows: LogitRows) -> None:
        arrays = rows.targets_R, rows.weights_R, rows.lse_R
        self.launch_gradient("cross_entropy_backward", rows.logits_RV, *arrays)

    def cross_entropy_with_gradient(self, rows: LogitRows) -> None:
        arrays = rows.targets_R, rows.weights_R, rows.logprobs_R, rows.lse_R
        self.launch_gradient("cross_entropy_with_gradient", rows.logits_RV, *arrays)

    def argmax(self, logits_RV: Array) -> Array:
        likeliest = self.empty((len(logits_RV),), np.int32)
        self.launch_rows("argmax", logits_RV, likeliest)
        return likeliest

    def launch_rows(self, kernel: str, logits_RV: Array, *arrays: Array) -> None:
        R, V = logits_RV.shape
        source, stride = self.sources.cross_entropy(V), row_stride(logits_RV)
        self.launch(source, kernel, R, loss_threads(V), logits_RV, stride, *arrays)

    def launch_gradient(self, kernel: str, logits_RV: Array, *arrays: Array) -> None:
        """Launch a kernel that overwrites logits with their gradient."""
        (R, V), stride = logits_RV.shape, row_stride(logits_RV)
        whole = cupy.ndarray((R, int(stride)), logits_RV.dtype, logits_RV.data)  # with padding
        copy = self.copy_of("dlogits", whole, wide=True)
        source = self.sources.cross_entropy(V, fp8=copy.values is not None)
        self.launch(source, kernel, R, loss_threads(V), logits_RV, stride, *arrays, *copy)

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        N, K = logprobs_NK.shape
        arrays = logprobs_NK, weights_NK, N * K, K, losses_2
        self.launch(self.sources.losses(), "add_losses", 1, SUM_THREADS, *arrays)

    def preference(
        self,
        logprobs_RTK: Array,
        pairs: PreferencePairs,
        margin: float,
        smoothing: float,
        weights_RTK: Array,
        losses_2: Array,
    ) -> None:
        (R, T, K), P = logprobs_RTK.shape, pairs.shares_RP.shape[1]
        source = self.sources.preference()
        (pair_losses,) = self.scratch.take("preference", ((R, P), np.float64))
        inputs = logprobs_RTK, *pairs, np.float64(margin), np.float64(smoothing)
        outputs = weights_RTK, pair_losses
        self.launch(source, "preference", R * P, PAIR_THREADS, *inputs, *outputs, P, T, K)
        self.launch(source, "add_pair_losses", 1, PAIR_THREADS, pair_losses, R * P, losses_2)
