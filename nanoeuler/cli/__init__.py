"""The command line: `nanoeuler <stage>`, with a module for each group of subcommands.

A group adds its subcommands with `register(subparsers)`. It imports what a stage needs only when
the stage runs, so that `nanoeuler --help` answers at once.
"""

import argparse
import os
import sys

from nanoeuler import __version__, log
from nanoeuler.cli import (
    corpus,
    evaluation,
    inference,
    inspection,
    own_text,
    planning,
    sources,
    tokenizer,
    training,
)
from nanoeuler.errors import UserError
from nanoeuler.files import explain_os_errors
from nanoeuler.timing import Timing

GROUPS = (
    own_text,
    sources,
    corpus,
    tokenizer,
    training,
    inference,
    evaluation,
    inspection,
    planning,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanoeuler",
        description="Train a GPT-2-class language model from scratch, one stage at a time.",
    )
    parser.add_argument("--version", action="version", version=f"nanoeuler {__version__}")
    subparsers = parser.add_subparsers(dest="stage", metavar="STAGE", required=True)
    for group in GROUPS:
        group.register(subparsers)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one stage. Returns the exit status: 0, or 1 after one sentence on standard error."""
    options = build_parser().parse_args(arguments)
    log.lenient(sys.stdout)
    timing, log_file = Timing(options.stage), getattr(options, "log", None)
    try:
        with explain_os_errors():
            log.start(log_file)
            try:
                status = options.handler(options) or 0
            except KeyboardInterrupt:
                log.line("interrupted", "run the same command again to go on")
                status = 130
            timing.write(log_file, status)
        return status
    except UserError as error:
        log.line("error", str(error))
        return 1
    except BrokenPipeError:  # the program that reads our output (head, less) has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
