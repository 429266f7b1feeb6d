"""The cost of a run before it costs anything: downloads, disk, memory, tokens, epochs, hours.

Sizes come from the sources file and the model's tensor table. Hours come from a few steps of the
real model on this machine (speed.py). What is on disk already is not counted again. All
figures are estimates and are printed as such.
"""

import itertools
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.browser import MOST_PARAMETERS
from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Pretrain, Rl, Training, Tuning
from nanoeuler.config.stages import BY_NAME, STAGES, Stage
from nanoeuler.evaluation import shapes
from nanoeuler.log import size
from nanoeuler.model.adapters import adapted
from nanoeuler.model.buffers import scoring_pass_bytes, training_pass_bytes
from nanoeuler.model.config import ModelConfig, coarsened
from nanoeuler.model.files import scheme_in
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.frozen import frozen_bytes
from nanoeuler.model.likelihood import BATCH_TOKENS
from nanoeuler.model.spec import parameter_count, trained_table, training_flops_per_token
from nanoeuler.planning import scaling_law
from nanoeuler.planning.data import (
    TOKENIZER_ENTRY_BYTES,
    checkpoints_kept,
    downloads,
    estimate_text,
    records_tokens,
)
from nanoeuler.planning.scaling_law import Estimate
from nanoeuler.storage.files import read_json, write_json
from nanoeuler.storage.shape import check_shape
from nanoeuler.system.machine import memory
from nanoeuler.training.lanes import lanes_of
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import checkpoint_bytes, state_bytes
from nanoeuler.training.schedule import Amount
from nanoeuler.training.scoring import ROWS_AT_ONCE

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

Config = Mapping[str, Any]

PLAYABLE_BYTES = 2
"""Bytes in the report for each parameter of a small model."""
IMPORTS_BYTES = 170_000_000
"""Memory of a training process beside its arrays."""
RUN_FILES, STAGE_FILES = 370_000, 90_000
"""Bytes of the report, logs and checks of a run, and of the evaluation and logs of a stage."""
BEST_IS_EARLIER = 0.5
"""How often the best model of a stage that keeps it is not the last: about every second time."""
FORWARD_SHARE = 1 / 3
"""Work of reading a token, as a share of training on it."""
USUAL_FLOPS = 1e11
"""Operations/s of training that was not timed: those of two cores. They tell how many checkpoints
will be there, which is seldom another number at half or twice the speed."""
SHORT_FLOPS = 5e13
"""Training that ends within an hour on any core of the last ten years (14 GFLOP/s)."""


@dataclass
class StageCost:
    """A training stage's work: `tokens` processed in `seconds` (None: not probed)."""

    tokens: float
    epochs: float
    steps: int
    seconds: float | None = None
    depth: float = 1.0  # operations of a token, as a share of those in the whole model
    scored: float = 0.0  # tokens of forward passes alone: measurements, and those of a parent
    updates: float = 0.0  # seconds that those of another optimizer take beyond AdamW's
    start: float = 0.0  # seconds of a GPU's start
    pace: float = 1.0  # its tokens/s, as a share of those of pretraining
    watts: dict[str, float] = field(default_factory=dict)  # where they are measured
    joules: dict[str, float] = field(default_factory=dict)

    def work(self, model: ModelConfig) -> float:
        """Its work, in tokens of training the whole `model`; scoring reads with one head."""
        one_head = replace(model, mtp_heads=1, mtp_weights=())
        flops = [training_flops_per_token(form, model.context) for form in (one_head, model)]
        return self.depth * (self.tokens + FORWARD_SHARE * flops[0] / flops[1] * self.scored)


@dataclass
class Plan:
    """Estimates for one configuration on this machine. Bytes, tokens and seconds."""

    parameters: int
    engine: str  # or the name of its GPU
    gpus: int = 1  # that share each step
    download: dict[str, float | None] = field(default_factory=dict)  # None: size not stated
    data_disk: float = 0.0
    index_disk: float = 0.0  # a part of that
    results_disk: float = 0.0  # when the run is finished
    results_peak: float = 0.0  # the most before
    checkpoint: float = 0.0
    memory: float = 0.0
    gpu_memory: float = 0.0  # of each, where several share a step
    step_traffic: float = 0.0  # bytes that each of them sends, and receives, in a step
    text_bytes: float = 0.0  # for training
    held_out_bytes: float = 0.0
    text_tokens: float = 0.0
    sources: dict[str, float] = field(default_factory=dict)  # bytes of the text for training
    bits_per_byte: dict[str, Estimate] = field(default_factory=dict)  # held-out text of a source
    no_bits_per_byte: str | None = None  # why there are none
    stages: dict[str, StageCost] = field(default_factory=dict)
    tokens_per_second: float | None = None
    assumptions: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds or 0.0 for stage in self.stages.values())


def make_plan(
    config: Config, backend: "Backend", stages: list[str] | None = None, gpus: int = 1
) -> Plan:
    """Estimate everything but the speed, which `planned_speed.probe` measures once memory is known
    to suffice.

    `stages` are the training stages that will run (default: all of the configuration's); `gpus`
    share each of their steps.
    """
    paths, model = Paths(config), ModelConfig.from_dict(config["model"])
    text = vars(estimate_text(config, paths))
    engine = backend.device.name if backend.device else backend.name
    plan = Plan(parameter_count(model), engine, gpus, **text)
    if "sample" not in config:
        plan.download = downloads(config)
    costs = stage_costs(plan, config)
    plan.stages = {
        stage: replace(costs[stage]) for stage in (paths.stages if stages is None else stages)
    }
    plan.checkpoint = checkpoint_bytes(plan.parameters, AdamW)
    estimate_results(plan, config)
    if "pretrain" in plan.stages:
        try:
            epochs = plan.stages["pretrain"].epochs
            plan.bits_per_byte = scaling_law.estimate(config, plan.sources, epochs)
        except scaling_law.NoEstimate as reason:
            plan.no_bits_per_byte = str(reason)
    if plan.stages:
        plan.memory = IMPORTS_BYTES + max(
            training_memory(config, BY_NAME[stage], backend) for stage in plan.stages
        )
    return plan


def trained_form(config: Config, stage: Stage) -> ModelConfig:
    """The model as a stage trains it, maybe with adapters."""
    settings, model = stage.settings.read(config[stage.section]), config["model"]
    lora = settings.lora if isinstance(settings, Tuning) else None
    return adapted(ModelConfig.from_dict(model), lora)


def training_memory(config: Config, stage: Stage, backend: "Backend") -> float:
    """Bytes of the arrays of training in a stage, which is also measured there.

    Rows are computed one at a time: by each thread on a CPU, with gradients of its own, or of each
    lane where sums have one order.
    """
    model = trained_form(config, stage)
    trained = FlatBuffer.trained_elements(model)
    _, shares = backend.runtime.slices(FlatBuffer.elements(model))
    scheme = scheme_in(config[stage.section]["init_from"])
    settings, row = config[stage.section], row_of(config, stage)
    copies = shares
    if settings.get("reproducible"):
        of_step = max(1, (settings["batch_tokens"] or ROWS_AT_ONCE * row) // row)
        copies = lanes_of(of_step, row, backend.runtime.least_lane_tokens)
    whole = state_bytes(model, AdamW) + (copies - 1) * 4 * trained
    whole += frozen_bytes(model, backend, scheme)
    whole += checkpoint_bytes(trained, AdamW)  # in memory, too, while it is being written
    whole += 4 * trained  # the best model's, until it is written
    length = max(model.context, row)
    measured = min(BATCH_TOKENS, config["pretrain"]["validation_tokens"])
    rows = max(1, measured // length) if length == model.context else ROWS_AT_ONCE
    every = rows * length * model.mtp_heads * model.vocab_size
    logits = min(backend.scored_logits_at_once, every)
    scoring = scoring_pass_bytes(model, backend, rows, length) + 4 * logits
    return whole + shares * training_pass_bytes(model, backend, 1, length) + scoring


def estimate_results(plan: Plan, config: Config) -> None:
    """Fill in the disk of the results."""
    model = ModelConfig.from_dict(config["model"])
    usual_rate = USUAL_FLOPS / training_flops_per_token(model, model.context)
    finished = peak = 0.0
    for name, stage in plan.stages.items():
        settings = settings_of(config, name)
        seconds = stage.seconds or stage.depth * stage.tokens / usual_rate
        kept = checkpoints_kept(settings, max(1, stage.steps), seconds)
        weights = 4 * plan.parameters
        form = trained_form(config, BY_NAME[name])
        trained = sum(tensor.size for tensor in trained_table(form))
        checkpoint, best = checkpoint_bytes(trained, AdamW), 4 * trained
        peak_now = finished + kept.most * checkpoint + kept.best * best
        if config.get("checkpoint_mirror"):  # one that is being copied stays until then
            peak_now += checkpoint + best
        peak = max(peak, peak_now)
        model_folder = weights + TOKENIZER_ENTRY_BYTES * model.vocab_size
        earlier = BEST_IS_EARLIER * best * (settings.keep == "best")
        adapters = 4 * trained * (form.lora is not None)
        finished += kept.last * checkpoint + earlier + model_folder + adapters + STAGE_FILES
    if plan.parameters <= MOST_PARAMETERS:
        finished += PLAYABLE_BYTES * plan.parameters
    plan.results_disk = finished + RUN_FILES * bool(plan.stages)
    plan.results_peak = max(peak, plan.results_disk)


def settings_of(config: Config, stage: str) -> Training:
    """The settings of a training stage, with numbers where they follow from its data."""
    settings = BY_NAME[stage].settings.read(config[BY_NAME[stage].section])
    if isinstance(settings, Tuning):
        return amount_of(config, BY_NAME[stage], settings).put_into(settings)
    return settings


def amount_of(config: Config, stage: Stage, settings: Tuning) -> Amount:
    return Amount.of(settings, tokens_of_epoch(config, stage, settings), row_of(config, stage))


def tokens_of_epoch(config: Config, stage: Stage, settings: Tuning) -> float:
    """About the tokens that a stage trains on in an epoch: its records, or for `rl` the problems as
    often as each has replies."""
    assert stage.records is not None
    whole = records_tokens(config, stage.records.kind)
    return (1 - settings.validation_share) * replies_of(settings) * whole


def replies_of(settings: Tuning) -> int:
    """Replies to a record that a stage samples and trains on; 1 where the record has its own."""
    return settings.group if isinstance(settings, Rl) else 1


def row_of(config: Config, stage: Stage) -> int:
    """Tokens of a row of a stage."""
    context = config[stage.section].get("context") or config["model"]["context"]
    return stage.contexts_in_row * context


def stage_costs(plan: Plan, config: Config) -> dict[str, StageCost]:
    """The work of each training stage."""

    def cost(stage: Stage) -> StageCost:
        settings = stage.settings.read(config[stage.section])
        if isinstance(settings, Pretrain):
            return pretraining_cost(plan, config, settings)
        assert isinstance(settings, Tuning)
        return tuning_cost(config, stage, settings)

    return {stage.name: cost(stage) for stage in STAGES}


def pretraining_cost(plan: Plan, config: Config, settings: Pretrain) -> StageCost:
    held_out = plan.text_tokens * plan.held_out_bytes / max(1.0, plan.text_bytes)
    sources = sum(amount > 0 for amount in plan.sources.values())
    measured = min(held_out, sources * settings.validation_tokens)
    steps = math.ceil(settings.tokens / settings.batch_tokens)
    return StageCost(
        settings.tokens,
        settings.tokens / max(1.0, plan.text_tokens),
        steps,
        depth=mean_depth(ModelConfig.from_dict(config["model"]), settings),
        scored=math.ceil(steps / settings.validate_every) * measured,
    )


def tuning_cost(config: Config, stage: Stage, settings: Tuning) -> StageCost:
    tokens, row = tokens_of_epoch(config, stage, settings), row_of(config, stage)
    amount = amount_of(config, stage, settings)
    held_out = tokens * settings.validation_share / (1 - settings.validation_share)
    held_out /= replies_of(settings)
    steps = amount.steps(tokens, row)
    times = 1 + math.ceil(steps / amount.validate_every)  # one before it trains
    by_parent = (tokens + held_out) * stage.scores_with_parent
    return StageCost(
        amount.epochs * tokens, amount.epochs, steps, scored=times * held_out + by_parent
    )


def mean_depth(model: ModelConfig, pretrain: Pretrain) -> float:
    """The mean operations of a token while the model grows, as a share of those in `model`."""

    def flops(times: int) -> float:
        return training_flops_per_token(coarsened(model, times), model.context)

    steps = math.ceil(pretrain.tokens / pretrain.batch_tokens)
    borders = [0, *sorted(pretrain.grow_at), steps]
    parts = list(itertools.pairwise(borders))
    work = sum((b - a) * flops(len(parts) - 1 - index) for index, (a, b) in enumerate(parts))
    return work / (steps * flops(0))


def is_short(config: Config, plan: Plan) -> bool:
    """Whether training takes minutes on any machine, so that timing steps would not pay."""
    model, limit = ModelConfig.from_dict(config["model"]), config.get("max_hours")
    tokens = sum(stage.tokens for stage in plan.stages.values())
    flops = tokens * training_flops_per_token(model, model.context)
    return flops < SHORT_FLOPS and (limit is None or limit >= 1)


def is_too_long(config: Config, plan: Plan) -> bool:
    """Whether training would take more than max_hours; with the rates that are filled in."""
    limit = config.get("max_hours")
    return limit is not None and plan.seconds / 3600 > limit


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
    there = memory()
    instead = f"snakemake --configfile {smaller(config_name)}"
    if plan.memory > there:
        found.append(
            f"training needs about {size(plan.memory)} of memory and this machine has "
            f"{size(there)}: take a smaller model, for example: {instead}"
        )
    limit, hours = config.get("max_hours"), plan.seconds / 3600
    if limit is not None and is_too_long(config, plan):
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
        for key in ("data_disk", "results_disk", "results_peak", "memory")
    }
    merged = {key: {**earlier.get(key, {}), **plan[key]} for key in ("stages", "bits_per_byte")}
    write_json(path, {**plan, **amounts, **merged})


def disk_needs(config: Config, plan: Plan) -> dict[int, tuple[Path, float]]:
    """For each disk (its device number) a folder on it and the bytes that the run needs there."""
    needs: dict[int, tuple[Path, float]] = {}
    for name, amount in (("data_dir", plan.data_disk), ("results_dir", plan.results_peak)):
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
