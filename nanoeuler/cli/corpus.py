"""Subcommands of the corpus wing."""

import argparse


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    register_sample(subparsers)


def register_sample(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("sample", help="write the invented world that the offline demo learns from")
    parser.add_argument("--config", required=True, metavar="C", help="configuration: a YAML file or inline JSON (its section sample)")
    parser.add_argument("--output", required=True, metavar="DIR", help="the sample's folder, for example data/sample")
    parser.add_argument("--log", metavar="PATH", help="append log lines to this file as well")
    parser.set_defaults(handler=run_sample)


def run_sample(options: argparse.Namespace) -> None:
    from pathlib import Path

    from nanoeuler import log
    from nanoeuler.config import load
    from nanoeuler.corpus.sample.write import write_sample

    manifest = write_sample(load(options.config).get("sample") or {}, Path(options.output))
    log.line("sample", **{key: manifest[key] for key in ("people", "boats", "facts", "books", "pages", "instructions", "questions")})
