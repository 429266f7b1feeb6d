"""Served models for the page to compute by itself: what it must know of one, and its weights."""

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nanoeuler.browser.packing import (
    BLOCK,
    bytes_in_blocks,
    describe,
    halves,
    in_blocks,
    is_known,
    is_vector,
    written_tensors,
)
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model, read_description, usable
from nanoeuler.serving.channel import ServedModel
from nanoeuler.serving.errors import ApiError, wrong

MOST_BYTES = 150_000_000
"""Most bytes of the weights of a model that a page may have: where they are more in bfloat16, they
come in int8."""
MOST_TOKENS = 2048
"""Most tokens of a prompt and its reply there: a page makes room for all of them."""
KEPT = "this server gives no weights; start it with --give-weights"
BYTES = 2  # of a weight, in bfloat16
RANGE = re.compile(r"bytes=(\d{1,12})-(\d{1,12})")


class Copies:
    """The models of a server; those that were asked for stay in memory. With `given` false none is
    given."""

    def __init__(self, models: Mapping[str, ServedModel], given: bool):
        self.models = models
        self.offers = {name: offer(model) if given else KEPT for name, model in models.items()}
        """By name the bytes of its weights, or a sentence that says why a page cannot have it."""
        self.served = {name: description(model) for name, model in models.items()}
        self.thread = ThreadPoolExecutor(1, "copies")
        self.read: dict[str, tuple[dict[str, Any], bytes]] = {}

    async def copy(self, name: str) -> tuple[dict[str, Any], bytes]:
        """What model.js must know, and the weights. Raises `ApiError`."""
        refused = self.offers[name]
        if isinstance(refused, str):
            raise wrong("model", refused)
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.found, name)

    def found(self, name: str) -> tuple[dict[str, Any], bytes]:
        if name not in self.read:
            served = self.models[name]
            try:
                saved = load_model(served.folder)
                changed = description(served) != self.served[name]
            except UserError as error:
                raise wrong("model", str(error)) from error
            if changed:
                raise wrong("model", f"{served.folder} has changed; start the server again")
            described = describe(saved, served.tokenizer)
            described["config"]["context"] = min(served.context, MOST_TOKENS)
            if bytes_in_halves(saved.config) <= MOST_BYTES:
                weights = (halves(saved) >> 16).astype("<u2").tobytes()
            else:
                vectors = [each.name for each in written_tensors(saved.config) if is_vector(each)]
                described |= {"block": BLOCK, "vectors": vectors}
                weights = in_blocks(saved)
            self.read[name] = described, weights
        return self.read[name]


def description(model: ServedModel) -> dict[str, Any]:
    """What its folder says of it, with the hash of its weights."""
    return read_description(usable(model.folder))[1]


def offer(model: ServedModel) -> int | str:
    """Bytes of its weights for a page, or why none can have it."""
    if not is_known(model.config):
        return "its form is not one that the page computes"
    if model.tokenizer.vocabulary.foreign is not None:
        return "its words are not GPT-2's, which are those that the page knows"
    size = bytes_in_halves(model.config)
    if size > MOST_BYTES:
        size = bytes_in_blocks(model.config)
    if size > MOST_BYTES:
        most = f"{MOST_BYTES / 1e6:.0f} MB"
        return f"its weights have {size / 1e6:.0f} MB in int8, and a page loads at most {most}"
    return size


def bytes_in_halves(config: ModelConfig) -> int:
    return BYTES * sum(tensor.size for tensor in written_tensors(config))


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
