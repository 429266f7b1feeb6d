"""Subcommands that fetch data, check it and bring it into shape."""

import argparse
from collections.abc import Mapping
from typing import Any

from nanoeuler.cli.options import add_config, add_path, finish
from nanoeuler.errors import UserError

SPLIT_FOLDER = "folder to write: train.jsonl, validation.jsonl, manifest.json"


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add these subcommands."""
    register_gutenberg(subparsers)
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
    add_path(
        parser,
        "--output",
        "FILE",
        "file of texts to write; their index and origins (id, url) come beside it",
    )
    add_path(
        parser,
        "--record",
        "FILE",
        "JSON file to write: what was read, dropped, kept and fetched",
    )
    finish(parser, fineweb)

    parser = subparsers.add_parser(
        "instructions", help="fetch instructions, check them, hold some out"
    )
    add_config(parser, "sources.instructions and sft.validation_share")
    add_name(
        parser,
        "name in the sources file, or the path of a file (Alpaca's or Dolly's shape, or messages)",
    )
    add_path(parser, "--output", "DIR", SPLIT_FOLDER)
    finish(parser, instructions)

    parser = subparsers.add_parser(
        "preferences", help="fetch preference pairs, check them, hold some out"
    )
    add_config(parser, "sources.preferences and dpo.validation_share")
    add_name(
        parser,
        "name in the sources file, or the path of a file of pairs (JSON, JSON lines or parquet)",
    )
    add_path(parser, "--output", "DIR", SPLIT_FOLDER)
    finish(parser, preferences)

    parser = subparsers.add_parser("questions", help="fetch held-out questions and check them")
    add_config(parser, "sources.questions")
    add_name(parser, "name in the sources file")
    add_path(parser, "--output", "FILE", "file of JSON lines to write")
    finish(parser, questions)

    parser = subparsers.add_parser("task", help="fetch a multiple-choice task and check its items")
    add_config(parser, "evaluate.tasks or sources.tasks")
    add_name(parser, "name in evaluate.tasks or in the sources file, such as hellaswag")
    add_path(parser, "--output", "DIR", "folder to write: items.jsonl, manifest.json")
    finish(parser, task)


def register_gutenberg(subparsers: argparse._SubParsersAction) -> None:
    gutenberg = subparsers.add_parser(
        "gutenberg", help="fetch a book of Project Gutenberg, or clean one"
    )
    steps = gutenberg.add_subparsers(dest="step", metavar="STEP", required=True)

    parser = steps.add_parser("fetch", help="fetch a book from a mirror")
    add_config(parser, "sources.gutenberg")
    add_book(parser)
    add_path(
        parser,
        "--output",
        "FILE",
        "where to keep it as it is served, such as data/gutenberg/raw/pg1342.txt",
    )
    finish(parser, fetch)

    parser = steps.add_parser("clean", help="cut the book out of its header, credits and licence")
    add_book(parser)
    add_path(parser, "--input", "FILE", "the file as it was served")
    add_path(parser, "--output", "FILE", "text file to write")
    add_path(parser, "--record", "FILE", "JSON file to write: markers found, bytes in and out")
    parser.add_argument(
        "--title", default="", help="title of the book (default: the one in its header)"
    )
    parser.add_argument("--author", default="", help="its author (default: the one in its header)")
    finish(parser, clean)


def add_book(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--id", required=True, type=int, metavar="N", help="number of the book, such as 1342"
    )


def add_name(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--name", required=True, help=meaning)


def find_section(config: Any, name: str) -> Any:
    """The part `name` ("sources.gutenberg") of the configuration.

    Raises `UserError` when there is none.
    """
    for key in name.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    if config is None:
        raise UserError(f"--config: {name} is missing; this stage needs it")
    return config


def fetch(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.config.sources import Gutenberg
    from nanoeuler.corpus.gutenberg_mirror import fetch_book

    config = load(options.config)
    mirror = find_section(config, "sources.gutenberg.mirror")
    pause = config["sources"]["gutenberg"].get("delay_seconds", Gutenberg.delay_seconds)
    fetch_book(mirror, options.id, options.output, pause)


def clean(options: argparse.Namespace) -> None:
    from nanoeuler.corpus.gutenberg import clean_file

    clean_file(
        options.input, options.output, options.record, options.id, options.title, options.author
    )


def fineweb(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.fineweb import Filters, extract

    config = load(options.config)
    filters = Filters.from_config(find_section(config, "corpus.fineweb"))
    source = find_section(config, "sources.fineweb")
    extract(source, options.shard, filters, options.output, options.record)


def instructions(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.config.settings import Sft
    from nanoeuler.corpus.instructions import prepare

    config = load(options.config)
    share = Sft.read(config.get("sft", {})).validation_share
    prepare(options.name, known_sources(config, "instructions"), share, options.output)


def preferences(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.config.settings import Dpo
    from nanoeuler.corpus.preferences import prepare

    config = load(options.config)
    share = Dpo.read(config.get("dpo", {})).validation_share
    prepare(options.name, known_sources(config, "preferences"), share, options.output)


def known_sources(config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return config.get("sources", {}).get(kind, {})


def questions(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.questions import prepare

    prepare(options.name, find_section(load(options.config), "sources.questions"), options.output)


def task(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.corpus.tasks import describe_task, prepare

    prepare(describe_task(options.name, load(options.config)), options.output)
