"""Subcommand `lesson`: a page that trains a model in a browser."""

import argparse
from pathlib import Path

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "lesson",
        help="a page that trains a model in your browser",
        description="Write a page that trains a small model in your browser, on a text that you "
        "paste into it, with WebGPU and the kernels of --device webgpu. It needs no network.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("lesson.html"),
        metavar="FILE",
        help="HTML file to write (default: lesson.html)",
    )
    parser.finish(run_lesson)


def run_lesson(options: argparse.Namespace) -> None:
    from nanoeuler.lessons.training_page import training_page
    from nanoeuler.storage.files import atomic_write

    with atomic_write(options.output) as file:
        file.write(training_page())
    log.line("lesson", f"{options.output}: open it in a browser")
