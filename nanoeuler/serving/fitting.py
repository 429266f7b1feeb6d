"""Choose how many replies are written at a time, and how long they may be, for the memory there is.

A cache keeps keys and values of every token of every row: some 0.1 MB a token for a model of 1 G
parameters, so that 64 rows of a long context do not fit on any machine.
"""

from typing import NamedTuple

from nanoeuler import log
from nanoeuler.backend.capabilities import ChoosingBackend, FusingBackend
from nanoeuler.errors import UserError
from nanoeuler.model.transformer import Transformer
from nanoeuler.system.machine import free_memory

USUAL_ROWS = 64
"""Most replies that a model writes at a time, by default."""

LEAST_ROWS = 4
"""Rows for which the context is cut, where nobody said how many."""

MULTIPLE = 128
"""A shortened context is a multiple of so many tokens."""

CPU_SHARE, DEVICE_SHARE = 0.5, 0.8
"""Share of the free memory for caches; activations and, on a CPU, other programs take the rest."""

PREFIX_SHARE, MOST_PREFIXES = 0.125, 1e9
"""Share of that for the beginnings of prompts that are kept, and most bytes of it, by default."""

MOST_PROMPTS = 8
"""Most prompts that a device reads together."""


class Room(NamedTuple):
    """Rows of a batch, and the tokens that each may have, prompt and reply together."""

    rows: int
    context: int
    prefix_bytes: float = 0
    """What may be kept of the beginnings of prompts."""


def fit(
    model: Transformer, rows: int | None, context: int | None, memory: float, name: str = "model"
) -> Room:
    """The largest room in `memory` bytes; `rows` and `context` are kept where they were given.

    Raises `UserError` where these do not fit, or the model has no such context.
    """
    longest = model.config.context
    if context is not None and not 2 <= context <= longest:
        raise UserError(
            f"--context {context}: {name} has a context of {longest:,} tokens; "
            "give 2 to that many, or leave it out"
        )
    most = most_rows(model, USUAL_ROWS if rows is None else rows)
    if rows is not None and most < rows:
        log.line("notice", f"--rows {rows}: this engine writes at most {most} replies at a time")
    wanted = Room(most, context or longest)
    tokens = int(memory // max(1, model.caches.token_bytes))
    if needed(model, wanted) <= tokens:
        return wanted
    found = wanted
    if rows is None:
        least = min(LEAST_ROWS if context is None else 1, most)
        found = Room(max(least, rows_within(model, wanted.context, most, tokens)), wanted.context)
    if context is None and needed(model, found) > tokens:
        per_row = needed(model, Room(found.rows, 1))
        found = Room(found.rows, tokens // per_row // MULTIPLE * MULTIPLE)
    if found.context < min(MULTIPLE, longest) or needed(model, found) > tokens:
        raise UserError(
            f"{name}: {log.counted(found.rows, 'row')} of {max(found.context, MULTIPLE):,} tokens "
            f"do not fit into {log.size(memory)}, its share of the free memory; "
            "give fewer --rows or a smaller --context"
        )
    asked = log.size(needed(model, wanted) * model.caches.token_bytes)
    log.line(
        "cache",
        f"{name}: {log.counted(found.rows, 'row')} of {found.context:,} tokens; "
        f"{wanted.rows} of {wanted.context:,} would take {asked} where {log.size(memory)} are free "
        "for it; --rows and --context choose otherwise",
    )
    return found


def most_rows(model: Transformer, rows: int) -> int:
    """`rows`, or fewer: beyond its rows an engine decodes in another way, with other rounding."""
    engine = model.backend
    return min(rows, engine.fused_rows) if isinstance(engine, FusingBackend) else rows


def rows_within(model: Transformer, context: int, most: int, tokens: int) -> int:
    """The most rows of `context` that fit into a cache of so many tokens; 0 if none do."""
    fitting = (rows for rows in range(most, 0, -1) if needed(model, Room(rows, context)) <= tokens)
    return next(fitting, 0)


def needed(model: Transformer, room: Room) -> int:
    """The tokens that caches of a batch hold: its rows, and the prompts that are being read."""
    return (room.rows + prompt_rows(model, room.rows)) * room.context


def prompt_rows(model: Transformer, rows: int) -> int:
    """The most prompts that are read together, rounded up to a power of two."""
    if not isinstance(model.backend, ChoosingBackend):
        return 1
    return 1 << (min(MOST_PROMPTS, rows) - 1).bit_length()


def cache_memory(model: Transformer, models: int) -> float:
    """Bytes for the caches of one of so many models."""
    device = model.backend.device
    if device is None:
        return CPU_SHARE * free_memory() / models
    return DEVICE_SHARE * device.free_memory / models


def prefix_memory(memory: float, megabytes: float | None) -> float:
    """Bytes for the beginnings of prompts, of the `memory` of a model's caches: what was asked for,
    or the usual. Raises `UserError` where that is more than half of it."""
    if megabytes is None:
        return min(PREFIX_SHARE * memory, MOST_PREFIXES)
    if not 0 <= 1e6 * megabytes <= memory / 2:
        raise UserError(
            f"--prefix-cache {megabytes:g}: megabytes from 0 to {memory / 2e6:,.0f}, which is half "
            "of a model's share of the free memory; give fewer, or leave it out"
        )
    return 1e6 * megabytes
