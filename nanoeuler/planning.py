"""The cost of a run before it costs anything: downloads, disk, memory, tokens, epochs, hours.

Sizes come from the sources file and the model's tensor table. Hours come from a few steps of the
real model on this machine. What is on disk already is not counted again. All figures are estimates
and are printed as such.
"""

import itertools
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Dpo, Pretrain, Sft
from nanoeuler.corpus.split import bytes_of_ends, least_held_out
from nanoeuler.errors import UserError
from nanoeuler.evaluation import shapes
from nanoeuler.files import read_json, write_json
from nanoeuler.log import counted, format_seconds
from nanoeuler.model.buffers import training_pass_bytes
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.depth import coarsened
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count, training_flops_per_token
from nanoeuler.shape import check_shape
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import checkpoint_bytes, state_bytes
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

Config = Mapping[str, Any]

BOOK_BYTES = 700_000
"""Mean size of the classics in config/sources.yaml."""
CLEAN_SHARE = 0.97
"""Share of a book that is left without its header, credits and licence."""
FETCHED_SHARE = 0.65
"""Compressed bytes that are downloaded for a byte of web text, filters and margin included."""
SHARD_BYTES = 2_000_000_000
"""A web shard whose size the sources file does not say."""
RECORDS_BYTES = 22_000_000
"""A file of instructions whose size the sources file does not say: the size of Alpaca's."""
PAIRS_BYTES = 20_000_000
"""A file of preference pairs whose size the sources file does not say: that of AlpacaFarm's."""
SAMPLE_TEXT_BYTES = 2_000_000
SAMPLE_DATA_SET_BYTES = 100_000
RECORD_OVERHEAD = 1.6
"""Tokens of instruction rows per token of their text, with templates and padding."""
KEPT_CHECKPOINTS = 4
"""The newest two, the best, and the one that is being written."""
IMPORTS_BYTES = 150 * 2**20
PROBE_FLOPS = 4e11
"""Work of one probed micro-batch: seconds on a CPU, and on anything faster enough to time."""
H200 = "NVIDIA H200"
H200_FLOPS = 0.46 * 989e12
"""Operations/s of training on one H200, the slowest measured for `base` and `large`: 46 % of its
peak in bf16 (docs/benchmarks/cuda.md and docs/runs)."""
WAITING = 1e-11
"""Seconds per parameter and step for which two GPUs of a host wait for each other. Measured: `base`
(107 M) with 64 rows of 512 tokens takes 47.97 ms on one H200, and 48.96 ms on two with as many rows
each (docs/scaling.md)."""
HOST_GPUS = 8
"""GPUs of a host where a plan has more: the others are on further hosts."""
NETWORK = 50e9
"""Bytes/s that each GPU is assumed to send, and to receive, between hosts: 400 Gbit/s."""
SHORT_FLOPS = 5e13
"""Training that ends within an hour on any core of the last ten years (14 GFLOP/s)."""


@dataclass
class StageCost:
    """A training stage's work: `tokens` processed in `seconds` (None: not probed)."""

    tokens: float
    epochs: float
    seconds: float | None = None
    depth: float = 1.0  # operations of a token, as a share of those in the whole model


@dataclass
class Plan:
    """Estimates for one configuration on this machine. Bytes, tokens and seconds."""

    parameters: int
    engine: str
    download: dict[str, float | None] = field(default_factory=dict)  # None: size not stated
    data_disk: float = 0.0
    results_disk: float = 0.0
    checkpoint: float = 0.0
    memory: float = 0.0
    gpu_memory: float = 0.0  # of each, where several share a step
    step_traffic: float = 0.0  # bytes that each of them sends, and receives, in a step
    text_bytes: float = 0.0  # for training
    held_out_bytes: float = 0.0
    text_tokens: float = 0.0
    stages: dict[str, StageCost] = field(default_factory=dict)
    tokens_per_second: float | None = None
    assumptions: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds or 0.0 for stage in self.stages.values())


def make_plan(config: Config, backend: "Backend", stages: list[str] | None = None) -> Plan:
    """Estimate everything but the speed, which `probe` measures once memory is known to suffice.

    `stages` are the training stages that will run (default: all of the configuration's).
    """
    paths, model = Paths(config), ModelConfig.from_dict(config["model"])
    plan = Plan(parameter_count(model), backend.name)
    if "sample" not in config:
        plan.download = downloads(config, paths)
    estimate_text(plan, config, paths)
    costs = stage_costs(plan, config)
    plan.stages = {
        stage: replace(costs[stage]) for stage in (paths.stages if stages is None else stages)
    }
    plan.checkpoint = checkpoint_bytes(plan.parameters, AdamW)
    stage_bytes = KEPT_CHECKPOINTS * plan.checkpoint + 4 * plan.parameters
    plan.results_disk = stage_bytes * len(plan.stages)
    if plan.stages:
        row = training_pass_bytes(model, backend, 1, longest_row(config, model))
        written = plan.checkpoint  # while it is being written, it lies in memory as well
        plan.memory = IMPORTS_BYTES + state_bytes(model, AdamW) + row + written
    return plan


def downloads(config: Config, paths: Paths) -> dict[str, float | None]:
    """Bytes to download by kind; None where the sources file does not state a size."""
    sources, evaluate = config["sources"], config["evaluate"]
    books = [book for book in paths.books if not Path(paths.raw_book(book)).exists()]
    pages = missing_shards(paths)
    found: dict[str, float | None] = {
        "books": len(books) * BOOK_BYTES,
        "web pages": sum(shard_text(config, shard) for shard in pages) * FETCHED_SHARE,
    }
    if config["sft"]["enabled"] and not Path(paths.instructions, "manifest.json").exists():
        found["instructions"] = source_bytes(sources, "instructions", config["sft"]["instructions"])
    tasks = [
        source_bytes(sources, "tasks", entry["name"])
        for entry, manifest in zip(evaluate["tasks"], paths.tasks, strict=True)
        if not Path(manifest).exists()
    ]
    stated = [amount for amount in tasks if amount]
    found["tasks"] = sum(stated) if len(stated) == len(tasks) else None
    if any(not Path(file).exists() for file in paths.questions):
        found["questions"] = source_bytes(sources, "questions", evaluate["questions"])
    if config["dpo"]["enabled"] and not Path(paths.preferences, "manifest.json").exists():
        found["preferences"] = source_bytes(sources, "preferences", config["dpo"]["preferences"])
    return found


def missing_shards(paths: Paths) -> list[int]:
    return [shard for shard in paths.web_shards if not Path(paths.web_shard(shard)).exists()]


def shard_text(config: Config, shard: int) -> float:
    """Bytes of text that are taken from a web shard."""
    size = config["sources"]["fineweb"]["shards"][shard].get("bytes") or SHARD_BYTES
    return min(config["corpus"]["fineweb"]["max_bytes_per_shard"], size / FETCHED_SHARE)


def source_bytes(sources: Mapping[str, Any], kind: str, name: str) -> float | None:
    """The size of a data set, if the sources file states it."""
    return sources.get(kind, {}).get(name, {}).get("bytes")


def estimate_text(plan: Plan, config: Config, paths: Paths) -> None:
    """Fill in the bytes and tokens of the corpus, and the disk that its preparation needs."""
    if Path(paths.tokens).exists():
        splits = read_json(paths.tokens)["splits"]
        plan.text_bytes = sum(source["bytes"] for source in splits["train"].values())
        plan.held_out_bytes = sum(source["bytes"] for source in splits["validation"].values())
        plan.text_tokens = sum(source["tokens"] for source in splits["train"].values())
        return
    vocab_size, share = config["tokenizer"]["vocab_size"], config["corpus"]["validation_share"]
    if "sample" in config:
        text = raw_bytes = float(SAMPLE_TEXT_BYTES)
        plan.held_out_bytes = share * text
    else:
        books = len(paths.books) * BOOK_BYTES * CLEAN_SHARE
        pages = sum(shard_text(config, shard) for shard in paths.web_shards)
        own = [Path(file).stat().st_size for file in paths.own_text]
        text = books + pages + sum(own)
        plan.held_out_bytes = (
            books * whole_share(len(paths.books), share) + pages * share + held_out(own, share)
        )
        missing = [book for book in paths.books if not Path(paths.raw_book(book)).exists()]
        raw_pages = sum(shard_text(config, shard) for shard in missing_shards(paths))
        raw_bytes = len(missing) * BOOK_BYTES * 2 + raw_pages
    plan.text_bytes = text - plan.held_out_bytes
    plan.text_tokens = plan.text_bytes / bytes_per_token(vocab_size)
    token_bytes = text / bytes_per_token(vocab_size) * (2 if vocab_size <= 65536 else 4)
    plan.data_disk = raw_bytes + text + token_bytes


def whole_share(documents: int, share: float) -> float:
    """About the share of a source that is held out as whole documents."""
    return max(share, least_held_out(documents) / max(1, documents))


def held_out(own_files: Sequence[int], share: float) -> float:
    """About how many bytes are held out of one's own files of these sizes."""
    ends = float(bytes_of_ends(np.array(own_files, float), share).sum())
    if len(own_files) < 2:
        return ends
    return min(ends, whole_share(len(own_files), share) * sum(own_files))


def stage_costs(plan: Plan, config: Config) -> dict[str, StageCost]:
    """The work of each training stage."""
    pretrain, sft, dpo = (
        Pretrain.read(config["pretrain"]),
        Sft.read(config["sft"]),
        Dpo.read(config["dpo"]),
    )
    sources, sample = config["sources"], "sample" in config

    def tuning(epochs: float, kind: str, name: str, default: int) -> StageCost:
        found = source_bytes(sources, kind, name)
        size = float(found or (SAMPLE_DATA_SET_BYTES if sample else default))
        tokens = epochs * size / bytes_per_token(config["tokenizer"]["vocab_size"])
        return StageCost(tokens * RECORD_OVERHEAD, epochs)

    tuned = tuning(sft.epochs, "instructions", sft.instructions, RECORDS_BYTES)
    return {
        "pretrain": StageCost(
            pretrain.tokens,
            pretrain.tokens / max(1.0, plan.text_tokens),
            depth=mean_depth(ModelConfig.from_dict(config["model"]), pretrain),
        ),
        "sft": tuned,
        "sft_scratch": tuned,
        "dpo": tuning(dpo.epochs, "preferences", dpo.preferences, PAIRS_BYTES),
    }


def later_tokens(folder: Path) -> float:
    """About the tokens of the training stages that follow that of `folder` (results/RUN/STAGE).

    It is 0 where no workflow has kept its configuration beside the stage.
    """
    try:
        config = read_json(folder.parent / "pipeline.json")["config"]
        paths = Paths(config)
        behind = paths.stages[paths.stages.index(folder.name) + 1 :]
        costs = stage_costs(Plan(0, ""), config)
        missing = [stage for stage in behind if not Path(paths.model(stage)["weights"]).exists()]
        return sum(costs[stage].tokens for stage in missing)
    except (UserError, OSError, LookupError, TypeError, ValueError):
        return 0.0


def mean_depth(model: ModelConfig, pretrain: Pretrain) -> float:
    """The mean operations of a token while the model grows, as a share of those in `model`."""

    def flops(times: int) -> float:
        return training_flops_per_token(coarsened(model, times), model.context)

    steps = math.ceil(pretrain.tokens / pretrain.batch_tokens)
    borders = [0, *sorted(pretrain.grow_at), steps]
    parts = list(itertools.pairwise(borders))
    work = sum((b - a) * flops(len(parts) - 1 - index) for index, (a, b) in enumerate(parts))
    return work / (steps * flops(0))


def longest_row(config: Config, model: ModelConfig) -> int:
    """Tokens of the longest row of any stage. A row of dpo holds two contexts."""
    sft, dpo = Sft.read(config["sft"]), Dpo.read(config["dpo"])
    return max(
        model.context,
        (sft.context or 0) * sft.enabled,
        2 * (dpo.context or 0) * dpo.enabled,
    )


def bytes_per_token(vocab_size: int) -> float:
    """Bytes of English text per token of a byte-level BPE.

    Measured: 1.9 at 512 entries, 3.3 at 4,096, 3.7 at 8,192; about linear in the logarithm.
    """
    return float(np.clip(1.9 + 0.47 * np.log2(vocab_size / 512), 1.0, 4.6))


def probe(config: Config, backend: "Backend", plan: Plan, seconds: float = 4.0) -> None:
    """Time a few steps of the real model for about `seconds`, and fill in the hours.

    A step has 2,048 tokens at most. The first one does not count: it lays out buffers, and may have
    to compile machine code.
    """
    model = ModelConfig.from_dict(config["model"])
    length = model.context
    rows = max(1, min(2048, config["pretrain"]["batch_tokens"]) // length)
    affordable = round(PROBE_FLOPS / training_flops_per_token(model, length) / length)
    rows = max(1, min(rows, affordable))
    random = np.random.Generator(np.random.Philox(key=[0, 0]))
    tokens = random.integers(1, model.vocab_size, 64 * length, np.int32)
    stream = TextStream(tokens, length, rows * length, model.mtp_weights, 0, True, 0, "probe")
    optimizer = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    state = TrainingState(model, backend, initial_parameters(model, 0), optimizer)
    durations: list[float] = []
    while len(durations) < 2 or (sum(durations[1:]) < seconds and len(durations) < 8):
        began = time.monotonic()
        state.train_step(stream.step(len(durations)), -(-rows // len(state.replicas)), 0.0)
        backend.finish()
        durations.append(time.monotonic() - began)
    fastest = min(durations[1:])  # others may be at work on this machine
    set_rate(plan, rows * length / fastest)


def set_rate(plan: Plan, tokens_per_second: float) -> None:
    plan.tokens_per_second = tokens_per_second
    for stage in plan.stages.values():
        stage.seconds = stage.depth * stage.tokens / tokens_per_second


def assume_gpu(config: Config, plan: Plan) -> None:
    """Fill in the hours of one GPU, which is not here, from rates measured elsewhere."""
    model = ModelConfig.from_dict(config["model"])
    plan.engine = H200
    set_rate(plan, H200_FLOPS / training_flops_per_token(model, model.context))
    plan.assumptions.append(
        f"no GPU is here: one {H200} computes {H200_FLOPS / 1e12:.0f} TFLOP/s, as measured for "
        "base and large"
    )


def share(config: Config, plan: Plan, gpus: int) -> None:
    """Let `gpus` share each step: from the rate of one to that of all.

    Each sends and receives 2·(N - 1)/N of the parameters in a step, in float32, which takes some
    time that no work hides. It keeps the parameters, the gradients, and its share of the
    optimizer's tensors.
    """
    assert plan.tokens_per_second is not None
    both_ways = 2 * (gpus - 1) / gpus * plan.parameters
    plan.step_traffic = 4 * both_ways
    plan.gpu_memory = 4 * (2 + len(AdamW.tensor_powers) / gpus) * plan.parameters
    several_hosts = gpus > HOST_GPUS
    of_each = config["pretrain"]["batch_tokens"] / gpus
    alone = of_each / plan.tokens_per_second
    waiting = plan.step_traffic / NETWORK if several_hosts else WAITING * both_ways
    together = alone + waiting
    plan.engine = f"{gpus} × {plan.engine}"
    set_rate(plan, gpus * of_each / together)
    if several_hosts:
        joined = f"hosts of {HOST_GPUS} with {NETWORK / 1e9:.0f} GB/s of network for each"
        known = "computed, not measured"
    else:
        joined, known = "one host with NVLink", "measured with two, computed for more"
    plan.assumptions.append(
        f"{gpus} GPUs of {joined}, {of_each:,.0f} tokens of each step on each: a step "
        f"takes {1000 * alone:.1f} ms of work and {1000 * waiting:.1f} ms of waiting, "
        f"{alone / together:.1%} of {gpus} times one; {known}"
    )


def is_short(config: Config, plan: Plan) -> bool:
    """Whether training takes minutes on any machine, so that timing steps would not pay."""
    model, limit = ModelConfig.from_dict(config["model"]), config.get("max_hours")
    tokens = sum(stage.tokens for stage in plan.stages.values())
    flops = tokens * training_flops_per_token(model, model.context)
    return flops < SHORT_FLOPS and (limit is None or limit >= 1)


def shortages(config: Config, plan: Plan, config_name: str) -> list[str]:
    """Why the run should not start here, one sentence each, with what to do instead."""
    found = []
    for folder, amount in disk_needs(config, plan).values():
        free = shutil.disk_usage(folder).free
        if amount > free:
            found.append(
                f"the disk of {folder} has {size(free)} free and the run needs about "
                f"{size(amount)}: make room, or put data_dir or results_dir elsewhere"
            )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    instead = f"snakemake --configfile {smaller(config_name)}"
    if plan.memory > memory:
        found.append(
            f"training needs about {size(plan.memory)} of memory and this machine has "
            f"{size(memory)}: take a smaller model, for example: {instead}"
        )
    limit, hours = config.get("max_hours"), plan.seconds / 3600
    if limit is not None and hours > limit:
        found.append(
            f"training would take about {hours:,.0f} hours on this machine ({plan.engine}, "
            f"{plan.tokens_per_second:,.0f} tokens/s), more than max_hours = {limit:g}: "
            f"use a machine with a GPU, or a smaller run: {instead}; or accept it: "
            f"snakemake --configfile {config_name} --config max_hours={int(hours) + 1}"
        )
    return found


def keep_plan(path: str | Path, plan: Mapping[str, Any]) -> None:
    """Write the plan of a run that starts, for the report.

    A run that is started again plans what is left of it. So of the same model, the stages planned
    before and the larger amounts stay. Raises `UserError` when the earlier plan is damaged.
    """
    earlier = {}
    if Path(path).exists():
        earlier = read_json(path)
        check_shape(path, earlier, shapes.Plan, "delete it", "a plan")
    if earlier.get("parameters") != plan["parameters"]:
        earlier = {}
    amounts = {
        key: max(earlier.get(key, 0.0), plan[key])
        for key in ("data_disk", "results_disk", "memory")
    }
    stages = {**earlier.get("stages", {}), **plan["stages"]}
    write_json(path, {**plan, **amounts, "stages": stages})


def disk_needs(config: Config, plan: Plan) -> dict[int, tuple[Path, float]]:
    """For each disk (its device number) a folder on it and the bytes that the run needs there."""
    needs: dict[int, tuple[Path, float]] = {}
    for name, amount in (("data_dir", plan.data_disk), ("results_dir", plan.results_disk)):
        folder = Path(config[name]).absolute()
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        device = os.stat(existing).st_dev
        first, before = needs.get(device, (existing, 0.0))
        needs[device] = first, before + amount
    return needs


def smaller(config_name: str) -> str:
    """The next smaller of the configurations that come with the project."""
    order = ["config.yaml", "small.yaml", "medium.yaml", "base.yaml", "large.yaml"]
    path = Path(config_name)
    if path.name not in order:
        return "config/small.yaml"
    return str(path.parent / order[max(0, order.index(path.name) - 1)])


def size(amount: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB" if amount < 1000 else f"{amount / 1000:.1f} TB"


def token_count(amount: float) -> str:
    return f"{amount / 1e6:,.1f} M tokens" if amount >= 1e6 else f"{round(amount, -3):,.0f} tokens"


def describe(config: Config, plan: Plan) -> str:
    """The plan as lines for a terminal."""
    wanted = [
        f"{name} {'(size not stated)' if amount is None else size(amount)}"
        for name, amount in plan.download.items()
        if amount != 0
    ]
    rate = plan.tokens_per_second
    speed = f", about {rate:,.0f} tokens/s" if rate else ""
    data = f"{size(plan.data_disk)} in {config['data_dir']}"
    results = f"at most {size(plan.results_disk)} in {config['results_dir']}"
    checkpoints = f"{size(plan.checkpoint)} a checkpoint"
    each = (
        f"{size(plan.gpu_memory)} of memory without activations; sends and receives "
        f"{size(plan.step_traffic)} a step"
    )
    text = (
        f"{size(plan.text_bytes)}, about {token_count(plan.text_tokens)}; "
        f"{size(plan.held_out_bytes)} held out"
    )
    return "\n".join(
        [
            f"run {config['run']}: {plan.parameters:,} parameters on {plan.engine}{speed}",
            f"  download   {', '.join(wanted) or 'nothing'}",
            f"  disk       {data}, {results}, {checkpoints}",
            *([f"  memory     {size(plan.memory)} at least"] if plan.memory else []),
            *([f"  each GPU   {each}"] if plan.gpu_memory else []),
            f"  text       {text}",
            *(describe_stage(config, plan, name) for name in plan.stages),
            *(f"  assumed    {assumption}" for assumption in plan.assumptions),
        ]
    )


def describe_stage(config: Config, plan: Plan, name: str) -> str:
    stage = plan.stages[name]
    epochs = counted(float(f"{stage.epochs:.2g}"), "epoch")
    if stage.seconds is not None:
        duration = f"about {format_seconds(stage.seconds)}"
    else:
        duration = "minutes" if is_short(config, plan) else "not probed"
    return f"  {name:10} {token_count(stage.tokens)}, {epochs}, {duration}"
