"""Continue rows of tokens together where a device samples, some steps ahead of the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoeuler.backend.capabilities import NOT_KEPT, ChoosingBackend
from nanoeuler.inference.decoder import AnyRow, Decoder, Row
from nanoeuler.inference.sampling import check, packed
from nanoeuler.inference.speculation import DeviceSpeculation, Taken
from nanoeuler.model.cache import Cache
from nanoeuler.model.sampler import (
    AHEAD,
    DeviceLoop,
    DraftingSampler,
    FormSampler,
    Sampler,
    ScoringSampler,
)
from nanoeuler.model.transformer import Transformer

PROMPT_MULTIPLE = 64
"""A device reads prompts whose lengths are rounded up to a multiple of this many tokens."""


class DeviceDecoder(Decoder[AnyRow]):
    """The device of a `ChoosingBackend` samples, and is some steps ahead of the host.

    Where rows come and go, steps that are under way are collected all the same, and rows are padded
    to a power of two, so that few steps are recorded. Otherwise rows that are removed stay until
    they are half of all, and then make such steps void: another number of rows may round otherwise.
    """

    prompt_multiple = PROMPT_MULTIPLE

    sampler: DeviceLoop
    """The loop that launched the steps not yet collected."""
    drafts = 0
    """Drafts of each of these steps."""
    wants_logits = False
    """Does any of their rows?"""

    def __init__(self, *arguments: Any, **named: Any):
        self.launched: list[AnyRow] = []
        """Rows of these steps."""
        super().__init__(*arguments, **named)

    @staticmethod
    def spare(model: Transformer) -> int:
        # a row that ends is seen to end when its next steps are under way
        return AHEAD * model.backend.drafted_tokens

    def remove(self, row: AnyRow) -> None:
        if self.joining:
            return super().remove(row)
        row.left, row.calls = True, None
        left = [each for each in self.rows if each.left]
        if self.speculation is None and 2 * len(left) < len(self.rows):
            return  # steps of another number of rows would have to be recorded
        self.discard()
        for each in left:
            super().remove(each)

    def discard(self) -> None:
        """Results of steps launched ahead are discarded."""
        if self.launched and not self.drafts:  # which the cache counts with the rows of then
            launched = set(self.launched)
            ahead = [row in launched for row in self.rows]
            self.cache.lengths -= self.sampler.ring.waiting * np.array(ahead, np.int32)
        self.launched = []

    def clear(self) -> None:
        super().clear()
        self.launched = []

    def prefill(
        self, cache: Cache, prompts: Sequence[Sequence[int]], replies: Sequence[Row]
    ) -> np.ndarray | None:
        sampler = self.sampler_kind(replies).of(self.model, cache, self.allowed_V)
        first = replies[: len(prompts)]
        sampler.start(cache, *self.padded(prompts), *settings_and_positions(first))
        self.take(first, sampler)
        for row in replies[len(prompts) :]:
            sampler.again(*settings_and_positions([row]))
            self.take([row], sampler)
        return self.logits(sampler, 1) if any(row.wants_logits for row in replies) else None

    def next(self) -> tuple[list[AnyRow], np.ndarray | None]:
        wanted = self.wanted_drafts()
        if all(row.left for row in self.launched):
            self.start(wanted)
        if self.launched == self.rows:
            self.launch_ahead(wanted)
        rows, sampler, passes = self.launched, self.sampler, []
        if self.drafts:
            passes = self.take_drafts(rows)
        else:
            self.take(rows, sampler)
        if speculation := self.drafting(rows):
            speculation.note(passes or [Taken(row.ids[-1:]) for row in rows])
        logits_BV = self.logits(sampler, len(rows)) if self.wants_logits else None
        if self.gives():  # the steps ahead have read other tokens
            self.discard()
        if sampler.ring.waiting == 0 or not self.launched:
            self.launched = []
            if self.joining:  # so that the device goes on while the host looks at the tokens
                self.start(self.wanted_drafts())
        return rows, logits_BV

    def start(self, drafts: int) -> None:
        """Launch a step behind the tokens that the host has."""
        model, cache, rows = self.model, self.cache, self.rows
        self.launched, self.drafts = list(rows), drafts
        self.wants_logits = any(row.wants_logits for row in rows)
        tokens, counts = self.unread()
        settings, positions = settings_and_positions(rows)
        if drafts:
            read = [row.newest(row.visible)[:-1] for row in rows]
            drafting = DraftingSampler.of(model, cache, self.allowed_V, tokens=1 + drafts)
            drafting.start(cache, tokens, read, settings[0], positions)
            self.sampler = drafting
        else:
            power = 1 << (len(rows) - 1).bit_length()
            padded = min(power, self.most_rows) if self.joining else len(rows)
            sampler = self.sampler_kind(rows).of(model, cache, self.allowed_V, rows=padded)
            sampler.start(cache, tokens, counts, settings, positions)
            self.sampler = sampler

    def launch_ahead(self, wanted: int) -> None:
        """Launch more of the same steps, as long as `wanted` drafts are those of each.

        Where drafts come and go, one step is ahead, and of rows with forms none.
        """
        cache, drafts, ring = self.cache, self.drafts, self.sampler.ring
        may_draft = self.drafting(self.rows) is not None
        behind_prompt = not self.rows[0].ids
        formed = isinstance(self.sampler, FormSampler)
        if self.wants_logits or formed or wanted != drafts or (may_draft and behind_prompt):
            return
        if self.gives():
            return
        if drafts and self.room() < 2 * (1 + drafts):
            return  # there must be some even where all of this step's are right
        most = AHEAD if self.joining and not may_draft else 2
        while ring.waiting < most:
            if not drafts:
                if not self.joining and max(cache.lengths.tolist()) == cache.capacity:
                    return  # that row slides first
                cache.lengths += 1
            self.sampler.launch()

    def wanted_drafts(self) -> int:
        """Drafts of the next step; behind a prompt, a token is sampled without any."""
        rows, speculation = self.rows, self.drafting(self.rows)
        if speculation is None or not rows[0].ids or self.gives():
            return 0
        assert isinstance(speculation, DeviceSpeculation)
        return speculation.wanted([row.repeats for row in rows], self.room())

    def gives(self) -> bool:
        """Are tokens of results to follow? The host puts them in, step by step."""
        return self.calculator is not None and any(
            row.calls and row.calls.given for row in self.rows
        )

    def room(self) -> int:
        """Tokens that each row has room for, beside those that it is known to have read."""
        return self.capacity - max(row.visible - 1 for row in self.rows)

    def sampler_kind(self, rows: Sequence[Row]) -> type[Sampler]:
        if self.scoring:
            return ScoringSampler
        return FormSampler if any(row.form for row in rows) else Sampler

    def take(self, rows: Sequence[Row], sampler: DeviceLoop) -> None:
        """Let each row take the token of the oldest step. Raises `UserError` where it is none."""
        if isinstance(sampler, FormSampler):
            sampler.choose(self.masks(rows))
        tokens = sampler.ring.take()[: len(rows), 0].tolist()
        check(min(tokens))
        for row, token in zip(rows, tokens, strict=True):
            row.take([token])
        if isinstance(sampler, ScoringSampler):
            for row, score in zip(rows, sampler.scores.take().tolist(), strict=True):
                if not row.left:
                    row.logprobs.append(score)

    def take_drafts(self, rows: Sequence[Row]) -> list[Taken]:
        """Let each row take the token of the oldest step and its drafts that were right."""
        passes = []
        for number, sampled in enumerate(self.sampler.ring.take().tolist()):
            row, ids = rows[number], [token for token in sampled if token != NOT_KEPT]
            check(min(ids))
            repeats = row.repeats.repeated > 0
            row.take(ids)
            passes.append(Taken(ids, self.drafts, repeats))
            self.cache.lengths[number] += len(ids)
        return passes

    def logits(self, sampler: DeviceLoop, rows: int) -> np.ndarray:
        return self.model.backend.to_host(sampler.logits[:rows, : len(self.allowed_V)])


def decoder_kind(model: Transformer) -> type[Decoder[Any]]:
    """The decoder for the model's engine."""
    return DeviceDecoder if isinstance(model.backend, ChoosingBackend) else Decoder


def settings_and_positions(rows: Sequence[Row]) -> tuple[np.ndarray, list[int]]:
    """Settings and positions of the rows, by which a device samples."""
    return packed([row.sampling for row in rows]), [row.position for row in rows]
