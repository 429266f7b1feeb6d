"""Subcommand `check`: gradients beside numerical derivatives, the engine beside the specification,
and a learner's op beside it."""

import argparse
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers, config_model
from nanoeuler.errors import UserError, nearest
from nanoeuler.lessons import OPS

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.model.checks.comparison import Comparison
    from nanoeuler.training.optimizer.optimizer import OptimizerSettings
    from nanoeuler.training.start_check import Form

FORMS: list[dict[str, Any]] = [
    {"preset": "small"},
    {
        "preset": "small",
        "head_size": 64,
        "kv_heads": 1,
        "ffn": 100,
        "tied": True,
        "qk_norm": "weighted",
        "step_size": 0.5,
    },
    {"preset": "gpt2-tiny"},
]
"""Models whose form is checked where no config says which, the first by AdamW and the others by
Muon."""


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check",
        help="compare every gradient with numerical derivatives, and the engine with the result",
        description="Compare the gradient of every op and of every parameter tensor with finite "
        "differences, and what the engine at hand computes with that specification in float64: "
        "gradients, decoded tokens, updates. Without --config, a GPU's engine (or the CPU's with "
        "--device cpu: a minute, and 4 GB for the model `base` at 1,024 tokens) is also compared "
        "op by op, in every precision but fp8, which is a matter of whole training steps: a "
        "--config that sets it is compared in it. With --op and --candidate, an op that you wrote "
        "is compared with the specification, and the likely mistake is named.",
    )
    parser.add_flag("--quick", "fewer and smaller models: seconds, but minutes on a GPU")
    parser.add_argument(
        "--config",
        metavar="C",
        help="compare the engine as training with this config does; path, or inline JSON with its "
        "model section",
    )
    parser.add_argument(
        "--output", metavar="PATH", help="write the table as JSON, and print only what is wrong"
    )
    op: Any = parser.add_argument(
        "--op", metavar="NAME", help="print what to write for this op, or check it (docs/lessons)"
    )
    op.completes = OPS
    parser.add_optional_path("--candidate", "FILE", "your functions of the op")
    parser.add_device()
    parser.add_gpus()
    parser.finish(run_check)


def run_check(options: argparse.Namespace) -> None:
    from nanoeuler.model.checks.comparison import TOLERANCE
    from nanoeuler.model.checks.model_gradients import check_all
    from nanoeuler.storage.files import require_place, write_json
    from nanoeuler.storage.integrity import seal
    from nanoeuler.training.start_check import (
        engine_name,
        keep,
        refuse_wrong_engine,
        refuse_wrong_gradients,
        summarise,
        worst,
    )

    if options.op or options.candidate:
        check_op(options)
        return
    if options.output:
        require_place(options.output)
    forms = checked_forms(options)  # refuses a device that is not there
    quiet = options.output is not None
    gradients = print_table(check_all(options.quick), quiet)
    tables = [(form, print_table(form.rows(), quiet)) for form in forms]
    rows = [row for _, table in tables for row in table]
    engine = forms[0].engine
    if options.output:
        report = table_report(gradients) | {
            "version": 1,
            "quick": options.quick,
            "passed": all(row.passed for row in gradients + rows),
            "tolerance": TOLERANCE,
            "engine": table_report(rows) | summarise(engine, rows),
        }
        write_json(options.output, seal(report))
    refuse_wrong_gradients(gradients, "check")
    log.line(
        "check",
        f"every gradient agrees with numerical derivatives (limit {TOLERANCE:g})",
        tensors=len(gradients),
        largest_error=f"{worst(gradients).error:.1e}",
    )
    for form, table in tables:
        refuse_wrong_engine(form, table, "check")
        keep(form, gradients, table)
    nearest = worst(rows)
    log.line(
        "check",
        f"{engine_name(engine)} agrees with the specification in float64 (limit {nearest.limit:g})",
        tensors=len(rows),
        largest_error=f"{nearest.error:.1e}",
    )
    if options.config is None and (options.device == "cpu" or engine.device):
        length = 512 if engine.device else 1024
        check_engine(engine, options.quick, {"small": (2, 128), "base": (1, length)})


def check_op(options: argparse.Namespace) -> None:
    """Compare a learner's op with the specification; without a file, print what to write."""
    from nanoeuler.lessons.candidate import read_candidate, task
    from nanoeuler.lessons.trials import TRIALS
    from nanoeuler.lessons.verdict import LIMIT, judge, remark

    op, path = options.op, options.candidate
    if op not in TRIALS:
        near = nearest(op or "", TRIALS)
        advice = f"did you mean {near}?" if near else f"the ops are {', '.join(TRIALS)}"
        asked = f"--op {op}: there is no such op" if op else "--candidate needs --op"
        raise UserError(f"{asked}; {advice}")
    if options.config or options.output or options.quick:
        raise UserError("--op is checked alone; leave --config, --output and --quick out")
    if path is None:
        print(task(TRIALS[op]))
        return
    candidate = read_candidate(path)
    results = judge(op, candidate)
    for result in results:
        print(f"{result.call.title}: {result.name} {result.fault or 'is right'}")
        if result.likely:
            print(f"  likely: {result.likely}")
    wrong = [result for result in results if result.fault]
    if wrong:
        if text := remark(op, candidate, results):
            print(text)
        first = wrong[0]
        raise UserError(
            f"{path}: {op} is wrong in {len(wrong)} of {log.counted(len(results), 'result')}; "
            f"mend {first.name} of {first.call.function} first"
        )
    log.line("check", f"{path}: {op} agrees with the specification (limit {LIMIT:g})")


def checked_forms(options: argparse.Namespace) -> "list[Form]":
    """The engine at hand, with each of the models whose form is checked."""
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.config.settings import Pretrain, Training
    from nanoeuler.model.config import ModelConfig
    from nanoeuler.storage.section import required_fields
    from nanoeuler.training.check_form import ADAMW
    from nanoeuler.training.optimizer.muon import Muon
    from nanoeuler.training.optimizer.optimizer import optimizer_of
    from nanoeuler.training.start_check import Form

    if options.config is None:
        engine = make_backend(options.device, options.gpus)
        fields = FORMS[:1] if options.quick else FORMS
        muon = Muon(Training.muon_momentum, ADAMW)
        optimizers: list[OptimizerSettings] = [ADAMW, muon, muon]
        return [
            Form(engine, ModelConfig.from_dict(each), optimizer=optimizer)
            for each, optimizer in zip(fields, optimizers, strict=False)
        ]
    config = load(options.config)
    settings = config.get("pretrain", {})
    precision = settings.get("precision", "auto"), settings.get("residual_precision", "auto")
    engine = make_backend(options.device, options.gpus, *precision)
    model = config_model(config)
    # a rule passes no more than what is checked
    training = Pretrain.read(dict.fromkeys(required_fields(Pretrain), 1) | settings)
    return [Form(engine, model, training.recompute, optimizer_of(training))]


def check_engine(engine: "Backend", quick: bool, shapes: dict[str, tuple[int, int]]) -> None:
    """Compare the ops of an engine, in each of its precisions, with the reference in float64.

    Unless `quick`, whole models are compared, too. `shapes` has the rows and the length of the
    batch for each preset.
    """
    from dataclasses import replace

    from nanoeuler.backend import make_backend
    from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_device_ops
    from nanoeuler.training.check_form import (
        PRESET_TOLERANCE,
        READING_IN_FLOAT16,
        check_device_model,
        check_reading,
    )
    from nanoeuler.training.start_check import worst

    wrong: list[Comparison] = []
    count, device = 0, engine.name

    def compare(title: str, table: "Iterable[Comparison]", tolerance: float) -> None:
        nonlocal count
        print(f"{title}, beside float64 (limit {tolerance:g})")
        comparisons = print_table(replace(row, limit=tolerance) for row in table)
        wrong.extend(row for row in comparisons if not row.passed)
        count += len(comparisons)

    for precision in engine.checked_precisions:
        backend = make_backend(device, precision=precision)
        if backend.precision != precision:  # which the device lacks
            continue
        compare(f"ops in {precision}", check_device_ops(backend), OP_TOLERANCE[precision])
        if backend.halves_weights:
            table = check_reading(backend, "small", 20)
            compare("small, all in float16", table, READING_IN_FLOAT16)
        if quick:
            continue
        tolerances = PRESET_TOLERANCE[precision]
        for preset, shape in shapes.items():
            table = check_device_model(backend, preset, *shape)
            compare(f"{preset} in {precision}", table, tolerances[preset])
        if device == "cpu":
            table = check_reading(backend, "small", 20)
            compare("small, reading and decoding", table, tolerances["small"])
    if engine.halves_weights:  # and all else in float32
        table = check_reading(engine, "small", 20)
        compare("small, weights in float16", table, READING_IN_FLOAT16)
    if wrong:
        found = worst(wrong)
        raise UserError(
            f"the results of --device {device} differ from the specification's in {len(wrong)} of "
            f"{count} tensors, most of all {found.tensor} of '{found.case}' ({found.error:.1e}); "
            "do not train on this device, and report it with this table"
        )
    log.line(
        "check",
        "every op and every gradient of the engine agrees with the specification in float64",
        device=device,
        tensors=count,
    )


def print_table(table: "Iterable[Comparison]", quiet: bool = False) -> "list[Comparison]":
    """Print comparisons as they come, by case, `quiet` only those that are wrong; returns all."""
    comparisons: list[Comparison] = []
    case = None
    for row in table:
        comparisons.append(row)
        if quiet and row.passed:
            continue
        if row.case != case:
            case = row.case
            print(f"{case:<52} {'elements':>8}  {'error':>8}  {'worst':>8}")
        verdict = "ok" if row.passed else "WRONG"
        numbers = f"{row.elements:>8}  {row.error:8.1e}  {row.worst:8.1e}"
        print(f"  {row.tensor:<50} {numbers}  {verdict}", flush=True)
    return comparisons


def table_report(rows: "list[Comparison]") -> dict[str, Any]:
    """A table as JSON values; an error that is infinite or NaN becomes null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "largest_error": finite(
            max(math.inf if math.isnan(row.error) else row.error for row in rows)
        ),
        "rows": [
            {**vars(row), "error": finite(row.error), "worst": finite(row.worst), "ok": row.passed}
            for row in rows
        ],
    }
