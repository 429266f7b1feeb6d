"""Options that several subcommands have."""

import argparse
from collections.abc import Callable
from pathlib import Path

from nanoeuler.backend import DEVICES

Handler = Callable[[argparse.Namespace], int | None]


def add_config(parser: argparse.ArgumentParser, sections: str) -> None:
    parser.add_argument(
        "--config",
        required=True,
        metavar="C",
        help=f"configuration: a YAML file, or inline JSON with {sections}",
    )


def add_path(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """A path that must be given."""
    parser.add_argument(flag, required=True, type=Path, metavar=metavar, help=meaning)


def add_optional_path(
    parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str
) -> None:
    parser.add_argument(flag, type=Path, metavar=metavar, help=meaning)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads (default 1); the result is the same for any number",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="engine (default: auto, the fastest there is)",
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs to use; 0 forces the CPU")


def finish(parser: argparse.ArgumentParser, handler: Handler) -> None:
    """Add the option `--log`, which every subcommand has, and the function that runs it."""
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=handler)
