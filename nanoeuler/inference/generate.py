"""Continue token sequences: many together, or one as a stream of text."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.decoder import Row
from nanoeuler.inference.device_decoder import decoder_kind
from nanoeuler.inference.forms import Form
from nanoeuler.inference.sampling import Sampling
from nanoeuler.inference.speculation import Speculation
from nanoeuler.model.appending import append
from nanoeuler.model.calls import Calculator
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import StreamDecoder, Tokenizer

FEW_TOKENS = 64
"""Prompts of so many tokens together are read for every row, even where they are the same: that
takes no time, and an engine may round the products of few tokens otherwise."""


@dataclass
class Continuation:
    """The tokens that a model wrote behind one prompt."""

    ids: list[int] = field(default_factory=list)  # `</s>` is not among them
    logprobs: list[float] = field(default_factory=list)  # of `ids` and `</s>`, where asked for
    ended: bool = False  # by `</s>`; False: at the limit, or not yet
    whole: bool = False  # at the limit, and its form lets nothing follow
    dropped: int = 0  # tokens, oldest first, that left the context because it was full


class Decoding:
    """Prompts that are continued together, one token each a step, until `</s>` or `max_tokens`.

    A continuation that has ended leaves, and takes no more time.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_tokens: int,
        end_id: int,
        allowed_V: np.ndarray,
        first_position: int | np.ndarray,
        speculation: Speculation | None = None,
        *,
        scored: bool = False,
        form: Form | None = None,
        calculator: Calculator | None = None,
    ):
        """`first_position`, one or one per prompt, is the position of a prompt's first token for
        the sampler: 0, or more in a conversation. `speculation`: the model drafts tokens, which
        changes the time and not the tokens. `scored`: continuations have log-probabilities. `form`:
        that of each, whose tokens call no calculator."""
        self.max_tokens, self.end_id, self.speculation = max_tokens, end_id, speculation
        firsts = (first_position + np.zeros(len(prompts), np.int64)).tolist()
        rows = [
            Row(list(prompt), sampling, first, form=form and form.begin())
            for prompt, first in zip(prompts, firsts, strict=True)
        ]
        # passes over drafts may go on behind the last token; without drafts the cache is as long,
        # because an engine may divide a longer one otherwise, and then rounds otherwise
        longest = max(map(len, prompts)) + max_tokens + 2 * model.backend.drafted_tokens
        capacity = min(model.config.context, longest)
        decoder = decoder_kind(model)
        self.decoder = decoder(
            model,
            len(rows),
            capacity,
            allowed_V,
            speculation,
            calculator=calculator,
            scoring=scored,
        )
        for row in rows:
            self.decoder.heed_calls(row)
        different = set(map(tuple, prompts))
        repeated = len(different) < len(prompts) and sum(map(len, different)) > FEW_TOKENS
        if repeated and min(map(len, prompts)) > 1 and max(map(len, prompts)) <= capacity:
            self.read_once(rows)
        else:
            self.decoder.rows += rows
        self.continuations = [Continuation(logprobs=row.logprobs) for row in rows]
        self.written = dict(zip(rows, self.continuations, strict=True))

    def read_once(self, rows: Sequence[Row]) -> None:
        """Read each different prompt once, but for its last token, and copy it for its rows."""
        decoder = self.decoder
        different = dict.fromkeys(tuple(row.prompt) for row in rows)
        numbers = {prompt: number for number, prompt in enumerate(different)}
        cache = decoder.model.new_cache(len(numbers), decoder.capacity)
        append(decoder.model, cache, *decoder.padded([prompt[:-1] for prompt in numbers]))
        decoder.clear()
        for row in rows:
            decoder.join(row, cache, numbers[tuple(row.prompt)])

    @property
    def active(self) -> bool:
        """Is any continuation being written?"""
        return not all(row.left for row in self.decoder.rows)

    def step(self) -> bool:
        """Sample a token for every active continuation, or several where they were drafted.

        Returns False once all have ended. Raises `UserError` where one cannot be given its form.
        """
        if not self.active:
            return False
        rows, _ = self.decoder.next()
        for row in [row for row in reversed(rows) if not row.left]:
            continuation = self.written[row]
            new = row.ids[len(continuation.ids) :]
            ids = new[: self.max_tokens - len(continuation.ids)]
            continuation.dropped, continuation.ended = row.dropped, self.end_id in ids
            if row.form and row.form.failure:
                raise UserError(f"the text cannot be given its form: {row.form.failure}")
            if continuation.ended:
                ids = ids[: ids.index(self.end_id)]
            continuation.ids.extend(ids)
            if self.speculation:  # what lies behind the end is not written
                self.speculation.tokens -= len(new) - len(ids) - continuation.ended
            at_limit = len(continuation.ids) >= self.max_tokens
            if at_limit and row.form and not continuation.ended:
                continuation.whole = row.form.is_whole(continuation.ids, self.decoder.allowed_V)
            if continuation.ended or at_limit:
                self.decoder.remove(row)
        return self.active


class Reply:
    """One continuation as a stream of text: a piece comes as soon as its bytes are whole UTF-8.

    The attributes describe what was written so far, also when the iteration is broken off.
    """

    def __init__(self, decoding: Decoding, tokenizer: Tokenizer):
        self.decoding = decoding
        self.decoder = StreamDecoder(tokenizer)
        (self.continuation,) = decoding.continuations
        self.prompt_tokens = len(decoding.decoder.rows[0].prompt)
        self.shown = 0  # tokens
        self.called = ""
        """The expression of the call of the calculator that the last piece ended, if it did."""
        self.first_seconds = 0.0
        """Time to the first token, which is mostly spent on reading the prompt."""
        self.further_seconds = 0.0
        """Time of the later steps, without what the caller does in between."""

    def __iter__(self) -> Iterator[str]:
        written = self.continuation.ids
        while self.decoding.active or self.shown < len(written):
            if self.shown == len(written):
                self.timed_step()
            else:
                self.shown += 1
                token = written[self.shown - 1]
                self.called = self.ended_call(token)
                yield self.decoder.push(token)
        self.called = ""
        yield self.decoder.flush()

    def timed_step(self) -> None:
        is_first, began = self.shown == 0, time.perf_counter()
        self.decoding.step()
        seconds = time.perf_counter() - began
        if is_first:
            self.first_seconds = seconds
        else:
            self.further_seconds += seconds

    @property
    def ids(self) -> list[int]:
        """The tokens that the pieces so far are made of."""
        return self.continuation.ids[: self.shown]

    def ended_call(self, token: int) -> str:
        """The expression of the call that the last token shown ends; empty where it ends none."""
        tokenizer = self.decoder.tokenizer
        if tokenizer.call_ids is None or token != tokenizer.call_ids[1]:
            return ""
        before = self.ids[-2::-1]
        ends = [before.index(id) for id in tokenizer.call_ids if id in before]
        inside = min(ends, default=0)  # up to another end, it has no beginning
        begun = inside < len(before) and before[inside] == tokenizer.call_ids[0]
        return tokenizer.decode(before[:inside][::-1], continues=True) if begun else ""

    @property
    def ended(self) -> bool:
        """Whether `</s>` ended it."""
        return self.continuation.ended and self.shown == len(self.continuation.ids)

    @property
    def end(self) -> str:
        """What ended it, in a word: `</s>`, its form, which lets nothing follow, or the limit."""
        return "</s>" if self.ended else "form" if self.continuation.whole else "limit"

    @property
    def dropped(self) -> int:
        """Tokens, oldest first, that left the context because it was full."""
        return self.continuation.dropped

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed after the first token, counting `</s>`; None before the second token."""
        further = len(self.continuation.ids) + self.continuation.ended - 1
        return further / self.further_seconds if further > 0 else None

    @property
    def speculation(self) -> Speculation | None:
        """Statistics of the drafts; None without any."""
        return self.decoding.speculation


class Writer:
    """A transformer with its tokenizer, ready to continue token ids.

    It never samples a reserved special token other than `</s>`, nor an id that the tokenizer lacks.
    Where the model has learned to call the calculator, it samples those of a call, too.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        speculates: bool = False,
        calculator: bool = False,
    ):
        """`speculates`: a stream is decoded with drafts. `calculator`: the model calls it."""
        self.speculates = speculates
        self.calculator = Calculator(tokenizer) if calculator else None
        self.model = model
        self.tokenizer = tokenizer
        ids = np.arange(model.config.vocab_size)
        kept = {tokenizer.end_id, *((calculator and tokenizer.call_ids) or ())}
        reserved = [id for id in tokenizer.special_ids.values() if id not in kept]
        self.allowed_V = (ids < tokenizer.vocab_size) & ~np.isin(ids, reserved)

    def frame(self, text: str | bytes) -> list[int]:
        """`text` as the start of a document: `</s>` and its tokens."""
        return [self.tokenizer.end_id, *self.tokenizer.encode(text).tolist()]

    def logits(self, ids_BT: np.ndarray) -> np.ndarray:
        """Logits of head 0 behind every token, (B, T, V) float32; rows are one document each."""
        model = self.model
        normed = model.forward(Batch.of_documents(ids_BT, model.backend)).stream.normed
        logits_NV = np.array(model.backend.to_host(model.first_logits(normed)), np.float32)
        return logits_NV.reshape(*ids_BT.shape, -1)

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        first_position: int = 0,
        form: Form | None = None,
    ) -> Reply:
        """Continue one prompt of token ids, piece by piece."""
        speculation = Speculation.of(self.model) if self.speculates and not form else None
        decoding = self.decoding(
            [prompt], sampling, max_tokens, first_position, speculation, form=form
        )
        return Reply(decoding, self.tokenizer)

    def batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_tokens: int,
        rows: int = 16,
        spacing: int = 0,
        share: Share = in_order,
    ) -> list[Continuation]:
        """Continue many prompts, `rows` of like length at a time; results are in their order.

        For the sampler each prompt starts `spacing` positions after the one before. Their draws are
        independent when that is more than the tokens of any prompt and its continuation. `share`
        may let other ranks continue some of them; the tokens are the same.
        """
        continuations: dict[int, Continuation] = {}
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        groups = [order[start : start + rows] for start in range(0, len(order), rows)]

        def write(number: int) -> list[Continuation]:
            group = groups[number]
            grouped = [prompts[index] for index in group]
            decoding = self.decoding(grouped, sampling, max_tokens, spacing * np.array(group))
            while decoding.step():
                pass
            return decoding.continuations

        for group, written in zip(groups, share(len(groups), write), strict=True):
            continuations.update(zip(group, written, strict=True))
        return [continuations[index] for index in range(len(prompts))]

    def decoding(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_tokens: int,
        first_position: int | np.ndarray = 0,
        speculation: Speculation | None = None,
        *,
        scored: bool = False,
        form: Form | None = None,
    ) -> Decoding:
        if not all(len(prompt) for prompt in prompts):
            raise ValueError(
                "a prompt has no tokens; a text starts with at least </s>, see Writer.frame"
            )
        return Decoding(
            self.model,
            prompts,
            sampling,
            max_tokens,
            self.tokenizer.end_id,
            self.allowed_V,
            first_position,
            speculation,
            scored=scored,
            form=form,
            calculator=self.calculator,
        )
