"""Subcommand `experiment`: is the gain of a change real?

    nanoeuler experiment config/base.yaml --change pretrain.learning_rate=2e-3 --minutes 1

It writes what is asked to results/experiments/NAME and has Snakemake train the base and each change
with the same seeds and budget. The same command resumes an experiment that was stopped.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers
from nanoeuler.cli.workflow import run_snakemake
from nanoeuler.errors import UserError, brief
from nanoeuler.shipped import find

if TYPE_CHECKING:
    from nanoeuler.evaluation.scores import Json
    from nanoeuler.experiments.changes import Change
    from nanoeuler.experiments.experiment import Experiment

MOST_TRIALS = 10_000


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "experiment",
        usage="nanoeuler experiment CONFIG --change KEY=VALUE "
        "(--minutes M | --joules J | --tokens N) [options] [-- SNAKEMAKE'S OPTIONS]",
        help="train with and without a change, by seeds, and say whether the gain is real",
        description="Pretrain a configuration as it is and with each change, with the same seeds "
        "and budget, and judge the held-out bits per byte by a paired t-test. Ctrl-C saves and "
        "stops; the same command resumes.",
    )
    parser.add_argument("words", nargs="*", metavar="CONFIG", help="the configuration")
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a change, such as pretrain.learning_rate=2e-3; several keys with commas between "
        "them; given again, another change",
    )
    parser.add_optional_path(
        "--sweep", "FILE", "a YAML file of changes: combinations of lists, or random draws"
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="training of each trial takes so long, at speeds that are measured once",
    )
    budget.add_argument(
        "--joules",
        type=float,
        metavar="J",
        help="training of each trial takes so much energy, where the machine counts it",
    )
    budget.add_argument("--tokens", type=int, metavar="N", help="tokens of each trial")
    parser.add_argument(
        "--seeds",
        default="3",
        metavar="N",
        help="number of seeds, from the configuration's on, or the seeds: 7,8,9 (default 3)",
    )
    parser.add_number(
        "--level",
        "chance of a false verdict on a change that does nothing (default 0.01)",
        0.01,
        kind=float,
        metavar="P",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name of the folder in results/experiments (default: of what is asked)",
    )
    parser.add_json()
    parser.passes_on = True
    parser.finish(run_experiment, resumes=True)


def run_experiment(options: argparse.Namespace) -> int:
    from nanoeuler.evaluation.verdicts import VERDICTS
    from nanoeuler.experiments.experiment import BASE, TOKENS, prepare
    from nanoeuler.storage.files import write_json
    from nanoeuler.storage.integrity import seal
    from nanoeuler.storage.names import FORM_OF_NAME, is_name

    if len(options.words) != 1:
        raise UserError("experiment: give one configuration, such as config/small.yaml")
    if not 0 < options.level <= 0.5:
        raise UserError(f"--level {options.level:g}: give a chance above 0, such as 0.01")
    if options.name is not None and not is_name(options.name):
        raise UserError(f"--name {brief(options.name)}: give {FORM_OF_NAME}")
    unit, amount = budget_of(options)
    if not 0 < amount < math.inf:
        raise UserError(f"experiment: a trial of {amount:g} {unit} has no length; give more")
    seeds = seeds_of(options.seeds)
    changes, swept = changes_of(options, seeds if isinstance(seeds, int) else len(seeds))
    experiment = prepare(
        find(options.words[0]),
        changes,
        seeds,
        options.level,
        unit=unit,
        amount=amount,
        name=options.name,
        swept=swept,
    )
    experiment.write()
    if experiment.arms[0].tokens is None:
        for arm in experiment.arms:
            experiment.write_trial(arm, experiment.seeds[0])
        speeds = [*experiment.timed().values()]
        if (status := run(experiment, speeds, options.theirs)) or missing(speeds):
            return status
        experiment = experiment.with_tokens()
        experiment.write()
    failed: set[str] = set()  # names of arms
    trained_seeds, at_once = 0, trials_at_once(experiment)
    while seeds_now := experiment.next_seeds(trained_seeds, at_once):
        due = experiment.due(seeds_now, failed)
        folders = [experiment.write_trial(arm, seed) for arm, seed in due]
        trained = [folder / TOKENS for folder in folders]
        status = run(experiment, trained, options.theirs)
        if status == 0 and missing(trained):
            return 0
        failed |= {arm.name for arm, _ in experiment.due(seeds_now, failed)}
        if BASE in failed and not status:
            raise UserError(
                f"{experiment.folder}: the base ends with a held-out loss that is no number, with "
                "which nothing can be compared; give a configuration that trains"
            )
        if status > 128 or BASE in failed:
            return status
        experiment.require_same_tokens()
        trained_seeds += len(seeds_now)
    told = described(experiment, failed)
    write_json(experiment.folder / VERDICTS, seal(told))
    show_verdicts(told, as_json=options.json)
    return 1 if failed else 0


def trials_at_once(experiment: "Experiment") -> int:
    """Trials for which this machine has GPUs."""
    from nanoeuler.workflow.machine import training_gpus, usable_gpus

    config = experiment.arms[0].config
    return usable_gpus(config["device"]) // max(1, training_gpus(config))


def missing(files: Sequence[Path]) -> bool:
    """Is one not there, as after a Snakemake that only says what it would do?"""
    return not all(file.is_file() for file in files)


def show_verdicts(told: "Json", *, as_json: bool) -> None:
    """Print the verdicts of an experiment for people, or for programs."""
    from nanoeuler.evaluation.verdicts import verdict_table

    if as_json:
        print(json.dumps(told, indent=2, ensure_ascii=False), flush=True)
    else:
        table = verdict_table(told, shutil.get_terminal_size((100, 0)).columns)
        print(log.printable(table), flush=True)


def run(experiment: "Experiment", targets: Sequence[Path], theirs: Sequence[str]) -> int:
    """Have Snakemake make files of an experiment; a failed job stops those alone that need it."""
    from nanoeuler.experiments.experiment import OVERLAY

    if not targets:
        return 0
    files = [experiment.file, str(experiment.folder / OVERLAY)]
    arguments = [*map(str, targets), "--quiet", "all", "--keep-going", "--configfile", *files]
    return run_snakemake(arguments, theirs, output=sys.stderr)


def changes_of(
    options: argparse.Namespace, seeds: int
) -> tuple[list["Change"], Iterator["Change"]]:
    """The changes that are asked for, and those of a sweep. Raises `UserError` for none, and for
    too many."""
    from nanoeuler.experiments.changes import read_change, read_sweep

    changes = [read_change(text) for text in options.change]
    number, swept = read_sweep(options.sweep) if options.sweep else (0, iter(()))
    trials = (1 + len(changes) + number) * seeds
    if trials > MOST_TRIALS:
        unit, amount = budget_of(options)
        took = f"{amount * trials:.2g} {unit}"
        if unit == "minutes":
            took = f"{amount * trials / 60 / 24:,.0f} days of training"
        raise UserError(
            f"experiment: {trials:,} trials, {took}, are more than {MOST_TRIALS:,}; "
            "ask for fewer changes or seeds"
        )
    if trials == seeds:
        raise UserError("experiment: nothing is changed; give a --change, or a --sweep")
    return changes, swept


def budget_of(options: argparse.Namespace) -> tuple[str, float]:
    """The unit of what a trial may take, and how much of it."""
    units = ("tokens", "minutes", "joules")
    return next((unit, given) for unit in units if (given := getattr(options, unit)) is not None)


def seeds_of(text: str) -> list[int] | int:
    """The seeds, or their number. Raises `UserError` where no spread can be told from them."""
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise UserError(f"--seeds {brief(text)}: give a number of seeds, or seeds such as 7,8,9")
    if len(numbers) == 1 and numbers[0] < 2:
        raise UserError(
            f"--seeds {text}: the spread between seeds tells what is real; give 2 at least"
        )
    if len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds {text}: a seed is there twice, and trains the same; change one")
    return numbers if len(numbers) > 1 else numbers[0]


def described(experiment: "Experiment", failed: Container[str]) -> dict[str, Any]:
    """The experiment for programs."""
    from dataclasses import asdict

    verdicts = {arm.name: asdict(verdict) for arm, verdict in experiment.verdicts()}
    arms = [
        {
            "name": arm.name,
            "title": arm.title,
            "change": arm.values,
            "tokens": arm.tokens,
            "tokens_per_second": arm.tokens_per_second,
            "bits_per_byte": experiment.scores(arm),
            **verdicts.get(arm.name, {}),
            **({"verdict": "failed"} if arm.name in failed else {}),
        }
        for arm in experiment.arms
    ]
    asked = {"seeds": experiment.seeds, "level": experiment.level}
    asked |= {unit: None for unit in ("minutes", "joules")} | {experiment.unit: experiment.amount}
    return {"version": 1, "folder": str(experiment.folder), **asked, "arms": arms}
