"""Subcommand `info`: what a model consists of and costs, and what this machine has."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.backend import DEVICES
from nanoeuler.cli.parser import Subparsers, config_model
from nanoeuler.errors import UserError, brief
from nanoeuler.shipped import find

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.model.config import ModelConfig

MOST = 1_000_000
"""Largest number of rows, and of tokens of a row: products of them stay sizes of arrays."""
Line = tuple[str, str, str]
"""Name, value and note."""


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "info",
        help="parameters, FLOPs and bytes of a model; this machine",
        description="Say what a model consists of and what it costs, and what this machine has.",
    )
    which = parser.add_mutually_exclusive_group()
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
    parser.add_number("--rows", "rows of a micro-batch, for its memory (default 8)", 8)
    parser.add_number("--length", "tokens of a row (default: the model's context)")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_gpus()
    parser.add_json()
    parser.finish(run_info)


def run_info(options: argparse.Namespace) -> None:
    from nanoeuler.backend import make_backend, reason
    from nanoeuler.inference.finding import find_model
    from nanoeuler.model.files import previous, scheme_in

    for name in ("rows", "length"):
        given = getattr(options, name)
        if given is not None and not 1 <= given <= MOST:
            raise UserError(f"--{name} {brief(given)}: it must be from 1 to {MOST:,}")
    if options.what is not None:
        given = find(options.what)
        is_model = given.is_dir() or previous(given).is_dir()
        if not is_model and not given.exists():
            raise UserError(
                f"{given}: no such folder or file; give a model, such as results/demo, or a "
                "configuration, such as config/small.yaml"
            )
        setattr(options, "model" if is_model else "config", str(given))
    backend = make_backend(options.device, options.gpus)
    machine = describe_machine(backend, reason(options.device, options.gpus))
    if options.model or options.config:
        config, tuned = model_config(options)
        length = options.length or config.context
        model = describe_model(config, options.rows, length, backend)
        folder = find_model(Path(options.model)) if options.model else None
        model["quantized"] = scheme_in(folder)
        for section, (form, scheme) in tuned.items():
            memory = describe_memory(form, options.rows, length, backend, scheme)
            model[f"memory_of_{section}"] = memory
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


def model_config(
    options: argparse.Namespace,
) -> tuple["ModelConfig", dict[str, tuple["ModelConfig", str | None]]]:
    """The configuration of `--model` or `--config`, and its model with the adapters of those stages
    that train some, with the scheme of the weights beneath them."""
    from nanoeuler.config import load
    from nanoeuler.config.stages import BY_SECTION
    from nanoeuler.inference.finding import find_model
    from nanoeuler.model.adapters import adapted
    from nanoeuler.model.files import load_config, scheme_in

    if options.model:
        return load_config(find_model(Path(options.model))), {}
    content = load(options.config)
    model = config_model(content)
    sections = {name: stage.settings for name, stage in BY_SECTION.items() if name in content}
    found = {name: kind.read(content[name]) for name, kind in sections.items()}
    return model, {
        name: (adapted(model, lora), scheme_in(settings.init_from))
        for name, settings in found.items()
        if (lora := getattr(settings, "lora", None))
    }


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
    """`describe_model` as text for people."""
    print_section("model", shape_lines(config))
    counts = described["parameters"]
    weights = f"in {described['quantized']}" if described["quantized"] else ""
    lines = [
        (kind, f"{count:,}", weights if kind == "total" else f"{count / counts['total']:.1%}")
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
    for key, memory in described.items():
        if key.startswith("memory"):
            print_section(key.replace("_", " "), memory_lines(memory, described["rows"], length))


def shape_lines(config: "ModelConfig") -> list[Line]:
    c = config
    layers = f"{c.layers} layers, {c.heads} query and {c.kv_heads} key/value heads of {c.head_size}"
    heads = "head" if c.mtp_heads == 1 else "heads"
    tied = "head 0 tied to the embedding" if c.tied else "not tied"
    positions = "learned" if c.family == "gpt2" else f"RoPE θ = {c.rope_theta:,.0f}"
    if c.rope_scaling is not None:
        positions += f", {c.rope_scaling.type} × {c.rope_scaling.factor:g}"
    kinds = [c.layer_kind(layer) for layer in range(c.layers)]
    if still := sum(not rotates for _, rotates in kinds):
        positions += f", {log.counted(still, 'layer')} without"
    for window in sorted({window for window, _ in kinds if window}):
        seeing = sum(each == window for each, _ in kinds)
        positions += f"; {window:,} seen in {log.counted(seeing, 'layer')}"
    return [
        ("dim", f"{c.dim:,}", f"{layers}, ffn {c.ffn:,}, h = {c.step_size:g}"),
        ("vocabulary", f"{c.vocab_size:,}", f"K = {c.mtp_heads} prediction {heads}, {tied}"),
        ("context", f"{c.context:,}", f"tokens; {positions}"),
    ]


def describe_memory(
    config: "ModelConfig", rows: int, length: int, backend: "Backend", scheme: str | None = None
) -> dict[str, Any]:
    """Bytes of training on micro-batches of `rows` × `length` tokens, and of a KV cache; and the
    rows of a micro-batch that the memory of `holder` holds.

    `scheme`: int8 or int4, where the weights beneath adapters are quantized.
    """
    from nanoeuler.model.buffers import rows_within, training_pass_bytes
    from nanoeuler.model.families import make_blocks
    from nanoeuler.model.flat import FlatBuffer
    from nanoeuler.model.frozen import frozen_bytes
    from nanoeuler.system.machine import memory

    frozen, trained = frozen_bytes(config, backend, scheme), 4 * FlatBuffer.trained_elements(config)
    for block in make_blocks(config):
        backend.check_form(block.form, config.dim)
    width = backend.activation.itemsize
    copy = 0 if backend.activation == backend.dtype else trained // 2
    if backend.device is None:
        available, holder = memory(), "this machine's memory"
    else:
        available = backend.device.free_memory
        holder = f"free memory of {backend.device.name}"
    parts = {
        "frozen": frozen,
        "weights": trained,
        "working_copy": copy,
        "gradients": trained,
        "moments": 2 * trained,
        "activations": training_pass_bytes(config, backend, rows, length),
    }
    return {
        **parts,
        "training": sum(parts.values()),
        "kv_cache": width * 2 * config.layers * config.kv_heads * config.head_size * config.context,
        "largest_rows": rows_within(
            config, backend, length, available - frozen - 4 * trained - copy
        ),
        "holder": holder,
    }


def memory_lines(memory: dict[str, Any], rows: int, length: int) -> list[Line]:
    notes = {
        "frozen": "weights beneath adapters, as products read them",
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
            (kind.replace("_", " "), log.size(memory[kind]), note)
            for kind, note in notes.items()
            if memory[kind]
        ),
        ("largest", f"{memory['largest_rows']:,}", holder),
        ("KV cache", log.size(memory["kv_cache"]), "of a row at full context, in use"),
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
    from nanoeuler.system import provenance
    from nanoeuler.system.machine import memory

    found, device = provenance.collect(), backend.device
    gpu = device and {"name": device.name, "memory": device.memory, "free": device.free_memory}
    kept = {key: found[key] for key in ("cores", "cpu", "nanoeuler", "python", "packages")}
    engine = {"backend": backend.name, "reason": why, "blas": backend.environment().get("blas")}
    return {**engine, "gpu": gpu, "memory": memory(), **kept}


def print_machine(machine: dict[str, Any]) -> None:
    packages = {"python": machine["python"], **machine["packages"]}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    lines: list[Line] = [("backend", machine["backend"], machine["reason"])]
    if blas := machine["blas"]:
        lines.append(("BLAS", "", blas))
    if gpu := machine["gpu"]:
        lines.append(
            ("GPU", log.size(gpu["memory"]), f"{gpu['name']}, {log.size(gpu['free'])} free")
        )
    lines += [
        ("cores", str(machine["cores"]), machine["cpu"]),
        ("memory", log.size(machine["memory"]), ""),
        ("versions", machine["nanoeuler"], versions),
    ]
    print_section("machine", lines)


def print_section(title: str, lines: list[Line]) -> None:
    """Print a title and its lines, with the values right-aligned."""
    width = max(len(value) for _, value, _ in lines)
    print(title)
    for name, value, note in lines:
        print(f"  {name:<13}{value:>{width}}  {note}".rstrip())
