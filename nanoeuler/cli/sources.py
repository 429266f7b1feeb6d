"""The subcommands of the sources: they fetch data, check it and bring it into shape."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from nanoeuler.cli.options import add_config, finish
from nanoeuler.corpus.sources import COMMANDS

if TYPE_CHECKING:
    from nanoeuler.corpus.sources.source import Step


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add these subcommands."""
    for command, meaning in COMMANDS.values():
        parser = subparsers.add_parser(command, help=meaning)
        parser.add_later(partial(add_steps, command))


def add_steps(command: str, parser: argparse.ArgumentParser) -> None:
    """Add what a command takes, or the commands inside it: a source may have several steps."""
    from nanoeuler.corpus.sources.registry import STEPS

    steps = [step for step in STEPS.values() if step.command.split()[0] == command]
    if [step.command for step in steps] == [command]:
        return add_options(parser, steps[0])
    inside = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for step in steps:
        add_options(inside.add_parser(step.command.split()[1], help=step.help), step)


def add_options(parser: argparse.ArgumentParser, step: "Step") -> None:
    if step.sections:
        add_config(parser, step.sections)
    for option in step.options:
        parser.add_argument(
            option.flag,
            required=option.default is None,
            type=option.kind,
            default=option.default,
            metavar=option.metavar,
            help=option.meaning,
        )
    finish(parser, partial(run, step))


def run(step: "Step", options: argparse.Namespace) -> None:
    from nanoeuler.config import load

    config = load(options.config) if step.sections else {}
    step.run(config, **{option.name: getattr(options, option.name) for option in step.options})
