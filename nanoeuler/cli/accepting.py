"""The subcommand `accept`, for files that somebody changed on purpose."""

import argparse
from pathlib import Path

from nanoeuler import log
from nanoeuler.cli.options import finish


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "accept",
        help="take a model, records or a tokenizer that you changed yourself",
        description="What a stage reads must be what the stage before wrote, to the bit. Of a "
        "model folder, a folder of instructions or preferences, or a tokenizer.json that you "
        "changed or made yourself, this notes the present hashes, if it can be read at all.",
    )
    parser.add_argument("path", type=Path, help="the folder, or the tokenizer.json")
    finish(parser, run_accept)


def run_accept(options: argparse.Namespace) -> None:
    from nanoeuler.interchange.accepting import accept

    changed = accept(options.path)
    names = ", ".join(map(str, changed)) or "nothing was changed"
    log.line("accepted", names)
