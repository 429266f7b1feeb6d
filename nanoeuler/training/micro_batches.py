"""The number of rows that are computed at once, and advice when they do not fit into memory."""

from typing import TYPE_CHECKING

from nanoeuler.errors import UserError
from nanoeuler.model.buffers import rows_within
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.frozen import frozen_bytes
from nanoeuler.model.spec import parameter_count
from nanoeuler.training.job import Job
from nanoeuler.training.lanes import rows_at_once
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import state_bytes

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend


def micro_batch_rows(job: Job) -> int:
    """The number of rows to compute at once: the configured one, or as many as fit.

    It need not divide the rows of a step, which are padded then: see `even_share`.
    """
    rows, asked = job.rows_per_rank, job.settings.micro_batch_rows
    if job.lanes:
        tokens = job.backend.runtime.lane_tokens
        found = rows_at_once(job.stream.rows_per_step // job.lanes, job.stream.length, tokens)
        if asked != "auto" and int(asked) < found:
            raise UserError(
                f"{job.stage}.micro_batch_rows {asked}: {job.stage}.reproducible computes "
                f"{found} rows at once, whatever the machine; leave it out, or give more"
            )
        return found
    limit = rows_that_fit(job) if asked == "auto" else int(asked)
    return even_share(rows, max(1, min(limit, rows)))


def rows_that_fit(job: Job) -> int:
    """See `fitting_rows`."""
    form = job.config, job.backend, job.stream.length, job.rows_per_rank
    return fitting_rows(*form, recompute=job.settings.recompute)


def fitting_rows(
    model: ModelConfig, engine: "Backend", length: int, rows: int, *, recompute: bool = False
) -> int:
    """Rows of a micro-batch: as many of `rows` with `length` tokens each as memory holds.

    On a GPU they may take all that the training state leaves. On a CPU they may take an eighth of
    the memory, and no more tokens than suit the engine. The number depends on the size of the
    machine and not on what is free at the moment, so that a rerun computes the same bits.
    """
    tokens, shares = engine.runtime.slices(parameter_count(model))
    state = 2 * state_bytes(model, AdamW) + frozen_bytes(model, engine)
    budget = engine.activation_budget(state) // shares
    within = rows_within(model, engine, length, budget, recompute=recompute)
    return min(tokens // length, -(-rows // shares), within)


def even_share(rows: int, limit: int) -> int:
    """Rows of a micro-batch, at most `limit`: all micro-batches of a step have one shape.

    That is a divisor of `rows` where one is at least half of `limit`. A prime number of rows, say,
    has none; then it is the smallest number with which as few micro-batches do.
    """
    divisor = largest_divisor(rows, limit)
    return divisor if 2 * divisor >= limit else -(-rows // -(-rows // limit))


def largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(limit, 0, -1) if number % divisor == 0)


def smaller_batch(job: Job, tried: int) -> str:
    """Advice for when memory ran out in a step that computed `tried` rows at once."""
    if tried == 1:
        recompute = "" if job.settings.recompute else f"set {job.stage}.recompute: true, or "
        return f"a single row does not fit: {recompute}take a smaller model or a shorter context"
    rows = job.rows_per_rank
    fewer = even_share(rows, max(1, min(rows, rows_that_fit(job), tried - 1)))
    return (
        f"set {job.stage}.micro_batch_rows: {fewer} (the result stays the same within rounding) "
        "or take a smaller model"
    )


def smaller_model(job: Job) -> str:
    """Advice for when memory ran out before the first step."""
    beneath = frozen_bytes(job.config, job.backend, job.base.scheme if job.base else None)
    taken = (state_bytes(job.config, AdamW) + beneath) / 1e9
    return (
        f"parameters, gradients and moments of {parameter_count(job.config):,} parameters take "
        f"{taken:,.1f} GB whatever {job.stage}.micro_batch_rows and "
        f"{job.stage}.recompute are: take a smaller model"
    )
