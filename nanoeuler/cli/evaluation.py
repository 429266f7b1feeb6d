"""Subcommands that measure models and compare runs: `evaluate`, `compare`, `runs`, `report`, and
`watch`."""

import argparse
import json
import os
import shutil
from pathlib import Path

from nanoeuler import log
from nanoeuler.cli.experiment import show_verdicts
from nanoeuler.cli.parser import Subparsers, model_folder
from nanoeuler.cli.training import engine_of, group_of
from nanoeuler.errors import UserError


def register(subparsers: Subparsers) -> None:
    register_evaluate(subparsers)
    parser = subparsers.add_parser(
        "compare",
        help="put the evaluations of several models side by side",
        description="Print the scores of several models as a table, beside what the simplest way "
        "to answer would reach, or the verdicts of one experiment.",
    )
    parser.add_argument(
        "evaluations",
        nargs="+",
        type=Path,
        metavar="RUN|FILE",
        help="runs, such as results/demo, or files that `nanoeuler evaluate` wrote; or a folder of "
        "results/experiments",
    )
    parser.add_optional_path("--output", "FILE", "also write the table to this Markdown file")
    parser.add_json()
    parser.finish(run_compare)
    register_runs(subparsers)
    register_report(subparsers)
    register_watch(subparsers)


def register_evaluate(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a model",
        description="Measure a model: held-out bits per byte, tasks, replies, samples.",
    )
    parser.add_config("the section evaluate")
    parser.add_model()
    parser.add_optional_path(
        "--tokens", "MANIFEST", "manifest.json of the token shards, for bits per byte"
    )
    parser.add_optional_path(
        "--questions", "FILE", "held-out questions with exact answers, JSON lines"
    )
    parser.add_optional_path(
        "--instructions",
        "MANIFEST",
        "manifest.json of the instructions: some held-out ones are answered",
    )
    parser.add_optional_path(
        "--index",
        "MANIFEST",
        "manifest.json of the index of the tokens: how much of the replies is copied from the text",
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        nargs="+",
        default=[],
        metavar="MANIFEST",
        help="manifest.json of each task, as `nanoeuler task` writes it",
    )
    parser.add_path(
        "--output", "FILE", "JSON file to write, such as results/demo/evaluation/sft.json"
    )
    parser.add_optional_path(
        "--items",
        "FILE",
        "also write every answer and reply to this file of JSON lines",
    )
    parser.add_quantize()
    parser.add_device()
    parser.add_shared_gpus()
    parser.add_ranks()
    parser.finish(run_evaluate)


def register_runs(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "runs",
        help="list runs: how far they are, their scores and cost, and the settings that differ",
        description="List runs: how far they are, their scores and cost, and the settings that "
        "differ.",
    )
    parser.add_argument(
        "places",
        nargs="*",
        type=Path,
        default=[Path("results")],
        metavar="FOLDER",
        help="runs, or folders of runs (default: results)",
    )
    parser.add_argument("--sort", metavar="KEY", help="list by a column, such as seconds")
    parser.add_flag("--reverse", "with --sort: the largest first")
    parser.add_argument(
        "--where",
        nargs="+",
        default=[],
        metavar="CONDITION",
        help="only runs that meet all of these, such as 'seconds<3600' or 'model.preset=small'",
    )
    parser.add_argument(
        "--columns", nargs="+", metavar="KEY", help="the columns to show, in this order"
    )
    form = parser.add_mutually_exclusive_group()
    parser.add_json(form)
    form.add_argument("--csv", action="store_true", help="print CSV, with plain numbers")
    parser.finish(run_runs)


def register_report(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write the report of a run, or of several side by side",
        description="Write the report of a run, or of several runs side by side, as one HTML file "
        "that needs no network.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folders of runs, such as results/demo; their workflow kept their configurations; or "
        "one of results/experiments",
    )
    parser.add_argument("--config", help="with --run: YAML file, or inline JSON with all sections")
    parser.add_optional_path("--run", "DIR", "folder of one run whose configuration is given")
    parser.add_optional_path(
        "--output", "FILE", "HTML file to write (default: report.html in a single RUN)"
    )
    parser.add_flag(
        "--without-model", "leave the model out of a run's page, which is most of its bytes"
    )
    parser.add_optional_path(
        "--metrics", "FILE", "also write the numbers of all stages to this JSON file"
    )
    parser.add_optional_path(
        "--table",
        "FILE",
        "also write the scores of all stages, side by side, to this Markdown file",
    )
    parser.add_optional_path(
        "--card",
        "FILE",
        "also write the model card to this Markdown file, such as results/demo/README.md",
    )
    parser.finish(run_report)


def register_watch(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "watch",
        help="write the report of a run again and again while it trains",
        description="Write the report of a run at intervals while it trains, as a page that reads "
        "itself again: open it in a browser. Ends when the run is finished.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder, such as results/demo")
    parser.add_argument(
        "--every", type=seconds, default=10, metavar="S", help="seconds (default 10)"
    )
    parser.add_optional_path("--output", "FILE", "HTML file to write (default: watch.html in RUN)")
    parser.finish(run_watch)


def seconds(text: str) -> int:
    """A whole number of seconds, at least 1 and at most a day."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 86_400:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to 86400")


def run_evaluate(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.evaluation.evaluate import Material, evaluate
    from nanoeuler.storage.files import atomic_write, write_json
    from nanoeuler.storage.integrity import seal

    material = Material(
        options.tokens,
        options.questions,
        options.instructions,
        options.index,
        tuple(options.tasks),
    )
    config, folder = load(options.config), model_folder(options)
    with group_of(options, options.output.parent) as group:
        try:
            engine = engine_of(options, group)
            result, items = evaluate(config, folder, material, engine, group, options.quantize)
        except MemoryError as error:
            raise UserError(
                f"evaluate: {error}; end what else takes memory, or choose a smaller model.context"
            ) from error
    if options.items:
        with atomic_write(options.items) as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
    write_json(options.output, seal(result))
    log.line("evaluated", str(options.output))


def run_compare(options: argparse.Namespace) -> None:
    from nanoeuler.evaluation.runs import cost_beside, evaluation_files
    from nanoeuler.evaluation.scores import compare, named, read_evaluations, scores
    from nanoeuler.evaluation.verdicts import read_verdicts, refuse_experiments
    from nanoeuler.storage.files import atomic_write

    first, *others = options.evaluations
    if not (others or options.output) and (told := read_verdicts(first)):
        show_verdicts(told, as_json=options.json)
        return
    refuse_experiments(options.evaluations)
    files = named(evaluation_files(options.evaluations))
    evaluations = read_evaluations(files)
    costs = {name: cost_beside(file) for name, file in files.items()}
    table = compare(evaluations, costs)
    if (
        len({each.get("tokens_fingerprint") for each in evaluations.values() if each["held_out"]})
        > 1
    ):
        log.line("notice", "bits per byte compare only where the held-out text is the same")
    print(json.dumps(scores(evaluations, costs), indent=2) if options.json else table)
    if options.output:
        with atomic_write(options.output) as file:
            file.write(table + "\n")


def run_runs(options: argparse.Namespace) -> None:
    from nanoeuler.evaluation import runs
    from nanoeuler.evaluation.report.side_by_side import differing, settings_of

    if options.reverse and options.sort is None:
        raise UserError("--reverse needs --sort KEY, such as --sort seconds")
    named, damaged = runs.read_runs(runs.run_folders(options.places))
    for sentence in damaged:  # which does not hide the others
        log.line("notice", f"left out: {sentence}")
    settings = [settings_of(run) for run in named.values()]
    texts = runs.held_out_columns(named)
    records = [
        own | runs.describe(name, run, texts[name])
        for own, (name, run) in zip(settings, named.items(), strict=True)
    ]
    found = list(dict.fromkeys(key for each in records for key in each))
    wanted = differing(settings)
    measured = [key for key in found if not any(key in each for each in settings)]
    for key in options.columns or []:
        runs.require_key(key, found, "--columns")
    columns = list(dict.fromkeys(["run", *(options.columns or [*measured, *wanted])]))
    chosen = runs.select(records, options.where, options.sort, options.reverse)
    if options.json:
        print(json.dumps([{key: each.get(key) for key in columns} for each in chosen], indent=2))
    elif options.csv:
        print(runs.as_csv(chosen, columns), end="")
    else:
        shown = [key for key in columns if options.columns or key != "mfu"]
        print(log.printable(runs.table(chosen, shown, shutil.get_terminal_size().columns)))


def run_report(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.evaluation.card import card, summarise
    from nanoeuler.evaluation.report.gather import gather, kept_configuration
    from nanoeuler.evaluation.report.page import page
    from nanoeuler.evaluation.report.side_by_side import name_runs, side_by_side
    from nanoeuler.evaluation.scores import compare
    from nanoeuler.evaluation.verdicts import read_verdicts, refuse_experiments, trials_shown
    from nanoeuler.storage.files import atomic_write, write_json

    folders = report_folders(options)
    if told := read_verdicts(folders[0]) if len(folders) == 1 else None:
        options.output = options.output or folders[0] / "report.html"
        folders = trials_shown(told, folders[0])
    refuse_experiments(folders)
    output = options.output or folders[0] / "report.html"
    runs = [
        gather(load(options.config) if options.config else kept_configuration(folder), folder)
        for folder in folders
    ]
    if len(runs) > 1 and (options.metrics or options.table or options.card or options.config):
        raise UserError(
            "--config, --metrics, --table and --card are of one run; leave them out for several"
        )
    if len(runs) > 1 and not options.output:
        raise UserError("several runs: give --output, the HTML file to write")
    if options.metrics:
        write_json(options.metrics, summarise(runs[0]))
    if options.table:
        stages = runs[0].stages
        table = compare(runs[0].evaluations, {name: stages[name].cost for name in stages})
        with atomic_write(options.table) as file:
            file.write(table + "\n")
        log.line("scores", "\n" + table)
    if options.card:
        with atomic_write(options.card) as file:
            file.write(card(runs[0]))
    with atomic_write(output) as file:
        if len(runs) == 1:
            file.write(page(runs[0], with_model=not options.without_model))
        else:
            file.write(side_by_side(name_runs(folders, runs), told))
    log.line("report", str(output))


def run_watch(options: argparse.Namespace) -> None:
    from nanoeuler.evaluation.report.page import watch

    watch(options.run, options.output or options.run / "watch.html", options.every)


def report_folders(options: argparse.Namespace) -> list[Path]:
    """The folders of the runs to report, each of them once."""
    if bool(options.runs) == bool(options.run):
        raise UserError(
            "give the folders of runs, such as results/demo, or one with --run and its --config"
        )
    folders = options.runs or [options.run]
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise UserError("give the folder of each run once")
    return folders
