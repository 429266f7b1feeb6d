"""Subcommands of the sources wing: what comes from elsewhere, and is checked and put into shape on arrival."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    gutenberg = subparsers.add_parser(
        "gutenberg", help="fetch a book of Project Gutenberg, or clean one"
    )
    steps = gutenberg.add_subparsers(dest="step", metavar="STEP", required=True)

    parser = steps.add_parser("fetch", help="fetch a book from a mirror")
    add_config(parser, "sources.gutenberg")
    parser.add_argument(
        "--id", required=True, type=int, metavar="N", help="number of the book, such as 1342"
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="where to keep it as it is served, such as data/gutenberg/raw/pg1342.txt",
    )
    finish(parser, fetch)

    parser = steps.add_parser("clean", help="cut the book out of its header, credits and licence")
    parser.add_argument("--id", required=True, type=int, metavar="N", help="number of the book")
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="the file as it was served"
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="text file to write"
    )
    parser.add_argument(
        "--record",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON file to write: markers found, bytes in and out",
    )
    parser.add_argument(
        "--title", default="", help="title of the book (default: the one in its header)"
    )
    parser.add_argument("--author", default="", help="its author (default: the one in its header)")
    finish(parser, clean)

    parser = subparsers.add_parser(
        "fineweb", help="extract the web pages of a FineWeb-Edu shard that pass the filters"
    )
    add_config(parser, "corpus.fineweb and sources.fineweb")
    parser.add_argument(
        "--shard",
        required=True,
        type=int,
        metavar="N",
        help="number of the shard in the sources file, from 0",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="file of texts to write; their index and origins (id, url) come beside it",
    )
    parser.add_argument(
        "--record",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON file to write: what was read, dropped, kept and fetched",
    )
    finish(parser, fineweb)

    parser = subparsers.add_parser(
        "instructions", help="fetch instructions, check them, hold some out"
    )
    add_config(parser, "sources.instructions and sft.validation_share")
    parser.add_argument(
        "--name",
        required=True,
        help="name in the sources file, or the path of a file (Alpaca's or Dolly's shape, or messages)",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder to write: train.jsonl, validation.jsonl, manifest.json",
    )
    finish(parser, instructions)

    parser = subparsers.add_parser(
        "preferences", help="fetch preference pairs, check them, hold some out"
    )
    add_config(parser, "sources.preferences and dpo.validation_share")
    parser.add_argument(
        "--name",
        required=True,
        help="name in the sources file, or the path of a file of pairs (JSON, JSON lines or parquet)",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder to write: train.jsonl, validation.jsonl, manifest.json",
    )
    finish(parser, preferences)

    parser = subparsers.add_parser("questions", help="fetch held-out questions and check them")
    add_config(parser, "sources.questions")
    parser.add_argument("--name", required=True, help="name in the sources file")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="file of JSON lines to write"
    )
    finish(parser, questions)

    parser = subparsers.add_parser("task", help="fetch a multiple-choice task and check its items")
    add_config(parser, "evaluate.tasks or sources.tasks")
    parser.add_argument(
        "--name",
        required=True,
        help="name in evaluate.tasks or in the sources file, such as hellaswag",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder to write: items.jsonl, manifest.json",
    )
    finish(parser, task)


def add_config(parser: argparse.ArgumentParser, reads: str) -> None:
    parser.add_argument("--config", required=True, help=f"YAML file, or inline JSON with {reads}")


def finish(parser: argparse.ArgumentParser, handler: Any) -> None:
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=handler)


def section(config: Any, name: str) -> Any:
    """The part `name` ("sources.gutenberg") of the configuration. Raises `UserError` when it has none."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    if config is None:
        raise UserError(f"--config: {name} is missing; this stage needs it")
    return config


def fetch(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.gutenberg_mirror import fetch_book

    config = load(options.config)
    pause = section(config, "sources.gutenberg").get("delay_seconds", 2.0)
    fetch_book(section(config, "sources.gutenberg.mirror"), options.id, options.output, pause)


def clean(options: argparse.Namespace) -> None:
    from nanoeuler.corpus.gutenberg import clean_file

    clean_file(
        options.input, options.output, options.record, options.id, options.title, options.author
    )


def fineweb(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.fineweb import Filters, extract

    config = load(options.config)
    filters = Filters.from_config(section(config, "corpus.fineweb"))
    extract(
        section(config, "sources.fineweb"), options.shard, filters, options.output, options.record
    )


def instructions(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.instructions import prepare

    config = load(options.config)
    share = config.get("sft", {}).get("validation_share", 0.02)
    prepare(options.name, config.get("sources", {}).get("instructions", {}), share, options.output)


def preferences(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.preferences import prepare

    config = load(options.config)
    share = config.get("dpo", {}).get("validation_share", 0.02)
    prepare(options.name, config.get("sources", {}).get("preferences", {}), share, options.output)


def questions(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.questions import prepare

    prepare(options.name, section(load(options.config), "sources.questions"), options.output)


def task(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.tasks import describe_task, prepare

    prepare(describe_task(options.name, load(options.config)), options.output)
