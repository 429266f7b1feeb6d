"""Sums that do not depend on who computes what: the same bits for any number of ranks.

A step's rows are cut into LANES equal lanes. Each is computed alone, some rows at a time whose
number nothing but its length decides, and into gradients of its own. Then neighbours are added up,
and neighbours of these sums, until one is left: by one rank, or by several that begin with their
lanes and end with each other. What has no such order is added up from numbers that lie side by
side: the losses of all lanes, and the squared gradients of all cells of the flat buffer.
"""

import math

from nanoeuler import log
from nanoeuler.backend.ops import Backend
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import trained_table

LANES = 8
CELL = 1 << 20
"""Elements whose squares are added up at once."""


def lanes_of(rows: int, length: int, least_tokens: int) -> int:
    """Lanes of a step of `rows` with `length` tokens each: the largest power of two, up to LANES,
    that divides the rows; and so few, but two, that each has `least_tokens`."""
    lanes = math.gcd(rows, LANES)
    while lanes > 2 and rows * length < lanes * least_tokens:
        lanes //= 2
    return lanes


def require_lanes(
    stage: str, rows: int, lanes: int, ranks: int, least_tokens: int, *, rounded: bool
) -> None:
    """Raise `UserError` where so many ranks cannot share a step of `rows` in `lanes`, or would send
    rounded sums."""
    if rounded:
        raise UserError(
            f"{stage}.reproducible: sums that are sent in bf16 are rounded as often as there are "
            f"ranks; leave {stage}.sums_precision out"
        )
    if lanes % ranks:
        least = ranks * least_tokens if ranks in (4, 8) else 0
        raise UserError(
            f"{stage}.reproducible: a step has {log.counted(rows, 'row')}, added up in one order "
            f"in {log.counted(lanes, 'part')}, which {ranks} ranks cannot share; take 1, 2, 4 or 8 "
            f"ranks, and {stage}.batch_tokens of a multiple of as many rows"
            + (f", at least {least:,}" if least else "")
        )


def engine_beside_steps(reproducible: str | None, config: ModelConfig, engine: Backend) -> Backend:
    """The engine by which a model is computed beside the steps: one whose bits depend on no number
    of threads where those are promised. BLAS rounds rows otherwise that several threads share; own
    products don't."""
    if reproducible != "ranks":
        return engine
    return engine.runtime.replicas(engine, FlatBuffer.elements(config), lanes=1)[0]


def rows_at_once(rows: int, length: int, tokens: int) -> int:
    """How many of a lane's `rows` with `length` tokens each are computed together: as many as are a
    divisor, with up to `tokens` tokens."""
    most = max(1, tokens // length)
    return next(count for count in range(min(most, rows), 0, -1) if rows % count == 0)


def cells_of(config: ModelConfig) -> list[slice]:
    """The flat buffer of what is trained, in pieces of whole tensors or of CELL elements of one."""
    starts = [
        start
        for tensor in trained_table(config)
        for start in range(tensor.offset, tensor.stop, CELL)
    ]
    return list(map(slice, starts, [*starts[1:], trained_table(config)[-1].stop]))
