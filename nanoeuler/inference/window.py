"""The newest tokens of each sequence, which the model sees, with their keys and values cached.

A model is trained for `context` positions. When a row outgrows them it slides: its newest three
quarters are kept and read again from position 0, and the oldest are dropped. So the cost of reading
again is paid once in `context / 4` tokens, not at every token. Dropped tokens are counted, for the
caller to say so.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.backend.capabilities import NOT_KEPT, ChoosingBackend
from nanoeuler.inference.repeats import Repeats
from nanoeuler.inference.sampling import Sampling, checked, choose
from nanoeuler.inference.speculation import (
    DeviceSpeculation,
    HostSpeculation,
    Speculation,
    Taken,
)
from nanoeuler.model.cache import Cache
from nanoeuler.model.choosing import Choices, DraftedChoices
from nanoeuler.model.config import round_up
from nanoeuler.model.transformer import Transformer

PROMPT_MULTIPLE = 64
"""A device reads prompts whose lengths are rounded up to a multiple of this many tokens."""


class ChoiceInputs(NamedTuple):
    """Everything that a step depends on that chooses one token for each row."""

    tokens: list[list[int]]
    lengths: list[int]
    positions: list[int]
    sampling: Sampling

    @classmethod
    def of(
        cls,
        tokens: np.ndarray,
        lengths_B: np.ndarray,
        positions_B: np.ndarray,
        sampling: Sampling,
    ) -> "ChoiceInputs":
        """The same from arrays; `lengths_B` counts the tokens in the cache."""
        positions = np.asarray(positions_B).tolist()
        return cls(tokens.tolist(), lengths_B.tolist(), positions, sampling)


class Drafts(NamedTuple):
    """Guesses of the tokens that follow a row's last one."""

    ids: list[int]
    repeats: bool = False
    """Are they from the text?"""

    @classmethod
    def of_text(cls, text: Repeats, speculation: HostSpeculation) -> "Drafts":
        """As many as the next pass takes."""
        ids = text.drafts(speculation.from_text)
        return cls(ids, repeats=True) if ids else NO_DRAFTS


NO_DRAFTS = Drafts([])


class ContextWindow:
    """Rows of tokens that grow together.

    The model sees `tokens[b]` of row b; `dropped[b]` older ones have left the window.
    """

    def __init__(self, model: Transformer, rows: int, longest: int):
        """`longest` is the most tokens that a row will ever hold.

        The cache takes no more than that, and no more than the context.
        """
        self.model = model
        self.context = model.config.context
        self.cache = model.new_cache(rows, min(self.context, longest))
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.dropped = [0] * rows
        self.drafts = [NO_DRAFTS] * rows
        """Drafts of the tokens that follow those chosen last."""
        self.choices: Choices | None = None
        self.ahead: ChoiceInputs | None = None
        """The inputs of the step that `choices` was asked for ahead."""

    def read(self, new: Sequence[Sequence[int]]) -> np.ndarray:
        """Append new[b], of at least one token, to every row b.

        Returns the logits behind each row's last token, (rows, V).
        """
        return self.model.backend.to_host(self.model.extend(self.cache, *self.pending(new)))

    def choose(
        self,
        new: Sequence[Sequence[int]],
        sampling: Sampling,
        positions_B: np.ndarray,
        allowed_V: np.ndarray,
        *,
        ahead: bool = True,
    ) -> np.ndarray:
        """`read`, and the token that `sampling.choose` chooses behind each row.

        A `ChoosingBackend` does so on its device; `ahead`: another step of this kind is likely
        to follow.
        """
        self.drafts = [NO_DRAFTS] * len(self.drafts)
        if not isinstance(self.model.backend, ChoosingBackend):
            return choose(self.read(new), sampling, positions_B, allowed_V)
        tokens, counts = self.pending(new)
        choices = Choices.of(self.model, self.cache, allowed_V)
        asked = self.ahead if choices is self.choices else None
        lengths = self.cache.lengths
        if asked and asked == ChoiceInputs.of(tokens, lengths, positions_B, sampling):
            self.cache.lengths += 1
        else:
            self.choices = choices
            choices.start(self.cache, tokens, counts, [sampling] * len(counts), positions_B)
        # the next step is under way while the caller looks at this one's tokens; it is not asked
        # for when a row is full, because that row slides first
        has_room = ahead and int(self.cache.lengths.max()) < self.cache.capacity
        if has_room:
            choices.ask()
        chosen = checked(choices.take())
        self.ahead = None
        if has_room:
            lengths = self.cache.lengths
            self.ahead = ChoiceInputs.of(chosen[:, None], lengths, positions_B + 1, sampling)
        return chosen

    def choose_several(
        self,
        new: Sequence[Sequence[int]],
        texts: Sequence[Repeats],
        speculation: Speculation,
        sampling: Sampling,
        positions_B: np.ndarray,
        allowed_V: np.ndarray,
    ) -> list[Taken]:
        """`choose`, and the same behind drafts of what it will choose, in one pass.

        `texts` have all tokens of each row, to which those chosen are added. Returns what each row
        takes: the tokens are those that `choose` gives one by one. Nothing is taken behind a wrong
        draft, and the cache forgets it.
        """
        inputs = sampling, positions_B, allowed_V
        if isinstance(speculation, DeviceSpeculation):
            taken = self.choose_several_there(new, texts, speculation, *inputs)
            for text, each in zip(texts, taken, strict=True):
                text.extend(each.chosen)
            return taken
        assert isinstance(speculation, HostSpeculation)
        # where there is nothing to check or to draft, `check_drafts` would only take longer
        if speculation.heads == 0 and not any(drafts.ids for drafts in self.drafts):
            chosen = self.choose(new, *inputs)[:, None].tolist()
            for text, ids in zip(texts, chosen, strict=True):
                text.extend(ids)
            self.drafts = [Drafts.of_text(text, speculation) for text in texts]
            return [Taken(ids) for ids in chosen]
        tokens, counts = self.pending(new)
        behind = self.drafts if tokens.shape[1] == 1 else [NO_DRAFTS] * len(tokens)
        taken, self.drafts = check_drafts(
            self.model, self.cache, tokens, counts, behind, texts, speculation, *inputs
        )
        for row, each in enumerate(taken):
            self.tokens[row].extend(each.chosen[:-1])
        return taken

    def choose_several_there(
        self,
        new: Sequence[Sequence[int]],
        texts: Sequence[Repeats],
        speculation: DeviceSpeculation,
        sampling: Sampling,
        positions_B: np.ndarray,
        allowed_V: np.ndarray,
    ) -> list[Taken]:
        """`choose_several` on the device of a `ChoosingBackend`, which keeps its drafts there.

        What was asked for ahead is taken, with drafts or without, and more of it asked for only if
        that is still wanted. Behind a prompt, a token is chosen without any.
        """
        room = self.cache.capacity - int(self.cache.lengths.max())
        wanted, inputs = speculation.wanted(texts, room), (sampling, positions_B, allowed_V)
        is_prompt = max(map(len, new)) > 1 or not any(self.tokens)
        drafted = isinstance(self.choices, DraftedChoices) if self.ahead else wanted > 0
        if is_prompt or not drafted:
            chosen_B = self.choose(new, *inputs, ahead=wanted == 0 and not is_prompt)
            return [Taken([int(token)]) for token in chosen_B]
        tokens, _ = self.pending(new)
        drafts = speculation.most
        choices = DraftedChoices.of_drafts(self.model, self.cache, allowed_V, drafts)
        asked = ChoiceInputs.of(tokens, self.cache.lengths, positions_B, sampling)
        if choices is not self.choices or self.ahead != asked:
            self.choices = choices
            read = [ids[:-1] for ids in self.tokens]
            choices.start_behind(self.cache, tokens, read, sampling, positions_B)
        # another pass, if there is room for it even where all of this one's are right
        has_room = wanted > 0 and room >= 2 * (1 + drafts)
        if has_room:
            choices.ask()
        chosen_BT = choices.take()
        chosen = [ids[ids != NOT_KEPT].tolist() for ids in chosen_BT]
        checked(np.array([min(ids) for ids in chosen]))
        for row, ids in enumerate(chosen):
            self.tokens[row].extend(ids[:-1])
            self.cache.lengths[row] += len(ids)
        self.ahead = None
        if has_room:
            last = np.array([ids[-1:] for ids in chosen])
            positions = positions_B + [len(ids) for ids in chosen]
            self.ahead = ChoiceInputs.of(last, self.cache.lengths, positions, sampling)
        pairs = zip(chosen, texts, strict=True)
        return [Taken(ids, drafts, text.repeated > 0) for ids, text in pairs]

    def pending(self, new: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Append new[b] to every row b.

        Returns the tokens that the cache lacks of each row, padded to a rectangle, and their
        number, (rows,).
        """
        pending = [self.append(row, tokens) for row, tokens in enumerate(new)]
        slid = [row for row, tokens in enumerate(pending) if len(tokens) > len(new[row])]
        if len(slid) < len(pending):  # together, every row would be padded to the length of those
            for row in slid:
                self.model.extend(self.cache.row(row), np.array([pending[row][:-1]]))
                pending[row] = pending[row][-1:]
        counts = [len(tokens) for tokens in pending]
        width = max(counts)
        if width > 1 and isinstance(self.model.backend, ChoosingBackend):
            # a device records what it reads: more prompts are of one length
            width = round_up(width, PROMPT_MULTIPLE)
        if width == 1:
            return np.array(pending, np.int32), np.array(counts, np.int32)
        # struct takes half the time that NumPy takes for a list; x pads with zeros
        rows = [struct.pack(f"{len(ids)}i{4 * (width - len(ids))}x", *ids) for ids in pending]
        padded = np.frombuffer(bytearray().join(rows), np.int32).reshape(-1, width)
        return padded, np.array(counts, np.int32)

    def append(self, row: int, new: Sequence[int]) -> Sequence[int]:
        """Append `new` to a row's tokens and return those that the cache still lacks.

        They are `new`, or after a slide all that were kept.
        """
        view = self.tokens[row]
        view.extend(new)
        if len(view) <= self.context:
            return new
        excess = len(view) - (self.context - self.context // 4)
        self.dropped[row] += excess
        del view[:excess]
        self.cache.truncate(row, 0)
        return view

    def remove(self, row: int) -> None:
        """Give up `row`; the last row takes its number."""
        self.cache.remove(row)
        self.ahead = None
        self.tokens[row] = self.tokens[-1]
        self.tokens.pop()
        self.drafts[row] = self.drafts[-1]
        self.drafts.pop()
        self.dropped[row] = self.dropped[-1]
        self.dropped.pop()


def check_drafts(
    model: Transformer,
    cache: Cache,
    tokens: np.ndarray,
    counts: np.ndarray,
    drafts: Sequence[Drafts],
    texts: Sequence[Repeats],
    speculation: HostSpeculation,
    sampling: Sampling,
    positions_B: np.ndarray,
    allowed_V: np.ndarray,
) -> tuple[list[Taken], list[Drafts]]:
    """Append tokens (B, n) to the rows of `cache` and choose behind them; with `drafts` of what
    will be chosen, behind those, too, where there is room. What is chosen is added to `texts`.

    Returns what each row takes, and drafts of what follows. The cache forgets drafts that were
    wrong. For an engine whose tokens the host chooses.
    """
    B, room = len(tokens), cache.capacity - max(cache.lengths.tolist()) - 1
    M = max(0, min(room, max(len(each.ids) for each in drafts)))
    T = 1 + M
    if M > 0:
        padded = np.zeros((B, M), np.int32)  # with drafts that are as good as any
        for row, each in enumerate(drafts):
            padded[row, : len(each.ids)] = each.ids[:M]
        tokens = np.hstack([tokens, padded])
        norm = model.append(cache, tokens, every=True)  # of B · T rows
    else:
        norm = model.append(cache, tokens, counts)
    model.backend.norm(norm)
    logits = model.backend.to_host(model.first_logits(norm.out_ND))
    positions = [position + t for position in np.asarray(positions_B).tolist() for t in range(T)]
    chosen = choose(logits, sampling, positions, allowed_V).reshape(B, T).tolist()
    last, taken, following = [], [], []
    for row, ids in enumerate(chosen):
        right = 0
        while right < M and ids[right] == tokens[row, 1 + right]:
            right += 1
        cache.lengths[row] -= M - right
        del ids[right + 1 :]
        last.append(row * T + right)
        drafted = min(M, len(drafts[row].ids))
        taken.append(Taken(ids, drafted, drafted > 0 and drafts[row].repeats))
        texts[row].extend(ids)
        following.append(Drafts.of_text(texts[row], speculation))
    if speculation.heads > 0 and not all(each.ids for each in following):
        last_BD = model.backend.gather(norm.out_ND, np.array(last))
        logits = model.backend.to_host(model.further_logits(last_BD, speculation.heads))
        by_heads = np.where(allowed_V, logits, -np.inf).argmax(axis=2).tolist()
        pairs = zip(following, by_heads, strict=True)
        following = [each if each.ids else Drafts(ids) for each, ids in pairs]
    return taken, following
