"""The pieces of a request's replies, on their way from the decoding thread to its client.

Pieces that arrive while a client is served are taken together, so that a slow client gets few large
parts instead of many small ones. What waits is bounded by the tokens that were asked for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanoeuler.serving.engine import Engine
from nanoeuler.serving.errors import failed
from nanoeuler.serving.jobs import Job, Piece, Scored
from nanoeuler.serving.metrics import Metrics


@dataclass
class Part:
    """What has come of one reply since it was last looked at, or all of it."""

    tokens: int = 0
    text: str = ""
    scored: list[Scored] = field(default_factory=list)
    finish: str | None = None

    def add(self, other: "Part | Piece") -> None:
        self.tokens += other.tokens
        self.text += other.text
        self.scored += other.scored
        self.finish = other.finish or self.finish


class Replies:
    """All replies to one request. A reply is numbered by its prompt and its choice."""

    def __init__(self, engine: Engine, metrics: Metrics, model: str):
        self.engine, self.metrics, self.model = engine, metrics, model
        self.jobs: list[Job] = []
        self.began = self.last = time.monotonic()
        self.new: dict[int, Part] = {}
        self.unfinished: set[int] = set()
        self.tokens = 0
        self.failure: str | None = None
        self.arrived, self.ended = asyncio.Event(), asyncio.Event()

    def add(self, **fields: Any) -> None:
        """Add a prompt; see `Job` for the fields."""
        prompt = len(self.jobs)
        job = self.engine.job(lambda piece: self.receive(prompt, piece), **fields)
        self.jobs.append(job)
        first = prompt * len(job.samplings)
        self.unfinished |= set(range(first, first + len(job.samplings)))

    def submit(self) -> None:
        self.engine.submit(self.model, self.jobs)
        self.metrics.tokens[self.model, "prompt"] += self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(len(job.prompt) for job in self.jobs)

    def receive(self, prompt: int, piece: Piece) -> None:
        if piece.choice < 0:
            self.fail(piece.finish)
            return
        self.arrived.set()
        now = time.monotonic()
        if self.tokens == 0:
            self.metrics.first_token.add(now - self.began)
        elif piece.tokens:
            self.metrics.next_token.add((now - self.last) / piece.tokens, piece.tokens)
        self.last = now
        self.tokens += piece.tokens
        self.metrics.tokens[self.model, "reply"] += piece.tokens
        index = prompt * len(self.jobs[prompt].samplings) + piece.choice
        self.new.setdefault(index, Part()).add(piece)
        if piece.finish:
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
        """What came of each reply, again and again, until all have ended. Raises `ApiError`."""
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
        for job in self.jobs:
            job.cancelled = True
        self.metrics.gone += bool(self.unfinished and self.failure in (None, "gone"))
