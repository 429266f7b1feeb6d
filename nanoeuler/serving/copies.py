"""Served models for the page to compute by itself: what it must know of one, and its weights."""

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nanoeuler.browser.packing import describe, halves, is_known, written_tensors
from nanoeuler.errors import UserError
from nanoeuler.model.files import load_model
from nanoeuler.serving.channel import ServedModel
from nanoeuler.serving.errors import ApiError, wrong

MOST_BYTES = 150_000_000
"""Most bytes of the weights of a model that a page may have."""
MOST_TOKENS = 2048
"""Most tokens of a prompt and its reply there: a page makes room for all of them."""
BYTES = 2  # of a weight, in bfloat16
RANGE = re.compile(r"bytes=(\d{1,12})-(\d{1,12})")


class Copies:
    """Models that are served and may be given; the one that was asked for last is in memory."""

    def __init__(self, models: Mapping[str, ServedModel]):
        self.models = models
        self.sizes = {name: size for name, model in models.items() if (size := size_of(model))}
        self.thread = ThreadPoolExecutor(1, "copies")
        self.read: tuple[str, dict[str, Any], bytes] | None = None

    async def copy(self, name: str) -> tuple[dict[str, Any], bytes]:
        """What model.js must know, and the weights in bfloat16. Raises `ApiError`."""
        if name not in self.models:
            raise wrong("model", "this server gives no weights; start it with --give-weights")
        if name not in self.sizes:
            raise wrong("model", f"a page cannot have {name}: its form, its words or its size")
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.found, name)

    def found(self, name: str) -> tuple[dict[str, Any], bytes]:
        if self.read is None or self.read[0] != name:
            self.read = None  # two at once would take twice the memory
            served = self.models[name]
            try:
                saved = load_model(served.folder)
            except UserError as error:
                raise wrong("model", str(error)) from error
            if saved.config != served.config:
                message = f"{served.folder} has changed; start the server again"
                raise wrong("model", message)
            described = describe(saved, served.tokenizer)
            described["config"]["context"] = min(served.context, MOST_TOKENS)
            weights = (halves(saved) >> 16).astype("<u2").tobytes()
            self.read = name, described, weights
        return self.read[1:]


def size_of(model: ServedModel) -> int:
    """Bytes of its weights for a page; 0 where none may have it."""
    if not is_known(model.config) or model.tokenizer.vocabulary.foreign is not None:
        return 0
    size = BYTES * sum(tensor.size for tensor in written_tensors(model.config))
    return size if size <= MOST_BYTES else 0


def part(weights: bytes, asked: str | None) -> tuple[bytes, int, dict[str, str]]:
    """What a request for a range of bytes gets, with status and headers; without one, all."""
    if asked is None:
        return weights, 200, {"Accept-Ranges": "bytes"}
    found = RANGE.fullmatch(asked)
    first, last = map(int, found.groups()) if found else (1, 0)
    last, size = min(last, len(weights) - 1), len(weights)
    if first > last:
        message = f"Range: {asked[:100]}: give bytes=FIRST-LAST within {size} bytes"
        raise ApiError(416, message, headers={"Content-Range": f"bytes */{size}"})
    return weights[first : last + 1], 206, {"Content-Range": f"bytes {first}-{last}/{size}"}
