"""Tokens that the GPU chooses and drafts itself."""

import numpy as np

from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.backend.cuda.decoding_sizes import (
    FEW_ROWS,
    choosing_blocks,
    choosing_bytes,
    choosing_threads,
)
from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.cuda.staging import DeviceHostRing
from nanoeuler.backend.records import Array, DraftRows
from nanoeuler.backend.runtime import HostRing


class ChoosingOps(CudaParts, ChoosingBackend):
    """Kernels of sampling.cu and drafts.cu."""

    drafted_tokens = FEW_ROWS

    def choose(
        self,
        logits_BV: Array,
        allowed_V: Array,
        settings: Array,
        draws_B: Array,
        chosen_B: Array,
        tokens_B: Array,
        lengths_B: Array | None,
        ring: HostRing | None = None,
    ) -> None:
        """Choose the next token of each row, see sampling.cu."""
        V, stride = len(allowed_V), np.int64(logits_BV.shape[1])
        source = self.sources.sampling(V, clusters=self.has_clusters)
        threads, shared = choosing_threads(V), choosing_bytes(V, clusters=self.has_clusters)
        own = int(settings.ndim == 2)  # each row's
        inputs = logits_BV, stride, allowed_V, settings, own, draws_B
        assert ring is None or isinstance(ring, DeviceHostRing)
        slots = ring.target if ring else (None, None, 0)
        arguments = *inputs, chosen_B, tokens_B, lengths_B, *slots
        grid = len(logits_BV) * choosing_blocks(V, clusters=self.has_clusters)
        self.launch(source, "choose", grid, threads, *arguments, shared=shared, early=True)

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
