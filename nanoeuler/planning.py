"""What a run will cost, before it costs anything: downloads, disk, memory, tokens, epochs, hours.

Sizes come from the sources file and the model's tensor table, hours from a few steps of the real model on the device at
hand. Whatever is on disk already is not counted again. All figures are estimates and are printed as such.
"""

import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.config.paths import Paths
from nanoeuler.files import read_json
from nanoeuler.log import counted, format_seconds
from nanoeuler.model.buffers import training_pass_bytes
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameter_count, state_bytes, training_flops_per_token
from nanoeuler.model.transformer import initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

BOOK_BYTES = 700_000
"""Mean size of the classics in config/sources.yaml."""
FETCHED_SHARE = 0.65
"""Of a web text's bytes, what its compressed column takes on the wire, filters and margin included."""
RECORDS_BYTES = 22_000_000
"""An instruction file whose size nobody states, taken to be like Alpaca's."""
SAMPLE_RECORDS_BYTES = 100_000
PAIRS_BYTES = 20_000_000
"""A file of preference pairs whose size nobody states, taken to be like AlpacaFarm's."""
SAMPLE_PAIRS_BYTES = 100_000
RECORD_OVERHEAD = 1.6
"""Tokens of instruction rows against their text's: the template around each record, and padding."""
KEPT_CHECKPOINTS = 4
"""The newest two, the best, and the one being written."""
IMPORTS_BYTES = 150 * 2**20
PROBE_FLOPS = 4e11
"""Work of one probed micro-batch: seconds on a CPU, enough to be worth timing on anything faster."""

SHORT_FLOPS = 5e13
"""Training that ends within an hour on any core made in ten years (14 GFLOP/s)."""


@dataclass
class StageCost:
    """A training stage's work: `tokens` processed in `seconds` (None: not probed)."""

    tokens: float
    epochs: float | None = None
    seconds: float | None = None


@dataclass
class Plan:
    """Estimates for one configuration on this machine. Bytes, tokens and seconds."""

    parameters: int
    download: dict[str, float | None] = field(
        default_factory=dict
    )  # None: the sources file does not say
    data_disk: float = 0.0
    results_disk: float = 0.0
    memory: float = 0.0
    text_bytes: float = 0.0
    text_tokens: float = 0.0
    stages: dict[str, StageCost] = field(default_factory=dict)
    tokens_per_second: float | None = None
    engine: str = ""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds or 0.0 for stage in self.stages.values())


def make_plan(config: dict[str, Any], backend: Backend, stages: list[str] | None = None) -> Plan:
    """Estimate everything but the speed, which `probe` measures once memory is known to do.

    `stages` are the training stages that will run (default: all of the configuration's).
    """
    paths, model = Paths(config), ModelConfig.from_dict(config["model"])
    plan = Plan(parameters=parameter_count(model), engine=backend.name)
    sources = config["sources"]
    books = [book for book in paths.books if not Path(paths.raw_book(book)).exists()]
    shards = [shard for shard in paths.web_shards if not Path(paths.web_shard(shard)).exists()]
    shard_text = [
        min(
            config["corpus"]["fineweb"]["max_bytes_per_shard"],
            (entry.get("bytes") or 2e9) / FETCHED_SHARE,
        )
        for entry in web_entries(sources)
    ]
    instructions = sources.get("instructions", {}).get(config["sft"]["instructions"], {})
    if "sample" not in config:
        plan.download["books"] = len(books) * BOOK_BYTES
        plan.download["web pages"] = sum(shard_text[shard] for shard in shards) * FETCHED_SHARE
        if config["sft"]["enabled"] and not Path(paths.instructions, "manifest.json").exists():
            plan.download["instructions"] = instructions.get("bytes")
        tasks = [
            entry["name"]
            for entry, manifest in zip(config["evaluate"]["tasks"], paths.tasks, strict=True)
            if not Path(manifest).exists()
        ]
        task_bytes = [sources.get("tasks", {}).get(name, {}).get("bytes") for name in tasks]
        plan.download["tasks"] = sum(task_bytes) if all(task_bytes) else None
        if any(not Path(file).exists() for file in paths.questions):
            plan.download["questions"] = (
                sources.get("questions", {}).get(config["evaluate"]["questions"], {}).get("bytes")
            )
    vocab_size = config["tokenizer"]["vocab_size"]
    if Path(paths.tokens).exists():
        train = read_json(paths.tokens)["splits"]["train"].values()
        plan.text_bytes, plan.text_tokens = (
            sum(s["bytes"] for s in train),
            sum(s["tokens"] for s in train),
        )
    else:
        if "sample" in config:
            plan.text_bytes = raw_bytes = 2e6
        else:
            own = sum(Path(file).stat().st_size for file in paths.own_text)
            plan.text_bytes = (
                len(paths.books) * BOOK_BYTES * 0.97
                + sum(shard_text[shard] for shard in paths.web_shards)
                + own
            )
            raw_bytes = len(books) * BOOK_BYTES * 2 + sum(shard_text[shard] for shard in shards)
        plan.text_tokens = plan.text_bytes / bytes_per_token(vocab_size)
        token_bytes = plan.text_tokens * (2 if vocab_size <= 65536 else 4)
        plan.data_disk = raw_bytes + plan.text_bytes + token_bytes
    record_bytes = float(
        instructions.get("bytes") or (SAMPLE_RECORDS_BYTES if "sample" in config else RECORDS_BYTES)
    )
    tuning = StageCost(
        config["sft"]["epochs"] * record_bytes / bytes_per_token(vocab_size) * RECORD_OVERHEAD,
        config["sft"]["epochs"],
    )
    pairs = sources.get("preferences", {}).get(config["dpo"]["preferences"], {})
    pair_bytes = float(
        pairs.get("bytes") or (SAMPLE_PAIRS_BYTES if "sample" in config else PAIRS_BYTES)
    )
    if (
        "sample" not in config
        and config["dpo"]["enabled"]
        and not Path(paths.preferences, "manifest.json").exists()
    ):
        plan.download["preferences"] = pairs.get("bytes")
    aligning = StageCost(
        config["dpo"]["epochs"] * pair_bytes / bytes_per_token(vocab_size) * RECORD_OVERHEAD,
        config["dpo"]["epochs"],
    )
    pretraining = StageCost(
        config["pretrain"]["tokens"], config["pretrain"]["tokens"] / max(1.0, plan.text_tokens)
    )
    for stage in paths.stages if stages is None else stages:
        plan.stages[stage] = {"pretrain": pretraining, "dpo": aligning}.get(stage) or replace(
            tuning
        )
    stage_bytes = KEPT_CHECKPOINTS * 12 * plan.parameters + 4 * plan.parameters
    plan.results_disk = stage_bytes * len(plan.stages)
    tuned, aligned = config["sft"], config["dpo"]
    longest = max(
        model.context,
        (tuned["context"] or 0) * tuned["enabled"],
        2 * (aligned["context"] or 0) * aligned["enabled"],
    )
    row = training_pass_bytes(model, backend, 1, longest)
    if plan.stages:
        plan.memory = (
            IMPORTS_BYTES + state_bytes(model) + row + 12 * plan.parameters
        )  # the last for writing a checkpoint
    return plan


def web_entries(sources: dict[str, Any]) -> list[dict[str, Any]]:
    return sources.get("fineweb", {}).get("shards", [])


def bytes_per_token(vocab_size: int) -> float:
    """English text under a byte-level BPE of this size: measured 1.9 at 512, 3.3 at 4,096 and 3.7 at 8,192; about linear in the logarithm."""
    return float(np.clip(1.9 + 0.47 * np.log2(vocab_size / 512), 1.0, 4.6))


def probe(config: dict[str, Any], backend: Backend, plan: Plan, seconds: float = 4.0) -> None:
    """Time a few steps of the real model, of 2,048 tokens at most, for about `seconds`, and fill in the hours.

    The first does not count: it plans buffers, and may have to compile machine code.
    """
    model = ModelConfig.from_dict(config["model"])
    rows = max(1, min(2048, config["pretrain"]["batch_tokens"]) // model.context)
    rows = max(
        1,
        min(
            rows,
            round(PROBE_FLOPS / training_flops_per_token(model, model.context) / model.context),
        ),
    )
    tokens = np.random.Generator(np.random.Philox(key=[0, 0])).integers(
        1, model.vocab_size, 64 * model.context, np.int32
    )
    stream = TextStream(
        tokens, model.context, rows * model.context, model.mtp_weights, 0, True, 0, "probe"
    )
    state = TrainingState(
        model, backend, initial_parameters(model, 0), AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    )
    durations: list[float] = []
    while len(durations) < 2 or (sum(durations[1:]) < seconds and len(durations) < 8):
        began = time.monotonic()
        state.train_step(stream.step(len(durations)), -(-rows // len(state.replicas)), 0.0)
        backend.finish()
        durations.append(time.monotonic() - began)
    plan.tokens_per_second = (
        rows * model.context / min(durations[1:])
    )  # the best: others may be at work on this machine
    for stage in plan.stages.values():
        stage.seconds = stage.tokens / plan.tokens_per_second


def is_short(config: dict[str, Any], plan: Plan) -> bool:
    """Whether training takes minutes wherever it runs, so that timing steps of it would take longer than it tells."""
    model, limit = ModelConfig.from_dict(config["model"]), config.get("max_hours")
    flops = sum(stage.tokens for stage in plan.stages.values()) * training_flops_per_token(
        model, model.context
    )
    return flops < SHORT_FLOPS and (limit is None or limit >= 1)


def shortages(config: dict[str, Any], plan: Plan, config_name: str) -> list[str]:
    """Why the run should not start here, one sentence each, with what to do instead; empty when it may."""
    found = []
    need: dict[int, list[Any]] = {}
    for folder, amount in (
        (config["data_dir"], plan.data_disk),
        (config["results_dir"], plan.results_disk),
    ):
        existing = next(
            path
            for path in (Path(folder).absolute(), *Path(folder).absolute().parents)
            if path.exists()
        )
        entry = need.setdefault(os.stat(existing).st_dev, [existing, 0.0])
        entry[1] += amount
    for existing, amount in need.values():
        free = shutil.disk_usage(existing).free
        if amount > free:
            found.append(
                f"the disk of {existing} has {size(free)} free and the run needs about {size(amount)}: make room, or put data_dir or results_dir elsewhere"
            )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if plan.memory > memory:
        found.append(
            f"training needs about {size(plan.memory)} of memory and this machine has {size(memory)}: "
            f"take a smaller model, for example: snakemake --configfile {smaller(config_name)}"
        )
    limit = config.get("max_hours")
    if limit is not None and plan.seconds > limit * 3600:
        found.append(
            f"training would take about {plan.seconds / 3600:,.0f} hours on this machine ({plan.engine}, {plan.tokens_per_second:,.0f} tokens/s), "
            f"more than max_hours = {limit:g}: use a machine with a GPU, or a smaller run: snakemake --configfile {smaller(config_name)}; or accept it: "
            f"snakemake --configfile {config_name} --config max_hours={int(plan.seconds / 3600) + 1}"
        )
    return found


def smaller(config_name: str) -> str:
    """The next smaller of the configurations that come with the project."""
    order = ["config.yaml", "small.yaml", "medium.yaml", "base.yaml", "large.yaml"]
    name = Path(config_name).name
    folder = Path(config_name).parent if Path(config_name).name in order else Path("config")
    return str(folder / (order[max(0, order.index(name) - 1)] if name in order else "small.yaml"))


def size(amount: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return (
                f"{amount:.0f} {unit}" if unit in ("bytes", "kB", "MB") else f"{amount:.1f} {unit}"
            )
        amount /= 1000
    raise AssertionError("unreachable")


def describe(config: dict[str, Any], plan: Plan) -> str:
    """The plan as lines for a terminal."""
    lines = [
        f"run {config['run']}: {plan.parameters:,} parameters on {plan.engine}"
        + (f", about {plan.tokens_per_second:,.0f} tokens/s" if plan.tokens_per_second else "")
    ]
    wanted = [
        f"{name} {'(size not stated)' if amount is None else size(amount)}"
        for name, amount in plan.download.items()
        if amount != 0
    ]
    lines.append("  download   " + (", ".join(wanted) or "nothing"))
    lines.append(
        f"  disk       {size(plan.data_disk)} in {config['data_dir']}, at most {size(plan.results_disk)} in {config['results_dir']}"
    )
    if plan.memory:
        lines.append(f"  memory     {size(plan.memory)} at least")
    lines.append(
        f"  text       {size(plan.text_bytes)}, about {plan.text_tokens / 1e6:,.1f} M tokens"
    )
    for name, stage in plan.stages.items():
        epochs = counted(float(f"{stage.epochs:.3g}"), "epoch") if stage.epochs is not None else ""
        duration = (
            f"about {format_seconds(stage.seconds)}"
            if stage.seconds is not None
            else "minutes"
            if is_short(config, plan)
            else "not probed"
        )
        lines.append(f"  {name:10} {stage.tokens / 1e6:,.1f} M tokens, {epochs}, {duration}")
    return "\n".join(lines)
