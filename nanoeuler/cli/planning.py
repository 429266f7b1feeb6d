"""Subcommand `plan`: what a configuration will cost on this machine."""

import argparse
from pathlib import Path

from nanoeuler.backend import DEVICES


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="what a configuration will cost on this machine",
        description="Print what a run downloads and needs of disk, memory and time, and fail with the remedy when this machine won't do.",
    )
    parser.add_argument(
        "--config",
        required=True,
        help="YAML file, or inline JSON of the whole resolved configuration",
    )
    parser.add_argument(
        "--name", help="the configuration's file, for the advice when --config is inline"
    )
    parser.add_argument(
        "--stages",
        help="training stages about to run, separated by commas (default: all of the configuration's; empty: none)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=None,
        help="engine to probe (default: the configuration's)",
    )
    parser.add_argument(
        "--unless-short",
        action="store_true",
        help="don't time steps of a run that takes minutes on any machine, as a workflow does",
    )
    parser.add_argument(
        "--gpus", type=int, default=None, metavar="N", help="GPUs to use; 0 forces the CPU"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=run_plan)


def run_plan(options: argparse.Namespace) -> int:
    from nanoeuler import log, planning
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load

    config = load(options.config)
    name = options.name or (
        "config/config.yaml" if options.config.lstrip().startswith("{") else options.config
    )
    backend = make_backend(options.device or config["device"], options.gpus)
    plan = planning.make_plan(
        config,
        backend,
        None if options.stages is None else [stage for stage in options.stages.split(",") if stage],
    )
    found = planning.shortages(config, plan, name)
    if (
        plan.stages and not found and not (options.unless_short and planning.is_short(config, plan))
    ):  # memory does: a few steps may be tried
        planning.probe(config, backend, plan)
        found = planning.shortages(config, plan, name)
    print(planning.describe(config, plan), flush=True)
    for sentence in found:
        log.line("error", sentence)
    return 1 if found else 0
