"""Subcommands that make text: `sample` and `assemble`."""

import argparse
from pathlib import Path
from typing import Any

from nanoeuler.cli.options import add_config, add_path, add_threads, finish


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add these subcommands."""
    parser = subparsers.add_parser(
        "sample", help="write the invented world that the offline demo learns from"
    )
    add_config(parser, "the section sample")
    add_path(parser, "--output", "DIR", "the sample's folder, for example data/sample")
    finish(parser, run_sample)

    parser = subparsers.add_parser(
        "assemble",
        help="put books, web pages and own text together into a corpus with held-out text",
    )
    add_config(parser, "the section corpus")
    add_files(parser, "--books", "TXT", "cleaned books, each with its record (.json) beside it")
    add_files(parser, "--fineweb", "TXT", "extracted web pages, each file with its index beside it")
    add_files(
        parser,
        "--own",
        "PATH",
        "own text files, folders or globs, where corpus.sources names none",
    )
    add_files(
        parser,
        "--kept-out",
        "FILE",
        "evaluation sets (questions as JSON lines, manifests of tasks): with corpus.decontaminate, "
        "documents that quote them are dropped",
    )
    add_path(parser, "--output", "DIR", "the corpus's folder, for example data/corpora/sample")
    parser.add_argument(
        "--group-files",
        type=int,
        metavar="N",
        help="write the pages of each N web shards to files of their own (default: all to one)",
    )
    parser.add_argument(
        "--step",
        choices=("hold_out", "compare", "choose", "write", "finish"),
        help="do one step of the work; the steps may run on different machines, and `compare` and "
        "`write` once for each group, at the same time",
    )
    parser.add_argument(
        "--group",
        type=int,
        metavar="G",
        help="with --step compare or write: the number of the group, whose shards alone are given",
    )
    add_threads(parser)
    finish(parser, run_assemble)


def add_files(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
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
    from nanoeuler.config.corpus_settings import Corpus, Deduplicate
    from nanoeuler.corpus import groups
    from nanoeuler.corpus.assemble import Cleaning, assemble
    from nanoeuler.corpus.document_sources import choose_sources

    config = load(options.config)
    section = config.get("corpus", {})
    settings = Corpus.read(section)
    duplicates = {"web": Deduplicate.web} | section.get("deduplicate", {})
    duplicates.pop("threshold", None)
    cleaning = Cleaning(
        duplicates,
        settings.deduplicate.threshold,
        settings.decontaminate,
        dict(evaluation_set(Path(path)) for path in options.kept_out),
    )
    output, share, threads = options.output, settings.validation_share, options.threads
    if options.step in ("compare", "write"):
        return run_group(options, cleaning.duplicates["web"])
    name = settings.name or output.name
    if options.step == "finish":
        return tell(groups.finish_corpus(output, name, share, cleaning))
    sources = choose_sources(
        section.get("sources", []),  # without the key, the sources are the files that are given
        options.books,
        options.fineweb,
        options.own,
        licences(config.get("sources")),
        options.group_files,
        settings.join_lines,
    )
    if options.step == "hold_out":
        return groups.hold_out(output, sources, share, cleaning, threads)
    if options.step == "choose":
        return groups.choose(output, sources, cleaning, threads)
    manifest = assemble(output, name, sources, share, cleaning, threads)
    tell(manifest)


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


def licences(sources: object) -> dict[str, str]:
    """The licence of each collection in the sources, where it has one."""
    return {
        name: content["licence"]
        for name, content in (sources.items() if isinstance(sources, dict) else ())
        if isinstance(content, dict) and "licence" in content
    }


def evaluation_set(path: Path) -> tuple[str, Path]:
    """Name and items of an evaluation set: a file of questions, or the manifest of a task."""
    if path.name == "manifest.json":
        return path.parent.name, path.with_name("items.jsonl")
    return path.stem, path
