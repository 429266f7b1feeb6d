"""Subcommand `verify`: train a part of a run again, and compare every number with it."""

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers
from nanoeuler.cli.training import engine_of, group_of
from nanoeuler.errors import UserError, brief

if TYPE_CHECKING:
    from nanoeuler.evaluation.verification import Verified


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="train a part of a run again, and compare every number with what it wrote",
        description="Train steps of a run's stage again, from a checkpoint or the seed, and "
        "compare losses, gradient norms, measurements, adapters and the model with what the run "
        "wrote, to the bit. Nothing of the run is changed.",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RUN STAGE",
        help="the folder of a run, such as results/demo; and a stage (default: the first)",
    )
    parser.add_argument(
        "--steps",
        metavar="A:B",
        help="the steps behind A up to B (default: the first 20); 0: trains the whole stage again; "
        "without a checkpoint up to A it begins with the seed",
    )
    parser.add_json()
    parser.add_device()
    parser.add_shared_gpus()
    parser.add_ranks()
    parser.finish(run_verify)


def run_verify(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from nanoeuler.evaluation.verification import made, verify
    from nanoeuler.training.distributed.ranks import connected

    if len(options.words) > 2:
        raise UserError("verify: give the folder of a run and one stage")
    run, name = [*options.words, None][:2]
    stage = made(Path(run), name)
    asked = options.steps if options.steps is not None else f"0:{min(20, max(stage.lines))}"
    steps = re.fullmatch("([0-9]+):([0-9]*)", asked)
    if not steps:
        raise UserError(f"--steps {brief(asked)}: give two steps, such as 100:120, or 0:")
    settings = stage.stage.settings.read(stage.config[stage.stage.section])
    with group_of(options, stage.folder) as group:
        backend = engine_of(options, group, settings.precision, settings.residual_precision)
        if settings.reproducible == "chip":
            backend = backend.for_any_processor(f"{stage.stage.section}.reproducible")
        last = int(steps[2]) if steps[2] else None
        found = verify(stage, int(steps[1]), last, backend, connected(group, backend))
    if found is None:
        return 0
    if options.json:
        print(json.dumps({"version": 1, **asdict(found)}, ensure_ascii=False), flush=True)
    else:
        print(log.printable(told(found)), flush=True)
    return 1 if found.differs else 0


def told(found: "Verified") -> str:
    """What was compared, for people."""
    start = "the seed" if found.seed else f"the checkpoint of step {found.first:,}"
    lines = [
        f"{found.stage}: steps {found.first + 1:,} to {found.last:,} again, from {start}: "
        f"{log.counted(found.values, 'number')} equal to the bit"
    ]
    if found.adapter:
        lines.append(f"the adapters have the same weights, SHA-256 {found.adapter}")
    if found.model:
        lines.append(f"the model has the same weights, SHA-256 {found.model}")
    if found.differs:
        lines.append(f"differs at {found.differs}")
        if found.elsewhere:
            lines.append(f"other than in the run: {', '.join(found.elsewhere)}")
        if found.by_ranks:
            lines.append(
                "of a run that was resumed with another number of ranks, or other micro-batches, "
                "only steps behind a checkpoint since then can be verified (without reproducible)"
            )
    return "\n".join(lines)
