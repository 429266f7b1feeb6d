"""Where a reply comes from: texts are traced one after another, in a thread of their own.

A model's index is opened at its first trace, which for a tuned model encodes its records if nobody
has done so (tracing/lessons.py).
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from nanoeuler.errors import UserError
from nanoeuler.serving.errors import ApiError, wrong
from nanoeuler.serving.requests import Whole
from nanoeuler.tracing.runs import has_index

if TYPE_CHECKING:  # many modules, which a server without an index does without
    from nanoeuler.tracing.trace import Tracer

MOST_TEXT = 10_000
"""Characters of a text: at worst, a copy in tokens of a byte, a part of the index takes 0.2 s."""
MOST_WAITING = 16
"""Texts that wait to be traced."""
Some = Annotated[Whole, Field(ge=1, le=100)]


class Trace(BaseModel):
    """A request to /trace; the numbers are those of `nanoeuler trace`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str
    text: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
    min_tokens: Annotated[Whole, Field(ge=1)] = 8
    spans: Some = 10
    documents: Some = 3


class Traces:
    """The models of a server, given by their folders, and their indices."""

    def __init__(self, folders: Mapping[str, Path]):
        self.folders = folders
        self.indexed = {name for name, folder in folders.items() if has_index(folder)}
        self.thread = ThreadPoolExecutor(1, "trace")
        self.tracers: dict[str, Tracer] = {}
        self.waiting = 0

    async def trace(self, asked: Trace) -> dict[str, Any]:
        """What `nanoeuler trace --json` prints of a text. Raises `ApiError`."""
        if self.waiting > MOST_WAITING:
            message = "too many texts wait to be traced; try again in 1 s"
            raise ApiError(429, message, code="busy", headers={"Retry-After": "1"})
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, self.found, asked)
        finally:
            self.waiting -= 1

    def found(self, asked: Trace) -> dict[str, Any]:
        from nanoeuler.tracing.trace import Tracer

        try:
            if asked.model not in self.tracers:
                self.tracers[asked.model] = Tracer(self.folders[asked.model])
            tracer = self.tracers[asked.model]
        except UserError as error:
            raise wrong("model", str(error)) from error
        try:
            given = asked.text, asked.min_tokens, asked.spans, asked.documents
            return tracer.trace(*given) | {"model": asked.model}
        except UserError as error:
            raise wrong("text", str(error)) from error
