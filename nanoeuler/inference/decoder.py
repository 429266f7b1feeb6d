"""Continue rows of tokens together: read prompts, sample on the host, verify drafts.

A model is trained for `context` positions. When a row outgrows them it slides: its newest three
quarters are kept and read again from position 0, and the oldest are dropped. So the cost of reading
again is paid once in `context / 4` tokens, not at every token.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from nanoeuler.backend.records import LogitRows
from nanoeuler.inference.forms import Form, token_masks
from nanoeuler.inference.sampling import Sampling, sample
from nanoeuler.inference.speculation import (
    NO_DRAFTS,
    Drafts,
    HostSpeculation,
    Repeats,
    Speculation,
    Taken,
)
from nanoeuler.model.appending import append, every_logits, extend
from nanoeuler.model.cache import Cache
from nanoeuler.model.calls import Calculator, Calls
from nanoeuler.model.config import round_up
from nanoeuler.model.transformer import Transformer


@dataclass(eq=False)
class Row:
    """A sequence that is being continued."""

    prompt: list[int]
    sampling: Sampling
    first_position: int = 0
    """The sampler's position of the prompt's first token."""
    wants_logits: bool = False
    """Those that its tokens were sampled from?"""
    form: Form | None = None
    """What its tokens must be, if anything. It takes no drafts."""
    calls: Calls | None = None
    """Those of the calculator, where the model has learned to call it."""
    ids: list[int] = field(default_factory=list)
    """The tokens so far, of which the last one is not read yet."""
    logprobs: list[float] = field(default_factory=list)
    """Of these, where the decoder is `scoring`; at a result of the calculator, of what was sampled
    in its place."""
    dropped: int = 0
    """Tokens, oldest first, that left the context because it was full."""
    drafts: Drafts = NO_DRAFTS
    """Drafts behind the last token, where the host keeps them."""
    left: bool = False
    """Was it given up?"""

    @property
    def position(self) -> int:
        """Position of the next token, from which the sampler draws."""
        return self.first_position + len(self.prompt) + len(self.ids)

    def take(self, sampled: list[int]) -> None:
        """Append tokens that were sampled, as far as they stand: a result of the calculator takes
        the place of what was sampled there."""
        if self.calls:
            self.calls.correct(sampled)
            del sampled[self.calls.follow(sampled) :]
        self.ids += sampled

    @property
    def visible(self) -> int:
        """Tokens that the model sees, with the last one."""
        return len(self.prompt) + len(self.ids) - self.dropped

    def newest(self, count: int) -> list[int]:
        """The last `count` tokens of the prompt and those sampled."""
        old = count - len(self.ids)
        return self.ids[-count:] if old <= 0 else self.prompt[-old:] + self.ids

    @cached_property
    def known_repeats(self) -> Repeats:
        """Repeats within the prompt and the tokens that `repeats` has examined."""
        return Repeats(self.prompt)

    @property
    def repeats(self) -> Repeats:
        """Repeats within the prompt and all tokens so far."""
        text = self.known_repeats
        text.extend(self.ids[len(text.tokens) - len(self.prompt) :])
        return text


AnyRow = TypeVar("AnyRow", bound=Row)


class Decoder(Generic[AnyRow]):
    """Rows that grow together, and their cache. The host samples the tokens."""

    prompt_multiple = 1

    def __init__(
        self,
        model: Transformer,
        rows: int,
        capacity: int,
        allowed_V: np.ndarray,
        speculation: Speculation | None = None,
        *,
        joining: bool = False,
        calculator: Calculator | None = None,
        scoring: bool = False,
    ):
        """At most `rows`, which read at most `capacity` tokens each. `allowed_V` is True for the
        tokens that may be sampled at all. `speculation`: tokens are drafted, which changes the time
        and not the tokens. `joining`: rows come and go, and only one that is alone takes drafts.
        `calculator`: the model has learned to call it. `scoring`: tokens have log-probabilities,
        and are neither drafted nor of a form."""
        self.calculator, self.scoring = calculator, scoring
        self.model, self.allowed_V = model, allowed_V
        self.most_rows, self.capacity = rows, capacity
        self.speculation, self.joining = speculation, joining
        self.cache = model.new_cache(rows, capacity + (self.spare(model) if joining else 0))
        self.rows: list[AnyRow] = []
        """Those of the cache."""
        if joining:
            self.clear()

    @staticmethod
    def spare(model: Transformer) -> int:
        """Spare cache slots per row, where rows come and go."""
        return 0

    # ---- rows

    def heed_calls(self, row: Row) -> None:
        """Let a new row call the calculator, if the model does and the row has no form."""
        if self.calculator and not row.form:
            row.calls = Calls(self.calculator, row.prompt)

    def join(self, row: AnyRow, cache: Cache, number: int) -> None:
        """Add a row; row `number` of another cache has all of its tokens but the last."""
        self.rows.append(row)
        self.cache.join(cache, number)

    def remove(self, row: AnyRow) -> None:
        """Give up a row; the last one takes its slots."""
        row.left = True
        number = self.rows.index(row)
        self.cache.remove(number)
        self.rows[number] = self.rows[-1]
        self.rows.pop()

    def clear(self) -> None:
        """Give up all rows."""
        self.rows.clear()
        self.cache.lengths = self.cache.lengths[:0]

    def unread(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each row that the cache lacks, padded, and their number.

        A row that has outgrown the context slides.
        """
        rows, cache, context = self.rows, self.cache, self.model.config.context
        ones = np.ones(len(rows), np.int32)
        visible = [] if self.joining else [row.visible for row in rows]
        if rows[0].ids and max(visible, default=0) <= context:
            return np.array([row.ids[-1:] for row in rows], np.int32), ones
        for number, row in enumerate(rows):
            if visible[number] > context:
                row.dropped += visible[number] - (context - context // 4)
                cache.truncate(number, 0)
        held = cache.lengths.tolist()
        missing = [row.newest(row.visible - count) for row, count in zip(rows, held, strict=True)]
        slid = [n for n, row in enumerate(rows) if row.ids and len(missing[n]) > 1]
        if len(slid) < len(missing):  # together, every row would be padded to the length of those
            for number in slid:
                extend(self.model, cache.row(number), np.array([missing[number][:-1]]))
                missing[number] = missing[number][-1:]
        one_each = max(map(len, missing)) == 1
        return (np.array(missing, np.int32), ones) if one_each else self.padded(missing)

    def padded(self, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Prompts as a rectangle of tokens, (B, n), and their lengths, at least 1, (B,)."""
        # a device records what it reads: more prompts are of one length
        width = round_up(max(map(len, prompts)), self.prompt_multiple)
        # struct takes half the time that NumPy takes for a list; x pads with zeros
        rows = [struct.pack(f"{len(ids)}i{4 * (width - len(ids))}x", *ids) for ids in prompts]
        tokens = np.frombuffer(bytearray().join(rows), np.int32).reshape(-1, width)
        return tokens, np.array([max(1, len(ids)) for ids in prompts], np.int32)

    # ---- tokens

    def read(self, tokens: np.ndarray, counts: np.ndarray, cache: Cache) -> np.ndarray:
        """Append tokens to the rows of `cache`. Returns the logits behind them, (B, V)."""
        return self.model.backend.to_host(extend(self.model, cache, tokens, counts))

    def prefill(
        self, cache: Cache, prompts: Sequence[Sequence[int]], replies: Sequence[Row]
    ) -> np.ndarray | None:
        """Append prompts, or their ends, to `cache`, and let replies take their first tokens.

        There is a reply to each prompt, or there are several to one. Returns the logits behind
        that one, (1, V), where a reply wants them.
        """
        logits_1V = self.read(*self.padded(prompts), cache)
        self.sample_first(logits_1V, replies)
        return logits_1V

    def sample_first(self, logits_1V: np.ndarray, replies: Sequence[Row]) -> None:
        for row in replies:
            allowed = self.allowed([row])
            row.take(sample(logits_1V, row.sampling, [row.position], allowed).tolist())

    def allowed(self, rows: Sequence[Row]) -> np.ndarray:
        """The tokens that may be sampled next: (V,), or where rows have forms for each, (B, V)."""
        if not any(row.form for row in rows):
            return self.allowed_V
        masks_BW = self.masks(rows)
        bits_BV = np.unpackbits(masks_BW.view(np.uint8), axis=1, bitorder="little")
        return bits_BV[:, : len(self.allowed_V)].view(np.bool_)

    def masks(self, rows: Sequence[Row]) -> np.ndarray:
        """The tokens that each row may sample next, as bits: see `token_masks`."""
        forms = [None if row.left else row.form for row in rows]
        return token_masks(forms, [row.ids for row in rows], self.allowed_V)

    def next(self) -> tuple[list[AnyRow], np.ndarray | None]:
        """Let rows take their next token, or several where they were drafted.

        A pass takes each row's drafts, where there is room. A row accepts the longest correct
        prefix of them and the token after it; the cache forgets the others. Then what follows is
        drafted. Returns these rows, and the logits behind their tokens, where a row wants them.
        """
        model, cache, rows = self.model, self.cache, list(self.rows)
        speculation = self.drafting(rows)
        assert speculation is None or isinstance(speculation, HostSpeculation)
        tokens, counts = self.unread()
        verifies = speculation is not None and tokens.shape[1] == 1
        drafts = [row.drafts if verifies else NO_DRAFTS for row in rows]
        B, room = len(rows), cache.capacity - max(cache.lengths.tolist()) - 1
        M = max(0, min(room, max(len(each.ids) for each in drafts)))
        T = 1 + M
        if M > 0:
            padded = np.zeros((B, M), np.int32)  # ids behind a row's drafts are arbitrary
            for number, each in enumerate(drafts):
                padded[number, : len(each.ids)] = each.ids[:M]
            tokens = np.hstack([tokens, padded])
            norm, _ = append(model, cache, tokens, every=True)  # of B · T rows
            found = every_logits(model, norm)
        else:
            norm, found = append(model, cache, tokens, counts)
        logits = model.backend.to_host(found)
        samplings = [row.sampling for row in rows for _ in range(T)]
        positions = [row.position + t for row in rows for t in range(T)]
        sampled = sample(logits, samplings, positions, self.allowed(rows)).reshape(B, T).tolist()
        if self.scoring:
            for row, score in zip(rows, self.scores(logits, sampled), strict=True):
                row.logprobs.append(score)
        if speculation is None:
            for row, ids in zip(rows, sampled, strict=True):
                row.take(ids)
                row.drafts = NO_DRAFTS
            return rows, logits
        last, passes = [], []
        for number, (row, ids) in enumerate(zip(rows, sampled, strict=True)):
            if row.calls:
                row.calls.correct(ids)
            right = 0
            while right < M and ids[right] == tokens[number, 1 + right]:
                right += 1
            del ids[right + 1 :]
            row.take(ids)
            right = len(ids) - 1
            cache.lengths[number] -= M - right
            last.append(number * T + right)
            drafted = 0 if drafts[number].given else min(M, len(drafts[number].ids))
            passes.append(Taken(ids, drafted, drafted > 0 and drafts[number].repeats))
            if row.calls and row.calls.given:
                row.drafts = Drafts(row.calls.given[: speculation.most], given=True)
            else:
                row.drafts = Drafts.of_text(row.repeats, speculation.from_text)
        if speculation.heads > 0 and not all(row.drafts.ids for row in rows):
            last_BD = model.backend.gather(norm.out_ND, np.array(last))
            further = model.backend.to_host(model.further_logits(last_BD, speculation.heads))
            by_heads = np.where(self.allowed_V, further, -np.inf).argmax(axis=2).tolist()
            for row, ids in zip(rows, by_heads, strict=True):
                row.drafts = row.drafts if row.drafts.ids else Drafts(ids)
        speculation.note(passes)
        return rows, logits

    def drafting(self, rows: Sequence[Row]) -> Speculation | None:
        """`speculation`, if these rows may take drafts."""
        if self.joining and (len(rows) != 1 or rows[0].wants_logits):
            return None
        if any(row.form for row in rows):
            return None
        return self.speculation

    def scores(self, logits_BV: np.ndarray, tokens_B1: list[list[int]]) -> list[float]:
        """The log-probability of each row's token, by the op that a trainer takes: where their
        logits have the same bits, so have these."""
        ops, B = self.model.backend, len(tokens_B1)
        logprobs_B, lse_B = ops.empty((B,)), ops.empty((B,))
        tokens_B = ops.from_host(np.array(tokens_B1, np.int32)[:, 0])
        ops.cross_entropy(LogitRows(ops.from_host(logits_BV), tokens_B, logprobs_B, lse_B))
        return ops.to_host(logprobs_B).tolist()
