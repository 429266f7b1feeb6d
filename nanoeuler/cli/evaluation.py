"""Subcommands of the evaluation wing: `evaluate`, `compare` and `report`."""

import argparse
import json
from pathlib import Path

from nanoeuler import log
from nanoeuler.backend import DEVICES


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    parser = subparsers.add_parser("evaluate", help="measure a model", description="Measure a model: held-out bits per byte, tasks, replies, samples.")
    parser.add_argument("--config", required=True, help="YAML file, or inline JSON with the section evaluate")
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="model folder, such as results/demo/sft/model")
    parser.add_argument("--tokens", type=Path, metavar="MANIFEST", help="manifest.json of the token shards, for bits per byte")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="held-out questions with exact answers, JSON lines")
    parser.add_argument("--instructions", type=Path, metavar="MANIFEST", help="manifest.json of the instructions: some held-out ones are answered")
    parser.add_argument("--tasks", type=Path, nargs="+", default=[], metavar="MANIFEST", help="manifest.json of each task, as `nanoeuler task` writes it")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="JSON file to write, such as results/demo/evaluation/sft.json")
    parser.add_argument("--items", type=Path, metavar="FILE", help="also write what was picked or replied, item by item, to this file of JSON lines")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="engine (default: auto, the fastest there is)")
    parser.add_argument("--gpus", type=int, default=None, metavar="N", help="GPUs to use; 0 forces the CPU")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append log lines to this file as well")
    parser.set_defaults(handler=run_evaluate)

    parser = subparsers.add_parser("compare", help="put the evaluations of several models side by side")
    parser.add_argument("evaluations", nargs="+", type=Path, metavar="FILE", help="what `nanoeuler evaluate` wrote, such as results/demo/evaluation/*.json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table to this Markdown file")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append log lines to this file as well")
    parser.set_defaults(handler=run_compare)

    parser = subparsers.add_parser("report", help="write the report of a run", description="Write the report of a run as one HTML file that needs no network.")
    parser.add_argument("--config", required=True, help="YAML file, or inline JSON with all sections")
    parser.add_argument("--run", required=True, type=Path, metavar="DIR", help="folder of the run, such as results/demo")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="HTML file to write, such as results/demo/report.html")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="also write the numbers of all stages to this JSON file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="also write the scores of all stages, side by side, to this Markdown file")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append log lines to this file as well")
    parser.set_defaults(handler=run_report)


def run_evaluate(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.evaluation.evaluate import Material, evaluate
    from nanoeuler.files import atomic_write, write_json

    material = Material(options.tokens, options.questions, options.instructions, tuple(options.tasks))
    result, items = evaluate(load(options.config), options.model, material, options.device, options.gpus)
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
    from nanoeuler.evaluation.comparison import compare
    from nanoeuler.evaluation.report.gather import gather
    from nanoeuler.evaluation.report.page import page
    from nanoeuler.evaluation.report.summary import summarise
    from nanoeuler.files import atomic_write, write_json

    run = gather(load(options.config), options.run)
    if options.metrics:
        write_json(options.metrics, summarise(run))
    if options.table:
        table = compare(run.evaluations)
        with atomic_write(options.table) as file:
            file.write(table + "\n")
        log.line("scores", "\n" + table)
    with atomic_write(options.output) as file:
        file.write(page(run))
    log.line("report", str(options.output))
