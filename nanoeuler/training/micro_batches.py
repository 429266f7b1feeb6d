"""How many rows of a step are computed at once, and what to do when even they do not fit into memory."""

from typing import TYPE_CHECKING

from nanoeuler.model.buffers import rows_within
from nanoeuler.model.spec import parameter_count, state_bytes

if TYPE_CHECKING:
    from nanoeuler.training.loop import Job


def micro_batch_rows(job: "Job") -> int:
    """Rows computed at once: as given, or as many as fit."""
    rows, asked = job.stream.rows_per_step, job.section.get("micro_batch_rows", "auto")
    return largest_divisor(
        rows, max(1, min(rows_that_fit(job) if asked == "auto" else int(asked), rows))
    )


def rows_that_fit(job: "Job") -> int:
    """Of a GPU's memory, all that the state leaves; of a CPU's, an eighth, up to the tokens that suit the engine.

    A function of the machine's size, not of what is free at the moment, so that a rerun computes the same bits.
    """
    length, engine = job.stream.length, job.backend
    tokens, shares = engine.slices(parameter_count(job.config))
    budget = engine.activation_budget(2 * state_bytes(job.config)) // shares
    recompute = job.section.get("recompute", False)
    return min(
        tokens // length,
        -(-job.stream.rows_per_step // shares),
        rows_within(job.config, engine, length, budget, recompute=recompute),
    )


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` up to `limit`: all micro-batches of a step have one shape."""
    return next(divisor for divisor in range(limit, 0, -1) if number % divisor == 0)


def smaller_batch(job: "Job", tried: int) -> str:
    """What to do when memory ran out in a step of `tried` rows at once."""
    if tried == 1:
        recompute = (
            "" if job.section.get("recompute", False) else f"set {job.stage}.recompute: true, or "
        )
        return f"a single row does not fit: {recompute}take a smaller model or a shorter context"
    fit = min(job.stream.rows_per_step, rows_that_fit(job))
    rows = largest_divisor(job.stream.rows_per_step, max(1, min(fit, tried - 1)))
    return f"set {job.stage}.micro_batch_rows: {rows} (the result stays the same within rounding) or take a smaller model"


def smaller_model(job: "Job") -> str:
    """What to do when memory ran out before the first step."""
    return (
        f"parameters, gradients and moments of {parameter_count(job.config):,} parameters take {state_bytes(job.config) / 1e9:,.1f} GB whatever "
        f"{job.stage}.micro_batch_rows and {job.stage}.recompute are: take a smaller model"
    )
