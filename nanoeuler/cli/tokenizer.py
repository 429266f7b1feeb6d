"""Subcommands of the tokenizer: `bpe`, `tokenize` and `import-gpt2`."""

import argparse
from pathlib import Path
from typing import Any

from nanoeuler.cli.options import add_config, add_path, add_threads, finish


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add these subcommands."""
    parser = subparsers.add_parser(
        "bpe", help="learn a byte-level BPE tokenizer from a corpus, or take a given one"
    )
    add_config(parser, "the section tokenizer")
    add_path(parser, "--corpus", "MANIFEST", "manifest.json of a corpus")
    add_path(parser, "--output", "FILE", "the tokenizer.json to write")
    add_threads(parser)
    finish(parser, run_bpe)

    parser = subparsers.add_parser("tokenize", help="turn a corpus into token shards")
    add_config(parser, "tokenizer.vocab_size")
    add_path(parser, "--corpus", "MANIFEST", "manifest.json of a corpus")
    add_path(parser, "--tokenizer", "FILE", "tokenizer.json")
    add_path(parser, "--output", "FOLDER", "the folder to write shards and manifest.json to")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--group",
        type=int,
        metavar="G",
        help="encode one group of a corpus in groups; groups may be encoded at the same time",
    )
    which.add_argument(
        "--groups",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="put the shards of all groups together, in the order of their numbers",
    )
    add_threads(parser)
    finish(parser, run_tokenize)

    parser = subparsers.add_parser(
        "import-gpt2", help="turn the files of GPT-2's own vocabulary into a tokenizer.json"
    )
    parser.add_argument("folder", type=Path, help="the folder with encoder.json and vocab.bpe")
    add_path(parser, "--output", "FILE", "the tokenizer.json to write")
    finish(parser, run_import)


def run_bpe(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import learn_tokenizer, take_tokenizer

    settings = tokenizer_settings(options.config)
    vocab_size = whole_number(settings, "vocab_size")
    if given := settings.get("path"):
        take_tokenizer(Path(given), vocab_size, options.output)
        return
    sample_bytes = whole_number(settings, "sample_bytes")
    learn_tokenizer(options.corpus, vocab_size, sample_bytes, options.output, options.threads)


def run_tokenize(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import join_groups, tokenize_corpus

    if options.groups:
        join_groups(options.groups, options.tokenizer, options.output)
        return
    vocab_size = whole_number(tokenizer_settings(options.config), "vocab_size")
    inputs = options.corpus, options.tokenizer, options.output
    tokenize_corpus(*inputs, vocab_size, options.threads, group=options.group)


def run_import(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import import_gpt2

    import_gpt2(options.folder, options.output)


def tokenizer_settings(source: str) -> dict[str, Any]:
    """The section `tokenizer` of the configuration."""
    from nanoeuler import config
    from nanoeuler.errors import UserError

    settings = config.load(source).get("tokenizer")
    if not isinstance(settings, dict):
        raise UserError(
            "the config has no section `tokenizer`; add one with vocab_size and sample_bytes"
        )
    return settings


def whole_number(settings: dict[str, Any], key: str) -> int:
    from nanoeuler.errors import UserError, brief

    value = settings.get(key)
    if type(value) is not int:
        raise UserError(f"tokenizer.{key} is {brief(value)} in the config; give a whole number")
    return value
