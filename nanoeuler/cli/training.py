"""Subcommands of the training wing: `pretrain`, `sft` and `dpo`."""

import argparse
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.backend import DEVICES
from nanoeuler.errors import UserError


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    parser = subparsers.add_parser(
        "pretrain",
        help="train a model on token shards",
        description="Train a model on token shards; resumes where it stopped.",
    )
    parser.add_argument(
        "--tokens",
        required=True,
        type=Path,
        metavar="MANIFEST",
        help="manifest.json of the token shards",
    )
    add_common(parser, "pretrain")
    parser.set_defaults(handler=run_pretrain)
    parser = subparsers.add_parser(
        "sft",
        help="tune a model on instructions",
        description="Tune a model on instructions; resumes where it stopped.",
    )
    parser.add_argument(
        "--instructions",
        required=True,
        type=Path,
        metavar="MANIFEST",
        help="manifest.json of the instruction records",
    )
    parser.add_argument(
        "--parent",
        type=Path,
        metavar="DIR",
        help="model to start from; without it (and without sft.init_from) the weights are random",
    )
    add_common(parser, "sft")
    parser.set_defaults(handler=run_sft)
    parser = subparsers.add_parser(
        "dpo",
        help="align a model with preferences",
        description="Align a model with preference pairs; resumes where it stopped.",
    )
    parser.add_argument(
        "--preferences",
        required=True,
        type=Path,
        metavar="MANIFEST",
        help="manifest.json of the preference pairs",
    )
    parser.add_argument(
        "--parent",
        type=Path,
        metavar="DIR",
        help="model to start from, which is the reference too (default: dpo.init_from)",
    )
    add_common(parser, "dpo")
    parser.set_defaults(handler=run_dpo)


def add_common(parser: argparse.ArgumentParser, stage: str) -> None:
    parser.add_argument(
        "--config",
        required=True,
        help="YAML file, or inline JSON with the sections seed, model and " + stage,
    )
    parser.add_argument("--tokenizer", required=True, type=Path, help="tokenizer.json")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help=f"folder of the stage, such as results/demo/{stage}",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="engine (default: auto, the fastest there is)",
    )
    parser.add_argument(
        "--gpus", type=int, default=None, metavar="N", help="GPUs to use; 0 forces the CPU"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )


def run_pretrain(options: argparse.Namespace) -> int:
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.training.pretrain import pretrain

    config = load(options.config)
    backend = make_backend(options.device, options.gpus, **precisions(config["pretrain"]))
    return run(lambda: pretrain(config, options.tokens, options.tokenizer, options.output, backend))


def run_sft(options: argparse.Namespace) -> int:
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.training.sft import sft

    config = load(options.config)
    backend = make_backend(options.device, options.gpus, **precisions(config["sft"]))
    parent = options.parent or (
        Path(config["sft"]["init_from"]) if config["sft"].get("init_from") else None
    )
    return run(
        lambda: sft(
            config, options.instructions, options.tokenizer, parent, options.output, backend
        )
    )


def run_dpo(options: argparse.Namespace) -> int:
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.training.dpo import dpo

    config = load(options.config)
    backend = make_backend(options.device, options.gpus, **precisions(config["dpo"]))
    parent = options.parent or (
        Path(config["dpo"]["init_from"]) if config["dpo"].get("init_from") else None
    )
    if parent is None:
        raise UserError(
            "dpo starts from a tuned model; give its folder with --parent, or set dpo.init_from"
        )
    return run(
        lambda: dpo(config, options.preferences, options.tokenizer, parent, options.output, backend)
    )


def precisions(section: dict[str, Any]) -> dict[str, str]:
    """What a stage's section says of number formats, for `make_backend`."""
    return {
        "precision": section.get("precision", "auto"),
        "residual": section.get("residual_precision", "auto"),
    }


def run(stage) -> int:
    """Run a training stage; a stop asked for by a signal ends with the status that shells expect."""
    from nanoeuler.training.stopping import Stopped

    try:
        stage()
        return 0
    except Stopped as stopped:
        log.line("stopped", "the state is saved; run the same command again to go on")
        return 128 + stopped.signal_number
