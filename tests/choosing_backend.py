"""An engine that chooses tokens itself, as a device does, without a device."""

import numpy as np

from nanoeuler.backend import reference_drafts
from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.sampling import Sampling, sample


class ChoosingReference(ReferenceBackend, ChoosingBackend):
    """The reference, which computes what a device would: its arrays stay its own."""

    keeps_caches = True
    lay_out_drafts = staticmethod(reference_drafts.lay_out_drafts)
    accept_drafts = staticmethod(reference_drafts.accept_drafts)
    drafted_tokens, draft_cost = 4, 0.13  # as on a GPU

    def to_host(self, array):
        return np.array(array)

    def choose(self, logits_BV, allowed_V, rows, ring=None, masks_BW=None):
        settings, draws_B, chosen_B, tokens_B, lengths_B = rows
        settings_B4 = np.broadcast_to(settings, (len(draws_B), 4))
        shares = settings_B4[:, :2].copy().view(np.float64)
        seeds = settings_B4[:, 2].copy().view(np.uint64)
        samplings = [
            Sampling(float(temperature), int(top_k), float(top_p) or 1.0, int(seed))
            for (temperature, top_p), seed, top_k in zip(
                shares, seeds, settings_B4[:, 3], strict=True
            )
        ]
        allowed = allowed_V.astype(bool)
        if masks_BW is not None:
            V = len(allowed_V)
            allowed = allowed & np.unpackbits(
                masks_BW.view(np.uint8), axis=1, count=V, bitorder="little"
            ).astype(bool)
        chosen_B[...] = sample(logits_BV[:, : len(allowed_V)], samplings, draws_B, allowed)
        tokens_B[...] = chosen_B
        draws_B += 1
        if lengths_B is not None:
            lengths_B += 1
        if ring:
            ring.write()

    def score(self, logits_BV, tokens_B, logprobs_B):
        top_B1 = logits_BV.max(axis=1, keepdims=True)
        lse_B = np.log(np.exp(logits_BV - top_B1).sum(axis=1)) + top_B1[:, 0]
        logprobs_B[...] = logits_BV[np.arange(len(tokens_B)), tokens_B] - lse_B
