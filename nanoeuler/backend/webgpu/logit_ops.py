"""What follows the logits: losses and their gradients, and the likeliest token. See losses.wgsl."""

from typing import Any

import numpy as np

from nanoeuler.backend.records import LogitRows, PreferencePairs
from nanoeuler.backend.webgpu.arrays import DeviceArray
from nanoeuler.backend.webgpu.kernels import flat_grid
from nanoeuler.backend.webgpu.parts import WebGpuParts

Array = DeviceArray


class LogitOps(WebGpuParts):
    def cross_entropy(self, rows: LogitRows) -> None:
        arrays = {"targets": rows.targets_R, "logprobs": rows.logprobs_R, "lse": rows.lse_R}
        self.launch_on_logits("cross_entropy", rows.logits_RV, **arrays)

    def cross_entropy_backward(self, rows: LogitRows) -> None:
        arrays = {"targets": rows.targets_R, "weights": rows.weights_R, "lse": rows.lse_R}
        scale = {"loss_scale": self.loss_scale}
        self.launch_on_logits("cross_entropy_backward", rows.logits_RV, **arrays, **scale)

    def argmax(self, logits_RV: Array) -> Array:
        likeliest = self.empty((len(logits_RV),), np.int32)
        self.launch_on_logits("argmax", logits_RV, likeliest=likeliest)
        return likeliest

    def launch_on_logits(self, kernel: str, logits_RV: Array, **given: Any) -> None:
        R, V = logits_RV.shape
        if R:
            numbers = {"rows": R, "columns": V}
            self.launch("losses", kernel, flat_grid(R), logits=logits_RV, **given, **numbers)

    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        N, K = logprobs_NK.shape
        arrays = {"logprobs": logprobs_NK, "weights": weights_NK, "losses": losses_2}
        self.launch("losses", "add_losses", (1,), **arrays, count=N * K, heads=K)

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
        pair_losses = self.kernels.take("preference", (R, P), np.float64)
        spans, reference, scales, shares = pairs
        self.launch(
            "losses",
            "preference",
            (P, R),
            logprobs=logprobs_RTK,
            spans=spans,
            reference=reference,
            scales=scales,
            shares=shares,
            weights=weights_RTK,
            pair_losses=pair_losses,
            count=P,
            tokens=T,
            heads=K,
            margin=margin,
            smoothing=smoothing,
        )
        found = {"pair_losses": pair_losses, "losses": losses_2, "count": R * P}
        self.launch("losses", "add_pair_losses", (1,), **found)
