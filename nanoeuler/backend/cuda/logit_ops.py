"""What follows the logits on a GPU: losses and gradients, and the choice and drafts of tokens."""

import cupy
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.backend.cuda.decoding_sizes import (
    FEW_ROWS,
    choosing_blocks,
    choosing_bytes,
    choosing_threads,
)
from nanoeuler.backend.cuda.kernel_sources import (
    ELEMENTWISE_THREADS,
    PAIR_THREADS,
    SUM_THREADS,
    loss_threads,
)
from nanoeuler.backend.cuda.kernels import row_stride
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.cuda.runtime import DeviceHostRing
from nanoeuler.backend.records import ChoiceRows, DraftRows, LogitRows, PreferencePairs
from nanoeuler.backend.runtime import HostRing


class LogitOps(CudaParts, ChoosingBackend):
    """Kernels of cross_entropy.cu, losses.cu and preference.cu, and of sampling.cu, score.cu and
    drafts.cu."""

    drafted_tokens = FEW_ROWS

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

    # ---- tokens that the GPU chooses and drafts itself

    def choose(
        self,
        logits_BV: Array,
        allowed_V: Array,
        rows: ChoiceRows,
        ring: HostRing | None = None,
        masks_BW: Array | None = None,
    ) -> None:
        """Choose the next token of each row, see sampling.cu."""
        V, stride = len(allowed_V), np.int64(logits_BV.shape[1])
        masked, clusters = masks_BW is not None, self.has_clusters
        source = self.sources.sampling(V, clusters=clusters, masked=masked)
        threads, shared = choosing_threads(V), choosing_bytes(V, clusters=clusters)
        own = int(rows.settings.ndim == 2)  # each row's
        inputs = logits_BV, stride, allowed_V, masks_BW, rows.settings, own
        assert ring is None or isinstance(ring, DeviceHostRing)
        slots = ring.target if ring else (None, None, 0)
        arguments = *inputs, *rows[1:], *slots
        grid = len(logits_BV) * choosing_blocks(V, clusters=clusters)
        self.launch(source, "choose", grid, threads, *arguments, shared=shared, early=True)

    def score(self, logits_BV: Array, tokens_B: Array, logprobs_B: Array) -> None:
        (B, V), stride = logits_BV.shape, row_stride(logits_BV)
        source, arrays = self.sources.score(V), (logits_BV, stride, tokens_B, logprobs_B)
        self.launch(source, "score", B, loss_threads(V), *arrays, early=True)

    def lay_out_drafts(
        self,
        rows: DraftRows,
        drafted_BH: Array,
        text_BS: Array,
        ids_BT: Array,
        positions_BT: Array,
        counters_BT: Array,
    ) -> None:
        B, T = ids_BT.shape
        inputs = rows.tokens_B, drafted_BH, rows.lengths_B, rows.draws_B
        outputs = rows.drafts_BM, ids_BT, positions_BT, counters_BT
        arguments = *inputs, text_BS, *outputs, drafted_BH.shape[1], text_BS.shape[1]
        self.launch(self.sources.drafts(T), "lay_out", B, ELEMENTWISE_THREADS, *arguments)

    def accept_drafts(self, chosen_BT: Array, x_ND: Array, rows: DraftRows, last_BD: Array) -> None:
        B, T = chosen_BT.shape
        tokens, drafts, lengths, draws = rows
        arrays = chosen_BT, drafts, x_ND, tokens, lengths, draws, last_BD
        arguments = *arrays, x_ND.shape[1]
        self.launch(self.sources.drafts(T), "accept_drafts", B, ELEMENTWISE_THREADS, *arguments)
