"""Subcommands from addresses to tokens: those of the sources, and what makes text and tokens."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.cli.parser import Parser, Subparsers
from nanoeuler.corpus.sources import COMMANDS

if TYPE_CHECKING:
    from nanoeuler.corpus.sources.source import Step


def register(subparsers: Subparsers) -> None:
    for command, meaning in COMMANDS.values():
        parser = subparsers.add_parser(command, help=meaning)
        parser.add_later(partial(add_steps, command))

    parser = subparsers.add_parser(
        "sample", help="write the invented world that the offline demo learns from"
    )
    parser.add_config("the section sample")
    parser.add_path("--output", "DIR", "the sample's folder, for example data/sample")
    parser.finish(run_sample)

    parser = subparsers.add_parser(
        "assemble",
        help="put books, web pages and own text together into a corpus with held-out text",
    )
    parser.add_later(add_assemble)

    parser = subparsers.add_parser(
        "bpe", help="learn a byte-level BPE tokenizer from a corpus, or take a given one"
    )
    parser.add_config("the section tokenizer")
    parser.add_path("--corpus", "MANIFEST", "manifest.json of a corpus")
    parser.add_path("--output", "FILE", "the tokenizer.json to write")
    parser.add_threads()
    parser.finish(run_bpe)

    parser = subparsers.add_parser("tokenize", help="turn a corpus into token shards")
    parser.add_config("tokenizer.vocab_size")
    parser.add_path("--corpus", "MANIFEST", "manifest.json of a corpus")
    parser.add_path("--tokenizer", "FILE", "tokenizer.json")
    parser.add_path("--output", "FOLDER", "the folder to write shards and manifest.json to")
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
    parser.add_threads()
    parser.finish(run_tokenize)

    parser = subparsers.add_parser(
        "import-gpt2", help="turn the files of GPT-2's own vocabulary into a tokenizer.json"
    )
    parser.add_argument("folder", type=Path, help="the folder with encoder.json and vocab.bpe")
    parser.add_path("--output", "FILE", "the tokenizer.json to write")
    parser.finish(run_import)


def add_assemble(parser: Parser) -> None:
    """Add what `assemble` takes: the files of each source, and how to go about them."""
    from nanoeuler.corpus.sources.registry import ALL_TEXTS

    parser.add_config("the section corpus")
    for source in ALL_TEXTS:
        add_files(parser, source.option.flag, source.option.metavar, source.option.meaning)
    add_files(
        parser,
        "--kept-out",
        "FILE",
        "evaluation sets (questions as JSON lines, manifests of tasks): with corpus.decontaminate, "
        "documents that quote them are dropped",
    )
    parser.add_path("--output", "DIR", "the corpus's folder, for example data/corpora/sample")
    parser.add_number(
        "--group-files",
        "write the pages of each N web shards to files of their own (default: all to one)",
    )
    parser.add_argument(
        "--step",
        choices=("hold_out", "compare", "choose", "write", "finish"),
        help="do one step of the work; the steps may run on different machines, and `compare` and "
        "`write` once for each group, at the same time",
    )
    parser.add_number(
        "--group",
        "with --step compare or write: the number of the group, whose shards alone are given",
        metavar="G",
    )
    parser.add_threads()
    parser.finish(run_assemble)


def add_files(parser: Parser, flag: str, metavar: str | None, meaning: str) -> None:
    parser.add_argument(flag, nargs="*", default=[], metavar=metavar, help=meaning)


def run_sample(options: argparse.Namespace) -> None:
    from nanoeuler import log
    from nanoeuler.config import load
    from nanoeuler.corpus.sample.write import write_sample

    manifest = write_sample(load(options.config).get("sample") or {}, options.output)
    contents = ("people", "boats", "facts", "books", "pages")
    records = ("instructions", "preferences", "questions")
    log.line("sample", **{key: manifest[key] for key in contents + records})


def run_assemble(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.config.data_settings import Corpus
    from nanoeuler.corpus import groups
    from nanoeuler.corpus.assemble import Cleaning, assemble
    from nanoeuler.corpus.sources.fineweb import SOURCE as FINEWEB
    from nanoeuler.corpus.sources.own_text import OWN_TEXT
    from nanoeuler.corpus.sources.registry import NAMED, choose_readers

    config = load(options.config)
    section = config.get("corpus", {})
    settings = Corpus.read(section)
    duplicates = {FINEWEB.kind: FINEWEB.repetitions[1]} | section.get("deduplicate", {})
    duplicates.pop("threshold", None)
    cleaning = Cleaning(
        duplicates,
        settings.deduplicate.threshold,
        settings.decontaminate,
        dict(evaluation_set(Path(path)) for path in options.kept_out),
    )
    output, share, threads = options.output, settings.validation_share, options.threads
    if options.step in ("compare", "write"):
        return run_group(options, cleaning.duplicates[FINEWEB.kind])
    name = settings.name or output.name
    if options.step == "finish":
        return tell(groups.finish_corpus(output, name, share, cleaning))
    files = {source.name: getattr(options, source.option.name) for source in NAMED}
    sources = choose_readers(
        getattr(options, OWN_TEXT.option.name), files, config, options.group_files
    )
    if options.step == "hold_out":
        return groups.hold_out(output, sources, share, cleaning, threads)
    if options.step == "choose":
        return groups.choose(output, sources, cleaning, threads)
    tell(assemble(output, name, sources, share, cleaning, threads))


def tell(manifest: dict[str, Any]) -> None:
    """Say what is in a corpus."""
    from nanoeuler import log

    totals = {f"{split}_bytes": manifest["bytes"][split] for split in ("train", "validation")}
    log.line(
        "corpus",
        name=manifest["name"],
        sources=len(manifest["sources"]),
        **totals,
        fingerprint=manifest["fingerprint"][:12],
    )


def run_group(options: argparse.Namespace, mode: str) -> None:
    """Do a step for one group of web shards."""
    from nanoeuler.corpus import groups
    from nanoeuler.corpus.document_sources import WebPages
    from nanoeuler.errors import UserError

    pages = WebPages([Path(path) for path in options.fineweb])
    if options.group is None or not pages.paths:
        raise UserError(
            f"--step {options.step} is for one group of web shards; give its number with --group, "
            "and its shards alone with --fineweb"
        )
    if options.step == "compare":
        groups.compare(options.output, pages, options.group, mode, options.threads)
    else:
        groups.write_group(options.output, pages, options.group, options.threads)


def evaluation_set(path: Path) -> tuple[str, Path]:
    """Name and items of an evaluation set: a file of questions, or the manifest of a task."""
    if path.name == "manifest.json":
        return path.parent.name, path.with_name("items.jsonl")
    return path.stem, path


def add_steps(command: str, parser: Parser) -> None:
    """Add what a command takes, or the commands inside it: a source may have several steps."""
    from nanoeuler.corpus.sources.registry import STEPS

    steps = [step for step in STEPS.values() if step.command.split()[0] == command]
    if [step.command for step in steps] == [command]:
        return add_options(parser, steps[0])
    inside = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for step in steps:
        add_options(inside.add_parser(step.command.split()[1], help=step.help), step)


def add_options(parser: Parser, step: "Step") -> None:
    if step.sections:
        parser.add_config(step.sections)
    for option in step.options:
        parser.add_argument(
            option.flag,
            required=option.default is None,
            type=option.kind,
            default=option.default,
            metavar=option.metavar,
            help=option.meaning,
        )
    parser.finish(partial(run_step, step), resumes=bool(step.sections))  # then it downloads


def run_step(step: "Step", options: argparse.Namespace) -> None:
    from nanoeuler.config import load

    config = load(options.config) if step.sections else {}
    step.run(config, **{option.name: getattr(options, option.name) for option in step.options})


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
