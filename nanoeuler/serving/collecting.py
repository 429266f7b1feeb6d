"""The pieces of a request's replies, on their way from the process that decodes to its client.

Pieces that arrive while a client is served are taken together, so that a slow client gets few large
parts instead of many small ones. What waits is bounded by the tokens that were asked for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nanoeuler.serving.channel import EngineProcess
from nanoeuler.serving.errors import failed
from nanoeuler.serving.jobs import Piece, Scored
from nanoeuler.serving.metrics import Metrics
from nanoeuler.serving.text import ReplyText


@dataclass
class Part:
    """A reply's new text since the last part, or all of it."""

    text: str = ""
    scored: list[Scored] = field(default_factory=list)
    finish: str | None = None


class Replies:
    """All replies to one request, numbered by prompt and choice.

    `jobs` has the fields of each prompt's `Job`. Raises `Busy` when there is no room for them.
    """

    def __init__(
        self, engine: EngineProcess, metrics: Metrics, model: str, jobs: Sequence[dict[str, Any]]
    ):
        self.engine, self.metrics, self.model = engine, metrics, model
        tokenizer, choices = engine.models[model].tokenizer, len(jobs[0]["samplings"])
        self.prompts: list[list[int]] = [job["prompt"] for job in jobs]
        self.texts = [ReplyText(tokenizer, job["stops"]) for job in jobs for _ in range(choices)]
        self.began = self.last = time.monotonic()
        self.new: dict[int, Part] = {}
        self.unfinished = set(range(len(self.texts)))
        self.tokens = 0
        self.failure: str | None = None
        self.arrived, self.ended = asyncio.Event(), asyncio.Event()
        receivers = [partial(self.receive, prompt * choices) for prompt in range(len(jobs))]
        self.numbers = engine.submit(model, list(zip(receivers, jobs, strict=True)))
        metrics.tokens[model, "prompt"] += self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def receive(self, first: int, piece: Piece) -> None:
        """Take a piece of one of the replies from number `first` on."""
        if piece.choice < 0:
            self.fail(piece.finish)
            return
        self.arrived.set()
        now, tokens = time.monotonic(), len(piece.ids)
        if self.tokens == 0:
            self.metrics.first_token.add(now - self.began)
        elif tokens:
            self.metrics.next_token.add((now - self.last) / tokens, tokens)
        self.last = now
        self.tokens += tokens
        self.metrics.tokens[self.model, "reply"] += tokens
        index = first + piece.choice
        part, text = self.new.setdefault(index, Part()), self.texts[index]
        part.text += text.push(*piece.ids)
        part.scored += piece.scored
        if piece.finish:
            part.text += text.end()
            part.finish = piece.finish
            self.unfinished.remove(index)
        if not self.unfinished:
            self.engine.note_reply(now - self.began)
            self.ended.set()

    def fail(self, kind: str | None) -> None:
        """Give up; see `errors.failed` for the kinds."""
        self.failure = kind
        self.arrived.set()
        self.ended.set()

    async def parts(self) -> AsyncIterator[dict[int, Part]]:
        """Yield the parts of all replies until each has ended. Raises `ApiError`."""
        while self.unfinished or self.new:
            await self.arrived.wait()
            self.arrived.clear()
            if self.failure:
                raise failed(self.failure)
            new, self.new = self.new, {}
            yield new

    async def whole(self) -> Sequence[Part]:
        """Every reply, once all have ended. Raises `ApiError`."""
        await self.ended.wait()
        if self.failure:
            raise failed(self.failure)
        return [part for _, part in sorted(self.new.items())]

    def close(self) -> None:
        """Nobody wants what is missing."""
        self.engine.leave(self.numbers, cancel=bool(self.unfinished))
        self.metrics.gone += bool(self.unfinished and self.failure in (None, "gone"))
