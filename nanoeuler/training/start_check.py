"""The check at the start of a stage: is what is about to compute the model right?

Gradients are compared with numerical derivatives, and the engine with the specification. A result
holds for the code, the engine with its versions and device, and the form of the model. It is kept
in the user's cache folder, so that a restart does not pay again.
"""

import contextlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.backend.ops import Backend
from nanoeuler.config.rules import CHECKED_CODE, code_fingerprint
from nanoeuler.errors import UserError
from nanoeuler.model.checks.comparison import Comparison
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_device_ops
from nanoeuler.model.checks.model_gradients import check_all
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameter_count
from nanoeuler.storage.files import canonical_json, read_text, sha256_text, write_json
from nanoeuler.system.machine import cache_folder
from nanoeuler.training.check_form import ADAMW, check_form
from nanoeuler.training.optimizer.optimizer import OptimizerSettings


@dataclass(frozen=True)
class Form:
    """Subject of the check: a model of this configuration, trained on this engine."""

    engine: Backend
    config: ModelConfig
    recompute: bool = False
    optimizer: OptimizerSettings = ADAMW
    scheme: str | None = None  # of the weights beneath adapters, where they are quantized

    def rows(self) -> list[Comparison]:
        """Everything that the engine computes beside the specification."""
        of = self.engine, self.config, self.optimizer
        return list(check_form(*of, recompute=self.recompute, scheme=self.scheme))

    @property
    def key(self) -> str:
        """A hash of all that the result depends on."""
        depends = {
            "code": code_fingerprint(*CHECKED_CODE),
            "environment": self.engine.environment(),
            "device": self.engine.device_name,
            "model": self.config.to_dict(),
            "recompute": self.recompute,
            "optimizer": str(self.optimizer),
            "scheme": self.scheme,
        }
        return sha256_text(canonical_json(depends))


def summarise(engine: Backend, rows: list[Comparison]) -> dict[str, Any]:
    """Which engine was checked, and the row that comes nearest to its limit, as JSON values."""
    row = worst(rows)
    return {
        "engine": engine.name,
        "device": engine.device_name,
        "precision": engine.precision,
        "tensors": len(rows),
        "passed": all(row.passed for row in rows),
        "largest_error": row.error if math.isfinite(row.error) else None,
        "limit": row.limit,
    }


def worst(rows: Iterable[Comparison]) -> Comparison:
    """The row whose error is largest in relation to its limit; NaN is larger than all."""
    return max(rows, key=lambda row: math.inf if math.isnan(row.error) else row.error / row.limit)


def check_before_training(form: Form, stage: str) -> dict[str, Any]:
    """Refuse to train what is computed wrongly; returns the engine's summary.

    Raises `UserError` that names the engine, the op, and by how much it differs. Of a learner's
    ops it only says so: what a mistake does to training is worth seeing.
    """
    if form.engine.candidate:
        rows = form.rows()
        if wrong := [row for row in rows if not row.passed]:
            row = worst(wrong)
            log.line(
                "warning",
                f"these ops do not compute what the specification says: {row.tensor} in "
                f"'{row.case}' differs by {row.error:.1e}; it is trained to show what that does",
            )
        return summarise(form.engine, rows)
    kept = read_kept(form)
    if kept is None:
        gradients, rows = list(check_all(quick=True)), form.rows()
        refuse_wrong_gradients(gradients, stage)
        refuse_wrong_engine(form, rows, stage)
        kept = keep(form, gradients, rows)
    engine = kept["engine"]
    log.line(
        "gradients",
        f"every op and tensor agrees with numerical derivatives to {kept['gradients']:.1e}, "
        f"{engine_name(form.engine)} with the specification to {engine['largest_error']:.1e} "
        f"(limit {engine['limit']:g})",
    )
    return engine


def engine_name(engine: Backend) -> str:
    return f"engine {engine.name} in {engine.precision} on {engine.device_name}"


def refuse_wrong_gradients(rows: list[Comparison], where: str) -> None:
    """Raise `UserError` where the specification's backward pass is wrong."""
    wrong = [row for row in rows if not row.passed]
    if wrong:
        row = worst(wrong)
        raise UserError(
            f"{where}: {len(wrong)} of {len(rows)} gradients differ from numerical derivatives by "
            f"more than {row.limit:g}, most of all that of {row.tensor} in '{row.case}', by "
            f"{row.error:.1e}; the backward pass of an op is not the derivative of its forward "
            "pass ('nanoeuler check' prints the whole table)"
        )


def refuse_wrong_engine(form: Form, rows: list[Comparison], where: str) -> None:
    """Raise `UserError` where the engine computes something else than the specification."""
    wrong = [row for row in rows if not row.passed]
    if not wrong:
        return
    row = worst(wrong)
    op = wrong_op(form)
    named = f"; op '{op.case}' differs by {op.error:.1e} in {op.tensor}" if op else ""
    raise UserError(
        f"{where}: {engine_name(form.engine)} does not compute what the specification says: "
        f"{len(wrong)} of {len(rows)} tensors differ, most of all {row.tensor} in '{row.case}', by "
        f"{row.error:.1e} (limit {row.limit:g}){named}; do not train with it: undo what was "
        "changed in nanoeuler/backend, or take another --device"
    )


def wrong_op(form: Form) -> Comparison | None:
    """The first op that differs from the specification by itself."""
    log.line("check", f"{engine_name(form.engine)} is wrong; looking for the op, up to a minute")
    ops = form.engine.as_for(parameter_count(form.config))
    limit = OP_TOLERANCE[ops.precision]
    return next((row for row in check_device_ops(ops) if not row.error <= limit), None)


# ---- what was found before


def read_kept(form: Form) -> dict[str, Any] | None:
    """The result of an earlier process, if nothing was wrong."""
    try:
        kept = json.loads(read_text(kept_path(form)))
        return kept if kept["engine"]["passed"] is True and kept["gradients"] >= 0 else None
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None


def keep(form: Form, gradients: list[Comparison], rows: list[Comparison]) -> dict[str, Any]:
    """Keep for the next start that nothing is wrong; returns what `read_kept` will."""
    found = {"gradients": worst(gradients).error, "engine": summarise(form.engine, rows)}
    path = kept_path(form)
    with contextlib.suppress(OSError, UserError):  # costs only the next start's seconds
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    return found


def kept_path(form: Form) -> Path:
    return cache_folder() / "checks" / f"{form.key}.json"
