"""Subcommands that inspect: `check` compares gradients, `info` describes a model."""

import argparse
import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.backend import DEVICES
from nanoeuler.cli.options import add_device, add_gpus, add_json, finish
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.model.checks.comparison import Comparison
    from nanoeuler.model.config import ModelConfig
    from nanoeuler.training.optimizer.optimizer import OptimizerSettings
    from nanoeuler.training.start_check import Form

Line = tuple[str, str, str]
"""Name, value and note."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add these subcommands."""
    check = subparsers.add_parser(
        "check",
        help="compare every gradient with finite differences, and the engine with the result",
        description="Compare the gradient of every op and of every parameter tensor with finite "
        "differences, and what the engine at hand computes with that specification in float64: "
        "gradients, decoded tokens, updates. Without --config, a GPU's engine (or the CPU's with "
        "--device cpu: a minute, and 4 GB for the model `base` at 1,024 tokens) is also compared "
        "op by op, in every precision but fp8, which is a matter of whole training steps: a "
        "--config that sets it is compared in it.",
    )
    check.add_argument(
        "--quick", action="store_true", help="fewer and smaller models: a second or two"
    )
    check.add_argument(
        "--config",
        metavar="C",
        help="compare the engine as training with this config does; path, or inline JSON with its "
        "model section",
    )
    check.add_argument(
        "--output", metavar="PATH", help="write the table as JSON, and print only what is wrong"
    )
    add_device(check)
    add_gpus(check)
    finish(check, run_check)
    info = subparsers.add_parser(
        "info",
        help="parameters, FLOPs and bytes of a model; this machine",
        description="Say what a model consists of and what it costs, and what this machine has.",
    )
    which = info.add_mutually_exclusive_group()
    which.add_argument(
        "what",
        nargs="?",
        metavar="DIR|FILE",
        help="a model: its folder, or that of a stage or a run; or the path of a config",
    )
    which.add_argument("--model", metavar="DIR", help="the model as an option")
    which.add_argument(
        "--config", metavar="C", help="path of a config, or inline JSON with its model section"
    )
    info.add_argument(
        "--rows",
        type=int,
        default=8,
        metavar="N",
        help="rows of a micro-batch, for its memory (default 8)",
    )
    info.add_argument(
        "--length", type=int, metavar="N", help="tokens of a row (default: the model's context)"
    )
    info.add_argument("--device", choices=DEVICES, default="auto")
    add_gpus(info)
    add_json(info)
    finish(info, run_info)


# ---- check


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
]
"""Models whose form is checked where no config says which, by AdamW and by Muon."""


def run_check(options: argparse.Namespace) -> None:
    from nanoeuler.files import write_json
    from nanoeuler.integrity import seal
    from nanoeuler.model.checks.comparison import TOLERANCE
    from nanoeuler.model.checks.model_gradients import check_all
    from nanoeuler.training.start_check import (
        engine_name,
        keep,
        refuse_wrong_engine,
        refuse_wrong_gradients,
        summarise,
        worst,
    )

    forms = checked_forms(options)  # refuses a device that is not there
    quiet = options.output is not None
    gradients = print_table(check_all(options.quick), quiet)
    tables = [(form, print_table(form.rows(), quiet)) for form in forms]
    rows = [row for _, table in tables for row in table]
    engine = forms[0].engine
    if options.output:
        report = table_report(gradients) | {
            "version": 2,
            "quick": options.quick,
            "passed": all(row.passed for row in gradients + rows),
            "tolerance": TOLERANCE,
            "engine": table_report(rows) | summarise(engine, rows),
        }
        write_json(options.output, seal(report))
    refuse_wrong_gradients(gradients, "check")
    log.line(
        "check",
        f"every gradient agrees with finite differences (limit {TOLERANCE:g})",
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
    if options.config is None and (options.device == "cpu" or engine.name == "cuda"):
        length = 512 if engine.name == "cuda" else 1024
        check_engine(engine.name, options.quick, {"small": (2, 128), "base": (1, length)})


def checked_forms(options: argparse.Namespace) -> "list[Form]":
    """The engine at hand, with each of the models whose form is checked."""
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.config.settings import Training
    from nanoeuler.model.config import ModelConfig
    from nanoeuler.training.check_form import ADAMW
    from nanoeuler.training.optimizer.muon import Muon
    from nanoeuler.training.start_check import Form

    if options.config is None:
        engine = make_backend(options.device, options.gpus)
        fields = FORMS[:1] if options.quick else FORMS
        optimizers: list[OptimizerSettings] = [ADAMW, Muon(Training.muon_momentum, ADAMW)]
        return [
            Form(engine, ModelConfig.from_dict(each), optimizer=optimizer)
            for each, optimizer in zip(fields, optimizers, strict=False)
        ]
    config = load(options.config)
    settings = config.get("pretrain", {})
    precision = settings.get("precision", "auto"), settings.get("residual_precision", "auto")
    engine = make_backend(options.device, options.gpus, *precision)
    model = config_model(config)
    return [Form(engine, model, recompute=settings.get("recompute", False))]


def check_engine(device: str, quick: bool, shapes: dict[str, tuple[int, int]]) -> None:
    """Compare an engine with the reference in float64, in every precision but fp8.

    Its ops are compared, and unless `quick` whole models, too. `shapes` has the rows and the length
    of the batch for each preset.
    """
    from nanoeuler.backend import make_backend
    from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_device_ops
    from nanoeuler.training.check_model import MODEL_TOLERANCE, check_device_model, check_reading
    from nanoeuler.training.start_check import worst

    wrong: list[Comparison] = []
    count = 0

    def compare(title: str, table: "Iterable[Comparison]", tolerance: float) -> None:
        nonlocal count
        print(f"{title}, beside float64 (limit {tolerance:g})")
        comparisons = print_table(replace(row, limit=tolerance) for row in table)
        wrong.extend(row for row in comparisons if not row.passed)
        count += len(comparisons)

    for precision in ("fp32", "tf32", "bf16") if device == "cuda" else ("fp32",):
        backend = make_backend(device, precision=precision)
        compare(f"ops in {precision}", check_device_ops(backend), OP_TOLERANCE[precision])
        if quick:
            continue
        tolerances = MODEL_TOLERANCE[precision]
        for preset, shape in shapes.items():
            table = check_device_model(backend, preset, *shape, steps=0)
            compare(f"{preset} in {precision}", table, tolerances[preset])
        if device == "cpu":
            table = check_reading(backend, "small", 20)
            compare("small, reading and decoding", table, tolerances["small"])
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
        print(row_text(row), flush=True)
    return comparisons


def row_text(row: "Comparison") -> str:
    verdict = "ok" if row.passed else "WRONG"
    numbers = f"{row.elements:>8}  {row.error:8.1e}  {row.worst:8.1e}"
    return f"  {row.tensor:<50} {numbers}  {verdict}"


def table_report(rows: "list[Comparison]") -> dict[str, Any]:
    """A table as JSON values; an error that is infinite or NaN becomes null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "largest_error": finite(
            max(math.inf if math.isnan(row.error) else row.error for row in rows)
        ),
        "rows": [
            {
                "case": row.case,
                "tensor": row.tensor,
                "elements": row.elements,
                "error": finite(row.error),
                "worst": finite(row.worst),
                "limit": row.limit,
                "ok": row.passed,
            }
            for row in rows
        ],
    }


# ---- info


def run_info(options: argparse.Namespace) -> None:
    from nanoeuler.backend import make_backend, reason

    if options.rows < 1 or (options.length is not None and options.length < 1):
        raise UserError("--rows and --length must be at least 1")
    if options.what is not None:
        setattr(options, "model" if os.path.isdir(options.what) else "config", options.what)
    backend = make_backend(options.device, options.gpus)
    machine = describe_machine(backend, reason(options.device, options.gpus))
    if options.model or options.config:
        config = model_config(options)
        model = describe_model(config, options.rows, options.length or config.context, backend)
        if options.json:
            print(json.dumps(model | {"machine": machine}, indent=2, ensure_ascii=False))
            return
        print_model(config, model)
    elif options.json:
        print(json.dumps({"version": 1, "presets": presets(), "machine": machine}, indent=2))
        return
    else:
        print_presets()
    print_machine(machine)


def model_config(options: argparse.Namespace) -> "ModelConfig":
    """The configuration of `--model` or `--config`."""
    from nanoeuler.config import load
    from nanoeuler.model.files import find_model, load_config

    if options.model:
        return load_config(find_model(Path(options.model)))
    return config_model(load(options.config))


def config_model(config: dict[str, Any]) -> "ModelConfig":
    """The model of `--config`."""
    from nanoeuler.model.config import ModelConfig

    if "model" not in config:
        raise UserError(
            "--config: there is no model section; "
            'give one, such as \'{"model": {"preset": "small"}}\''
        )
    return ModelConfig.from_dict(config["model"])


def describe_model(
    config: "ModelConfig", rows: int, length: int, backend: "Backend"
) -> dict[str, Any]:
    """Fields, parameters by kind, FLOPs per token and bytes by kind."""
    from nanoeuler.model.spec import (
        forward_flops_per_token,
        parameters_by_kind,
        training_flops_per_token,
    )

    kinds = parameters_by_kind(config)
    return {
        "version": 1,
        "model": config.to_dict(),
        "parameters": kinds | {"total": sum(kinds.values())},
        "rows": rows,
        "length": length,
        "flops_per_token": {
            "forward": forward_flops_per_token(config, length),
            "training": training_flops_per_token(config, length),
        },
        "memory": describe_memory(config, rows, length, backend),
    }


def print_model(config: "ModelConfig", described: dict[str, Any]) -> None:
    """What `describe_model` says, for people."""
    print_section("model", shape_lines(config))
    counts = described["parameters"]
    lines = [
        (kind, f"{count:,}", "" if kind == "total" else f"{count / counts['total']:.1%}")
        for kind, count in counts.items()
    ]
    print_section("parameters", lines)
    flops, length = described["flops_per_token"], described["length"]
    print_section(
        f"FLOPs per token, in rows of {length}",
        [
            ("forward", f"{flops['forward'] / 1e6:,.1f} M", ""),
            ("training", f"{flops['training'] / 1e6:,.1f} M", "forward and backward"),
        ],
    )
    print_section("memory", memory_lines(described["memory"], described["rows"], length))


def shape_lines(config: "ModelConfig") -> list[Line]:
    c = config
    layers = f"{c.layers} layers, {c.heads} query and {c.kv_heads} key/value heads of {c.head_size}"
    tied = "head 0 tied to the embedding" if c.tied else "not tied"
    return [
        ("dim", f"{c.dim:,}", f"{layers}, ffn {c.ffn:,}, h = {c.step_size:g}"),
        ("vocabulary", f"{c.vocab_size:,}", f"K = {c.mtp_heads} prediction heads, {tied}"),
        ("context", f"{c.context:,}", f"tokens; RoPE θ = {c.rope_theta:,.0f}"),
    ]


def describe_memory(
    config: "ModelConfig", rows: int, length: int, backend: "Backend"
) -> dict[str, Any]:
    """Bytes of training on micro-batches of `rows` × `length` tokens, and of a KV cache; and the
    rows of a micro-batch that the memory of `holder` holds."""
    from nanoeuler.config.machine import memory_megabytes
    from nanoeuler.model.buffers import rows_within, training_pass_bytes
    from nanoeuler.model.llama import make_blocks
    from nanoeuler.model.spec import storage_elements, tensor_table

    buffer = 4 * storage_elements(tensor_table(config))
    for block in make_blocks(config):
        backend.check_form(block.form, config.dim)
    width = backend.activation.itemsize
    copy = 0 if backend.activation == backend.dtype else buffer // 2
    if backend.device is None:
        available, holder = memory_megabytes() * 2**20, "this machine's memory"
    else:
        available = backend.device.free_memory
        holder = f"free memory of {backend.device.name}"
    parts = {
        "weights": buffer,
        "working_copy": copy,
        "gradients": buffer,
        "moments": 2 * buffer,
        "activations": training_pass_bytes(config, backend, rows, length),
    }
    return {
        **parts,
        "training": sum(parts.values()),
        "kv_cache": width * 2 * config.layers * config.kv_heads * config.head_size * config.context,
        "largest_rows": rows_within(config, backend, length, available - 4 * buffer - copy),
        "holder": holder,
    }


def memory_lines(memory: dict[str, Any], rows: int, length: int) -> list[Line]:
    from nanoeuler.planning import size

    notes = {
        "weights": "float32, padding to blocks included",
        "working_copy": "of the weights in bf16, which products read",
        "gradients": "",
        "moments": "both of AdamW",
        "activations": f"micro-batch of {log.counted(rows, 'row')} of {length}",
        "training": "all of the above",
    }
    holder = f"rows of {length} in a micro-batch that {memory['holder']} holds"
    return [
        *(
            (kind.replace("_", " "), size(memory[kind]), note)
            for kind, note in notes.items()
            if memory[kind]
        ),
        ("largest", f"{memory['largest_rows']:,}", holder),
        ("KV cache", size(memory["kv_cache"]), "of a row at full context, in use"),
    ]


def presets() -> dict[str, int]:
    """The parameters of each preset."""
    from nanoeuler.model.config import PRESETS, ModelConfig
    from nanoeuler.model.spec import parameter_count

    return {name: parameter_count(ModelConfig.from_dict({"preset": name})) for name in PRESETS}


def print_presets() -> None:
    lines = []
    for name, count in presets().items():
        command = f"nanoeuler info --config '{json.dumps({'model': {'preset': name}})}'"
        lines.append((name, f"{count:,}", f"parameters; {command}"))
    print_section("presets", lines)


def describe_machine(backend: "Backend", why: str) -> dict[str, Any]:
    """The engine and why it was chosen, its GPU if any, and this machine with its packages."""
    from nanoeuler import provenance
    from nanoeuler.config.machine import memory_megabytes

    found, device = provenance.collect(), backend.device
    gpu = device and {"name": device.name, "memory": device.memory, "free": device.free_memory}
    kept = {key: found[key] for key in ("cores", "cpu", "nanoeuler", "python", "packages")}
    memory = memory_megabytes() * 2**20
    return {"backend": backend.name, "reason": why, "gpu": gpu, "memory": memory, **kept}


def print_machine(machine: dict[str, Any]) -> None:
    from nanoeuler.planning import size

    packages = {"python": machine["python"], **machine["packages"]}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    lines: list[Line] = [("backend", machine["backend"], machine["reason"])]
    if gpu := machine["gpu"]:
        lines.append(("GPU", size(gpu["memory"]), f"{gpu['name']}, {size(gpu['free'])} free"))
    lines += [
        ("cores", str(machine["cores"]), machine["cpu"]),
        ("memory", size(machine["memory"]), ""),
        ("versions", machine["nanoeuler"], versions),
    ]
    print_section("machine", lines)


def print_section(title: str, lines: list[Line]) -> None:
    """Print a title and its lines, with the values right-aligned."""
    width = max(len(value) for _, value, _ in lines)
    print(title)
    for name, value, note in lines:
        print(f"  {name:<13}{value:>{width}}  {note}".rstrip())
