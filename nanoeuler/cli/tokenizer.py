"""Subcommands of the tokenizer wing."""

import argparse
from pathlib import Path
from typing import Any


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    bpe = subparsers.add_parser("bpe", help="learn a byte-level BPE tokenizer from a corpus")
    bpe.add_argument(
        "--config",
        required=True,
        help="path of a YAML config, or inline JSON; read: tokenizer.vocab_size, tokenizer.sample_bytes",
    )
    bpe.add_argument(
        "--corpus", required=True, type=Path, metavar="MANIFEST", help="manifest.json of a corpus"
    )
    bpe.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="the tokenizer.json to write"
    )
    bpe.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads that count words (default 1); the result is the same for any number",
    )
    bpe.add_argument("--log", metavar="PATH", help="append what is shown to this file as well")
    bpe.set_defaults(handler=run_bpe)

    tokenize = subparsers.add_parser("tokenize", help="turn a corpus into token shards")
    tokenize.add_argument(
        "--config",
        required=True,
        help="path of a YAML config, or inline JSON; read: tokenizer.vocab_size",
    )
    tokenize.add_argument(
        "--corpus", required=True, type=Path, metavar="MANIFEST", help="manifest.json of a corpus"
    )
    tokenize.add_argument(
        "--tokenizer", required=True, type=Path, metavar="FILE", help="tokenizer.json"
    )
    tokenize.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="the folder to write shards and manifest.json to",
    )
    tokenize.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads that encode (default 1); the result is the same for any number",
    )
    tokenize.add_argument("--log", metavar="PATH", help="append what is shown to this file as well")
    tokenize.set_defaults(handler=run_tokenize)

    imported = subparsers.add_parser(
        "import-gpt2", help="turn the files of GPT-2's own vocabulary into a tokenizer.json"
    )
    imported.add_argument("folder", type=Path, help="the folder with encoder.json and vocab.bpe")
    imported.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="the tokenizer.json to write"
    )
    imported.add_argument("--log", metavar="PATH", help="append what is shown to this file as well")
    imported.set_defaults(handler=run_import)


def run_bpe(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import learn_tokenizer

    settings = tokenizer_settings(options.config)
    sizes = [whole_number(settings, key) for key in ("vocab_size", "sample_bytes")]
    learn_tokenizer(options.corpus, *sizes, options.output, threads=options.threads)


def run_tokenize(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import tokenize_corpus

    vocab_size = whole_number(tokenizer_settings(options.config), "vocab_size")
    tokenize_corpus(
        options.corpus,
        options.tokenizer,
        options.output,
        vocab_size=vocab_size,
        threads=options.threads,
    )


def run_import(options: argparse.Namespace) -> None:
    from nanoeuler.tokenizer.stages import import_gpt2

    import_gpt2(options.folder, options.output)


def tokenizer_settings(source: str) -> dict[str, Any]:
    """The config's section `tokenizer`."""
    from nanoeuler import config
    from nanoeuler.errors import UserError

    settings = config.load(source).get("tokenizer")
    if not isinstance(settings, dict):
        raise UserError(
            "the config has no section `tokenizer`; add one with vocab_size and sample_bytes"
        )
    return settings


def whole_number(settings: dict[str, Any], key: str) -> int:
    from nanoeuler.errors import UserError

    if type(settings.get(key)) is not int:
        raise UserError(
            f"tokenizer.{key} is {settings.get(key)!r} in the config; give a whole number"
        )
    return settings[key]
