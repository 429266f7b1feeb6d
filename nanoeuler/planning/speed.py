"""How fast a planned run will be: steps of the real model are timed on this machine, and shared out
among several GPUs, or rates are taken that were measured elsewhere."""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler import log
from nanoeuler.config.settings import Pretrain, Training
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import training_flops_per_token
from nanoeuler.planning.plan import Config, Plan, estimate_results, is_too_long, settings_of
from nanoeuler.system.energy import CPU, GPU, Meter
from nanoeuler.training.micro_batches import even_share, fitting_rows
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import OptimizerSettings, optimizer_of
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows, TextStream, dropout_seeds

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

PROBE_FLOPS = 4e11
"""Work of a timed step: seconds on a CPU."""
DEVICE_PROBE_FLOPS = 2e14
"""Work of a timed step on a GPU: half a second of an H200, and seconds of smaller ones."""
DEVICE_FIRST_STEPS = 3
"""Warm-up steps: learn fp8 scales, allocate, record."""
DEVICE_START = 2.0
"""Seconds that a GPU takes before the steps of a stage are recorded: machine code is loaded, and
all runs once as it is written."""
WRITING = 0.5e9
"""Bytes/s with which the last checkpoint and the model are written and hashed, 1.4 GB in 2.2 to 2.5
seconds on an H200's host. Earlier ones are written while training goes on."""
PROBE_SECONDS = 5.0
"""Time in which steps are timed. On a shared machine windows of 5 seconds differ by a tenth."""
TOLD_SECONDS = 1.0
"""A step that takes longer is told at once."""
ADAMW = AdamW()
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


def probe(config: Config, backend: "Backend", plan: Plan, seconds: float = PROBE_SECONDS) -> None:
    """Time steps of the real model for about `seconds`, and fill in the hours.

    On a CPU a step has 2,048 tokens at most, on a GPU those of a step of pretraining if they are
    affordable: fewer would leave parts of it idle. Where several will share a step, it has the
    share of one. The first steps do not count: they lay out buffers, may have to compile machine
    code, and are recorded. Another optimizer than AdamW is timed, too, unless the run would already
    take more than max_hours: what its updates take more counts for each step, however many tokens
    that has. The median step counts: who else is at work on this machine will be there during the
    run, too.
    """
    pretrain = Pretrain.read(config["pretrain"])
    tokens, step, watts = time_steps(config, backend, pretrain, ADAMW, seconds, plan.gpus)
    set_rate(config, plan, tokens / step)
    hopeless = plan.gpus == 1 and is_too_long(config, plan)
    if "pretrain" in plan.stages and pretrain.optimizer != "adamw" and not hopeless:
        optimizer = optimizer_of(pretrain)
        _, other, watts = time_steps(config, backend, pretrain, optimizer, seconds, plan.gpus)
        longer = max(0.0, other - step)
        plan.stages["pretrain"].updates = longer * pretrain.tokens / pretrain.batch_tokens
    for stage in plan.stages.values():
        stage.watts = watts
    set_rate(config, plan, tokens / step)


def probe_tuning(
    config: Config,
    engine: Callable[[Training], "Backend"],
    plan: Plan,
    seconds: float = PROBE_SECONDS,
) -> None:
    """Time the steps of tuning, too, which may have another precision or size than pretraining's.

    That is for a GPU, after `probe`: there both count. `engine` makes that of a stage. What it
    finds out about products of these sizes is kept for the run.
    """
    assert plan.tokens_per_second is not None
    watts = next((stage.watts for stage in plan.stages.values()), {})
    forms = {form_of_steps(settings_of(config, "pretrain")): (1.0, watts)}
    for name, stage in plan.stages.items():
        settings = settings_of(config, name)
        form = form_of_steps(settings)
        if form not in forms:
            backend = engine(settings)
            tokens, step, watts = time_steps(config, backend, settings, ADAMW, seconds, plan.gpus)
            forms[form] = tokens / step / plan.tokens_per_second, watts
        stage.pace, stage.watts = forms[form]
        stage.start = DEVICE_START
    set_rate(config, plan, plan.tokens_per_second)


def form_of_steps(settings: Training) -> tuple:
    """Everything that the speed of a GPU depends on."""
    formats = settings.precision, settings.residual_precision, settings.recompute
    return *formats, settings.batch_tokens, getattr(settings, "dropout", 0.0)


def time_steps(
    config: Config,
    backend: "Backend",
    settings: Training,
    optimizer: OptimizerSettings,
    seconds: float,
    gpus: int,
) -> tuple[int, float, dict[str, float]]:
    """Time steps like those of a stage, see `probe`: the tokens of each, the seconds of the median,
    and the watts while they ran, where these are measured."""
    model = ModelConfig.from_dict(config["model"])
    length, recompute = model.context, settings.recompute
    batch_tokens = settings.batch_tokens // gpus
    most, flops, first = 2048, PROBE_FLOPS, 1
    if backend.device:
        most, flops, first = batch_tokens, DEVICE_PROBE_FLOPS, DEVICE_FIRST_STEPS
    affordable = round(flops / training_flops_per_token(model, length) / length)
    rows = max(1, min(min(most, batch_tokens) // length, affordable))
    fitting = fitting_rows(model, backend, length, rows, recompute=recompute)
    at_once = even_share(rows, max(1, fitting))
    random = np.random.Generator(np.random.Philox(key=[0, 0]))
    tokens = random.integers(1, model.vocab_size, 8 * rows * length, np.int32)
    stream = TextStream(tokens, length, rows * length, model.mtp_weights, 0, True, 0, "probe")
    parameters, dropout = initial_parameters(model, 0), getattr(settings, "dropout", 0.0)
    given = model, backend, parameters, optimizer
    state = TrainingState(*given, recompute=recompute, dropout=dropout)

    def rows_of(number: int) -> StepRows:
        step = stream.rows(number)
        if dropout:
            step.seeds = dropout_seeds(0, "probe", number, step.ids.shape)
        return step.padded(at_once)

    name = type(optimizer).__name__
    log.line("plan", f"timing steps of {rows * length:,} tokens on {backend.name} ({name})")
    durations: list[float] = []
    device = backend.device
    meter = Meter(device.address if device else None, cpu=True)
    state.stage(rows_of(0))
    while len(durations) <= first or sum(durations[first:]) < seconds:
        began = time.monotonic()
        if len(durations) == first:
            counting, before = began, meter.joules()
        state.start(at_once, 0.0)
        state.stage(rows_of(len(durations) + 1))  # while a device computes
        state.finish()
        durations.append(time.monotonic() - began)
        if durations[-1] > TOLD_SECONDS:
            log.line("plan", f"step {len(durations)} took {log.format_seconds(durations[-1])}")
    taken, counted = meter.joules(), time.monotonic() - counting
    watts = {kind: (taken[kind] - before[kind]) / counted for kind in taken}
    return rows * length, statistics.median(durations[first:]), watts


def set_rate(config: Config, plan: Plan, tokens_per_second: float) -> None:
    """Fill in the time of each stage, and what depends on it."""
    model = ModelConfig.from_dict(config["model"])
    plan.tokens_per_second = tokens_per_second
    for stage in plan.stages.values():
        busy = stage.work(model) / (stage.pace * tokens_per_second) + stage.updates
        waiting = stage.start + (plan.checkpoint + 4 * plan.parameters) / WRITING  # at its end
        stage.seconds = busy + waiting
        stage.joules = {kind: watts * busy for kind, watts in stage.watts.items()}
    estimate_results(plan, config)


def assume_gpu(config: Config, plan: Plan) -> None:
    """Fill in the hours of one GPU, which is not here, from rates measured elsewhere."""
    model = ModelConfig.from_dict(config["model"])
    plan.engine = H200
    set_rate(config, plan, H200_FLOPS / training_flops_per_token(model, model.context))
    plan.assumptions.append(
        f"no GPU is here: one {H200} computes {H200_FLOPS / 1e12:.0f} TFLOP/s, as measured for "
        "base and large"
    )


def share(config: Config, plan: Plan) -> None:
    """Let the plan's GPUs share each step: from the rate of one to that of all.

    Each sends and receives (N - 1)/N of the gradients and of the weights in a step. The plan takes
    all of it as time that no work hides, the most that it can be. A GPU keeps the gradients in
    float32, the weights as products read them, and sums in bf16 where these are, and its share of
    the optimizer's tensors and of the float32 parameters, where these are not the weights.
    """
    assert plan.tokens_per_second is not None
    gpus = plan.gpus
    both_ways = 2 * (gpus - 1) / gpus * plan.parameters
    copied = config["pretrain"]["precision"] not in ("fp32", "tf32")
    rounded = config["pretrain"]["sums_precision"] == "bf16"
    weight, sums = (2 if copied else 4), (2 if rounded else 4)  # bytes
    kept_by_all = 4 + weight + (sums if rounded else 0)
    shared_out = 4 * (len(AdamW.tensor_powers) + copied)
    plan.step_traffic = (sums + weight) / 2 * both_ways
    plan.gpu_memory = (kept_by_all + shared_out / gpus) * plan.parameters
    hosts = -(-gpus // HOST_GPUS)
    several_hosts = hosts > 1
    for stage in plan.stages.values():
        devices = {GPU: gpus, CPU: hosts}
        stage.watts = {kind: devices[kind] * watts for kind, watts in stage.watts.items()}
    of_each = config["pretrain"]["batch_tokens"] / gpus
    alone = of_each / plan.tokens_per_second
    waiting = plan.step_traffic / NETWORK if several_hosts else WAITING * both_ways
    plan.engine = f"{gpus} × {plan.engine}"
    work = alone
    if "pretrain" in plan.stages:  # each GPU updates its part
        stage = plan.stages["pretrain"]
        stage.updates /= gpus
        work += stage.updates * config["pretrain"]["batch_tokens"] / stage.tokens
    set_rate(config, plan, gpus * of_each / (alone + waiting))
    if several_hosts:
        joined = f"hosts of {HOST_GPUS} with {NETWORK / 1e9:.0f} GB/s of network for each"
        known = "computed, not measured"
    else:
        joined, known = "one host with NVLink", "measured with two, computed for more"
    plan.assumptions.append(
        f"{gpus} GPUs of {joined}, {of_each:,.0f} tokens of each step on each: a step "
        f"takes {1000 * work:.1f} ms of work and {1000 * waiting:.1f} ms of waiting, "
        f"{work / (work + waiting):.1%} of {gpus} times one; {known}"
    )
