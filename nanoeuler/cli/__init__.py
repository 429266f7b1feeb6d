"""The command line: `nanoeuler <stage>`, with a module for each group of subcommands.

A group adds its subcommands with `register(subparsers)`. It imports what a stage needs only when
the stage runs, so that `nanoeuler --help` answers at once.
"""

import argparse
import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from itertools import starmap

from nanoeuler import log
from nanoeuler.cli import (
    checking,
    completion,
    corpus,
    evaluation,
    experiment,
    inference,
    information,
    interchange,
    lesson,
    own_text,
    planning,
    tracing,
    training,
    verification,
    workflow,
)
from nanoeuler.cli.parser import Parser, UsageError
from nanoeuler.errors import UserError
from nanoeuler.version import __version__

START = (
    ("nanoeuler train my-novel.txt", "from a text to a model, a report and a chat"),
    ("nanoeuler run", "the demo: all stages on a small invented world"),
    ("nanoeuler chat results/demo", "talk to its model"),
    ("nanoeuler plan config/small.yaml", "what a real run would cost here"),
    ("nanoeuler run config/small.yaml", "run it"),
)
"""The commands to begin with, for the top of `nanoeuler --help`."""
GROUPS = {
    "your own text": (own_text.register, lesson.register),
    "use a model": (inference.register, interchange.register),
    "a run": (workflow.register, planning.register, checking.register, information.register),
    "after a run": (
        evaluation.register,
        tracing.register,
        verification.register,
        experiment.register,
        interchange.register_changes,
    ),
    "your shell": (completion.register,),
    "the stages of a run, which Snakemake calls for you": (
        corpus.register,
        tracing.register_index,
        training.register,
    ),
}
"""What adds the subcommands under the headings of `nanoeuler --help`."""


def build_parser() -> Parser:
    parser = Parser(
        prog="nanoeuler",
        usage="nanoeuler COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nanoeuler {__version__}")
    subparsers = parser.add_subparsers(
        dest="stage", metavar="COMMAND", help=argparse.SUPPRESS, prog="nanoeuler"
    )
    sections = {"start here": list(START)}
    for heading, registers in GROUPS.items():
        before = len(subparsers._choices_actions)
        for register in registers:
            register(subparsers)
        added = subparsers._choices_actions[before:]
        sections[heading] = [(action.dest, action.help or "") for action in added]
        for name, text in sections[heading]:
            command = subparsers.choices[name]
            command.description = command.description or f"{text[:1].upper()}{text[1:]}."
    subparsers.choices["completion"].set_defaults(whole_parser=parser)
    parser.description = "\n\n".join(
        [
            "Train a GPT-2-class language model from scratch, and talk to it.",
            *starmap(help_section, sections.items()),
            "`nanoeuler COMMAND --help` shows what a command takes.",
        ]
    )
    return parser


def help_section(heading: str, entries: Sequence[tuple[str, str]]) -> str:
    """A heading, and below it the commands with their meanings."""
    width = max(14, 2 + max(len(command) for command, _ in entries))
    lines = [f"  {command:<{width}}{meaning}" for command, meaning in entries]
    return "\n".join([f"{heading}:", *lines])


def spare_last_collection() -> None:
    """Keep Python from searching all objects for garbage at its end: it takes 0.2 s with Numba's.

    DuckDB's binding calls what is left then a leak.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()


def main(arguments: list[str] | None = None) -> int:
    """Run one stage. Returns the exit status: 0, or 1 after one sentence on standard error.

    It is 2 when the command line itself cannot be read.
    """
    log.open_closed()
    log.lenient(sys.stdout)
    atexit.register(spare_last_collection)
    parser = build_parser()
    try:
        options = parser.read(arguments)
    except UsageError as error:
        log.start()
        log.line("error", str(error))
        return 2
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run what the command line asks for. Returns the exit status."""
    from nanoeuler.planning.remaining import WholeRun
    from nanoeuler.storage.files import explain_os_errors
    from nanoeuler.storage.timing import Timing
    from nanoeuler.system.processes import LEFT_ALONE, end_with_starter

    timing, log_file = Timing(options.stage), getattr(options, "log", None)
    if log_file:  # a stage of a workflow, which may be killed
        end_with_starter(lambda: os.kill(os.getpid(), LEFT_ALONE))
    try:
        with explain_os_errors():
            log.start(log_file, WholeRun(log_file).seconds if log_file else None)
            if options.stage is None:
                from nanoeuler.cli.greeting import greeting

                print(greeting(), flush=True)
                return 0
            try:
                if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # by __main__.py
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                status = options.handler(options) or 0
            except (KeyboardInterrupt, RuntimeError) as error:
                by_key = isinstance(error, KeyboardInterrupt)
                if not by_key and str(error) != "Query interrupted":  # so DuckDB says it
                    raise
                again = options.resumes and not log_file  # else the workflow says it
                log.line("interrupted", "run the same command again to go on" if again else "")
                status = 130
            timing.write(log_file, status)
        return status
    except UserError as error:
        log.line("error", str(error))
        return 1
    except BrokenPipeError:  # the program that reads our output (head, less) has ended
        log.forget(sys.stdout)
        return 0
