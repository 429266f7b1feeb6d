"""Subcommands of the corpus wing."""

import argparse
from pathlib import Path


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    register_sample(subparsers)
    register_assemble(subparsers)


def register_sample(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "sample", help="write the invented world that the offline demo learns from"
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="C",
        help="configuration: a YAML file or inline JSON (its section sample)",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="the sample's folder, for example data/sample",
    )
    parser.add_argument("--log", metavar="PATH", help="append log lines to this file as well")
    parser.set_defaults(handler=run_sample)


def run_sample(options: argparse.Namespace) -> None:
    from nanoeuler import log
    from nanoeuler.config import load
    from nanoeuler.corpus.sample.write import write_sample

    manifest = write_sample(load(options.config).get("sample") or {}, Path(options.output))
    log.line(
        "sample",
        **{
            key: manifest[key]
            for key in (
                "people",
                "boats",
                "facts",
                "books",
                "pages",
                "instructions",
                "preferences",
                "questions",
            )
        },
    )


def register_assemble(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "assemble",
        help="put books, web pages and own text together into a corpus with held-out text",
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="C",
        help="configuration: a YAML file or inline JSON (its section corpus)",
    )
    parser.add_argument(
        "--books",
        nargs="*",
        default=[],
        metavar="TXT",
        help="cleaned books, each with its record (.json) beside it",
    )
    parser.add_argument(
        "--fineweb",
        nargs="*",
        default=[],
        metavar="TXT",
        help="extracted web pages, each file with its index beside it",
    )
    parser.add_argument(
        "--own",
        nargs="*",
        default=[],
        metavar="PATH",
        help="own .txt and .md files, folders or globs, where corpus.sources names none",
    )
    parser.add_argument(
        "--kept-out",
        nargs="*",
        default=[],
        metavar="FILE",
        help="evaluation sets (questions as JSON lines, manifests of tasks): with corpus.decontaminate, documents that quote them are dropped",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="the corpus's folder, for example data/corpora/sample",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads (default 1); the result is the same for any number",
    )
    parser.add_argument("--log", metavar="PATH", help="append log lines to this file as well")
    parser.set_defaults(handler=run_assemble)


def evaluation_set(path: Path) -> tuple[str, Path]:
    """Name and items of an evaluation set, given its file of questions or its task's manifest."""
    return (
        (path.parent.name, path.with_name("items.jsonl"))
        if path.name == "manifest.json"
        else (path.stem, path)
    )


def run_assemble(options: argparse.Namespace) -> None:
    from nanoeuler import log
    from nanoeuler.config import load
    from nanoeuler.corpus.assemble import Cleaning, assemble
    from nanoeuler.corpus.document_sources import choose_sources

    config = load(options.config)
    corpus = config.get("corpus", {})
    collections = config.get("sources") if isinstance(config.get("sources"), dict) else {}
    licences = {
        name: content["licence"]
        for name, content in collections.items()
        if isinstance(content, dict) and "licence" in content
    }
    sources = choose_sources(
        corpus.get("sources", []), options.books, options.fineweb, options.own, licences
    )
    name = corpus.get("name", Path(options.output).name)
    duplicates = {"web": "near", "threshold": 0.8} | corpus.get("deduplicate", {})
    tests = dict(evaluation_set(Path(path)) for path in options.kept_out)
    cleaning = Cleaning(
        duplicates, duplicates.pop("threshold"), corpus.get("decontaminate", True), tests
    )
    manifest = assemble(
        options.output,
        name,
        sources,
        corpus.get("validation_share", 0.01),
        cleaning,
        options.threads,
    )
    totals = {f"{split}_bytes": manifest["bytes"][split] for split in ("train", "validation")}
    log.line(
        "corpus",
        name=name,
        sources=len(manifest["sources"]),
        **totals,
        fingerprint=manifest["fingerprint"][:12],
    )
