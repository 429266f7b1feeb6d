"""Subcommand `train`: from one's own text to a model, in one line.

    nanoeuler train my-novel.txt --minutes 10

It writes a configuration, results/<name>/config.yaml, and has Snakemake run it. The same command
resumes a run that was stopped, and takes the configuration as it then is.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nanoeuler.cli.options import finish
from nanoeuler.cli.workflow import find_snakefile, run_snakemake
from nanoeuler.errors import UserError

MOST_MINUTES = 24 * 60
RESULTS = Path("results")


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "train",
        help="from your own text to a model that you can talk to, in one line",
        description="Train a model on your own text: choose its size for the text and the minutes, "
        "train it, print samples as it learns, write a report, and open a chat. Ctrl-C saves and "
        "stops; the same command resumes.",
    )
    parser.add_argument(
        "text", nargs="+", metavar="TEXT", help=".txt and .md files, folders or globs"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="about how long it may take on this machine (default 10); "
        "little text needs less, and then takes less",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name of the run, whose folder is results/NAME (default: that of the first text)",
    )
    finish(parser, run_train)


def run_train(options: argparse.Namespace) -> int:
    from nanoeuler.config.section import FORM_OF_NAME, NAME
    from nanoeuler.own_run import name_of, together

    if not 1 <= options.minutes <= MOST_MINUTES:
        raise UserError(
            f"--minutes {options.minutes:g}: give 1 to {MOST_MINUTES}; "
            "for more, raise pretrain.tokens in the configuration that a shorter run writes"
        )
    texts = together(options.text)
    name = name_of(texts[0]) if options.name is None else options.name
    if not re.match(NAME, name):
        raise UserError(f"--name {name}: give {FORM_OF_NAME}")
    config_file = RESULTS / name / "config.yaml"
    request = ["nanoeuler", "train", *texts, "--minutes", f"{options.minutes:g}"]
    request += ["--name", options.name] if options.name is not None else []
    prepare(config_file, name, texts, options.minutes, shlex.join(request))
    arguments = ["--cores", "all", "--configfile", str(config_file), "--quiet", "all"]
    return run_snakemake(arguments) or show_results(config_file)


def prepare(
    config_file: Path, name: str, texts: Sequence[str], minutes: float, request: str
) -> None:
    """Write the configuration that `request` asks for, unless it is there already."""
    from nanoeuler import log, own_run

    first_line = f"# {request}"
    if config_file.is_file():
        if config_file.read_text(encoding="utf-8").split("\n", 1)[0] == first_line:
            log.line("config", f"{config_file} is there and is taken as it is")
            return
    elif config_file.parent.exists():
        raise UserError(
            f"{config_file.parent}: belongs to another run; give this one a name with --name"
        )
    snakefile = find_snakefile()
    text = own_run.read_text(texts)
    choice, engine = own_run.choose_here(text, minutes)
    config = own_run.make_config(name, texts, text, choice)
    if config_file.is_file():
        kept = config_file.with_suffix(".before.yaml")
        os.replace(config_file, kept)
        log.line("config", f"{config_file} was made by another command; it is kept as {kept}")
    rerun = f"snakemake --configfile {config_file}"
    if snakefile != Path("Snakefile"):
        rerun = f"snakemake --snakefile {snakefile} --configfile {config_file}"
    comment = [
        request,
        "",
        f"Chosen for {log.size(text.bytes)} of text and {log.counted(minutes, 'minute')} on "
        f"{engine}, at {choice.tokens_per_second:,.0f} tokens/s.",
        "Change what you like. The command above takes this file as it is, and so does",
        f"  {rerun}",
    ]
    own_run.write_config(config_file, comment, config)
    log.line("config", f"{config_file} has the settings, to be changed and run again")


def show_results(config_file: Path) -> int:
    """Say where everything is, and open a chat where a person sits at a terminal."""
    from nanoeuler.config import load
    from nanoeuler.config.next_steps import next_steps
    from nanoeuler.config.paths import Paths

    config = load(config_file)
    print(next_steps(config), flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        model = Paths(config).model_folder(Paths(config).last_stage)
        os.execv(sys.executable, [sys.executable, "-m", "nanoeuler", "chat", "--model", model])
    return 0
