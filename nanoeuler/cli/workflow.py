"""Subcommand `run`: the workflow, for one configuration and one stage of it.

    nanoeuler run config/small.yaml pretrain

does what `snakemake pretrain --configfile config/small.yaml` does, in a quieter way.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers
from nanoeuler.config.stages import BY_NAME
from nanoeuler.errors import UserError, nearest
from nanoeuler.shipped import HOME, find, find_snakefile

TARGETS = ("download", *BY_NAME, "evaluate", "all")
DEFAULT_CONFIG = Path("config/config.yaml")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "run",
        usage="nanoeuler run [CONFIG ...] [STAGE ...] [-- SNAKEMAKE'S OPTIONS]",
        help="have Snakemake do what a configuration asks for, or one stage of it",
        description="Run the workflow: every stage of a configuration, or one and what it needs. "
        "Finished stages are not run again, and Ctrl-C saves; the same command resumes.",
    )
    words: Any = parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG|STAGE",
        help=f"configurations (default {DEFAULT_CONFIG}, the demo; of several, later ones win); "
        f"and stages: {', '.join(TARGETS)} (default all). Behind --, options of Snakemake, such "
        "as -n, which only says what would be done",
    )
    words.completes = TARGETS  # for the shell
    parser.passes_on = True
    parser.finish(run_run, resumes=True)


def run_run(options: argparse.Namespace) -> int:
    words, theirs = options.words, options.theirs
    files = [str(find(word)) for word in words if is_file_name(word)]
    stages = [word for word in words if not is_file_name(word)]
    check(files, stages)
    if not files and "--configfile" not in theirs:
        files = [str(find(DEFAULT_CONFIG))]
    # the check of records comes before pretraining. It is no input of the rules of later stages,
    # which would then train the finished models of older runs anew
    wanted = ["check_fit"] if {*stages} - {"download", "pretrain", "all"} else []
    arguments = [*stages, *wanted, "--quiet", "host", "reason"]
    arguments += ["--configfile", *files] if files else []
    status = run_snakemake(arguments, theirs)
    if status == 0 and stages in ([], ["all"]) and not theirs:
        from nanoeuler.cli.greeting import next_steps
        from nanoeuler.config.loading import load_files

        log.tell(next_steps(load_files(files, {})), sys.stdout)
    return status


def is_file_name(word: str) -> bool:
    return "/" in word or Path(word).suffix in (".yaml", ".yml", ".json")


def check(files: Iterable[str], stages: Iterable[str]) -> None:
    """Raise `UserError` for a file that is not there or is damaged, of which Snakemake would not
    say where, and for a stage that does not exist."""
    from nanoeuler.config.yaml_file import read_keys

    shipped = (HOME / "config").glob("*.yaml")
    runs = filter(names_run, Path("config").glob("*.yaml"))
    there = sorted(
        {f"config/{file.name}" for file in filter(names_run, shipped)}
        | {*map(str, [*runs, *Path().glob("results/*/*.yaml")])}
    )
    for file in files:
        if Path(file).is_dir():
            raise UserError(f"{file}: a folder; give the path of a configuration")
        if not Path(file).is_file():
            near = nearest(file, there)
            meant = f"did you mean {near}?" if near else "give a configuration's path"
            raise UserError(f"{file}: no such file; {meant}")
        read_keys(file)
    for stage in stages:
        if stage not in TARGETS:
            known = {Path(file).stem: file for file in there} | {name: name for name in TARGETS}
            near = nearest(stage, known)
            meant = f"did you mean {known[near]}?" if near else f"there are {', '.join(TARGETS)}"
            raise UserError(f"run: there is no stage {stage!r}; {meant}")


def names_run(file: Path) -> bool:
    """Does it set `run`, as the configuration of a run does?"""
    from nanoeuler.storage.files import MOST_JSON, read_bounded

    try:
        return b"\nrun:" in b"\n" + read_bounded(file, MOST_JSON)
    except OSError:
        return False


def run_snakemake(
    arguments: Sequence[str], further: Sequence[str] = (), output: TextIO | None = None
) -> int:
    """Run Snakemake on our workflow, and pass on signals as Ctrl-C, at which a stage saves.

    `further` are arguments from the command line, which win over `arguments`.
    What its jobs print goes to `output`, or to this process's standard output. Returns the exit
    status. Snakemake says itself, by `workflow/endings.py`, how it ended.
    """
    import subprocess

    from nanoeuler.system.processes import STARTER, own_identity

    command = [sys.executable, "-m", "nanoeuler.workflow.endings"]
    # an option that takes one value parts ours, some of which take all that follow, from theirs
    command += [*arguments, "--snakefile", str(find_snakefile()), *further]
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if process is not None:
            os.killpg(process.pid, signal.SIGINT)

    # now, as Snakemake would inherit from a shell's background that Ctrl-C is ignored
    before = {
        number: signal.signal(number, pass_on)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # `nohup`
    }
    environment = os.environ | {STARTER: own_identity()}
    # until it can say that it was interrupted, the signal waits: what is blocked here is so there
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # a group of its own: signals reach it once
    process = subprocess.Popen(command, process_group=0, env=environment, stdout=output)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if received:
        os.killpg(process.pid, signal.SIGINT)
    status = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if received and status:
        return 128 + received[0]
    return 1 if status else 0
