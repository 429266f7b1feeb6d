"""Subcommands of the evaluation wing: `evaluate`, `compare` and `report`."""

import argparse
import json
from pathlib import Path

from nanoeuler import log
from nanoeuler.backend import DEVICES


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a model",
        description="Measure a model: held-out bits per byte, tasks, replies, samples.",
    )
    parser.add_argument(
        "--config", required=True, help="YAML file, or inline JSON with the section evaluate"
    )
    parser.add_argument(
        "--model",
        required=True,
        type=Path,
        metavar="DIR",
        help="model folder, such as results/demo/sft/model",
    )
    parser.add_argument(
        "--tokens",
        type=Path,
        metavar="MANIFEST",
        help="manifest.json of the token shards, for bits per byte",
    )
    parser.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help="held-out questions with exact answers, JSON lines",
    )
    parser.add_argument(
        "--instructions",
        type=Path,
        metavar="MANIFEST",
        help="manifest.json of the instructions: some held-out ones are answered",
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        nargs="+",
        default=[],
        metavar="MANIFEST",
        help="manifest.json of each task, as `nanoeuler task` writes it",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON file to write, such as results/demo/evaluation/sft.json",
    )
    parser.add_argument(
        "--items",
        type=Path,
        metavar="FILE",
        help="also write what was picked or replied, item by item, to this file of JSON lines",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="engine (default: auto, the fastest there is)",
    )
    parser.add_argument(
        "--gpus", type=int, default=None, metavar="N", help="GPUs to use; 0 forces the CPU"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=run_evaluate)

    parser = subparsers.add_parser(
        "compare", help="put the evaluations of several models side by side"
    )
    parser.add_argument(
        "evaluations",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="what `nanoeuler evaluate` wrote, such as results/demo/evaluation/*.json",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the table to this Markdown file"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=run_compare)

    parser = subparsers.add_parser(
        "report",
        help="write the report of a run, or of several side by side",
        description="Write the report of a run, or of several runs side by side, as one HTML file that needs no network.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folders of runs, such as results/demo; their workflow kept their configurations",
    )
    parser.add_argument("--config", help="with --run: YAML file, or inline JSON with all sections")
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="folder of one run whose configuration is given"
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="HTML file to write, such as results/demo/report.html",
    )
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="also write the numbers of all stages to this JSON file",
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="also write the scores of all stages, side by side, to this Markdown file",
    )
    parser.add_argument(
        "--card",
        type=Path,
        metavar="FILE",
        help="also write the model card to this Markdown file, such as results/demo/README.md",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=run_report)


def run_evaluate(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.evaluation.evaluate import Material, evaluate
    from nanoeuler.files import atomic_write, write_json

    material = Material(
        options.tokens, options.questions, options.instructions, tuple(options.tasks)
    )
    result, items = evaluate(
        load(options.config), options.model, material, options.device, options.gpus
    )
    if options.items:
        with atomic_write(options.items) as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
    write_json(options.output, result)
    log.line("evaluated", str(options.output))


def run_compare(options: argparse.Namespace) -> None:
    from nanoeuler.evaluation.comparison import compare, read_evaluations
    from nanoeuler.files import atomic_write

    table = compare(read_evaluations(options.evaluations))
    print(table)
    if options.output:
        with atomic_write(options.output) as file:
            file.write(table + "\n")


def run_report(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.errors import UserError
    from nanoeuler.evaluation.card import card
    from nanoeuler.evaluation.comparison import compare
    from nanoeuler.evaluation.report.gather import gather, kept_configuration
    from nanoeuler.evaluation.report.page import page
    from nanoeuler.evaluation.report.side_by_side import name_runs, side_by_side
    from nanoeuler.evaluation.report.summary import summarise
    from nanoeuler.files import atomic_write, write_json

    if bool(options.runs) == bool(options.run):
        raise UserError(
            "give the folders of runs, such as results/demo, or one with --run and its --config"
        )
    folders = options.runs or [options.run]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("give the folder of each run once")
    runs = [
        gather(load(options.config) if options.config else kept_configuration(folder), folder)
        for folder in folders
    ]
    if len(runs) > 1 and (options.metrics or options.table or options.card or options.config):
        raise UserError(
            "--config, --metrics, --table and --card are of one run; leave them out for several"
        )
    if options.metrics:
        write_json(options.metrics, summarise(runs[0]))
    if options.table:
        table = compare(runs[0].evaluations)
        with atomic_write(options.table) as file:
            file.write(table + "\n")
        log.line("scores", "\n" + table)
    if options.card:
        with atomic_write(options.card) as file:
            file.write(card(runs[0]))
    with atomic_write(options.output) as file:
        file.write(page(runs[0]) if len(runs) == 1 else side_by_side(name_runs(folders, runs)))
    log.line("report", str(options.output))
