"""Subcommand `plan`: what a configuration will cost on this machine."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from nanoeuler.backend import DEVICES
from nanoeuler.cli.parser import Subparsers
from nanoeuler.errors import UserError
from nanoeuler.log import counted, format_seconds, size

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.config.settings import Training
    from nanoeuler.planning.plan import Config, Plan


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="what a configuration will cost on this machine",
        description="Print what a run downloads and needs of disk, memory and time, and fail with "
        "the remedy when this machine won't do.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "file", nargs="?", metavar="FILE", help="the configuration, such as config/small.yaml"
    )
    which.add_argument(
        "--config",
        metavar="C",
        help="the same as an option, or inline JSON with the whole resolved configuration",
    )
    parser.add_argument(
        "--name", help="the configuration's file, for the advice when --config is inline"
    )
    parser.add_argument(
        "--stages",
        help="training stages about to run, separated by commas (default: all of the "
        "configuration's; empty: none)",
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="engine to probe (default: the configuration's)"
    )
    parser.add_flag(
        "--unless-short",
        "don't time steps of a run that takes minutes on any machine; the workflow sets this",
    )
    parser.add_flag(
        "--slurm",
        "plan for the Slurm cluster that this machine submits to: say what its nodes lack, "
        "and time nothing here",
    )
    parser.add_number(
        "--gpus",
        "GPUs that share each step, here or elsewhere (default 1); more than 8 are on several "
        "hosts; 0 forces the CPU",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="also keep the plan in this JSON file, for the report; the workflow sets this",
    )
    parser.add_json()
    parser.finish(run_plan)


def run_plan(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from nanoeuler import log
    from nanoeuler.backend import make_backend
    from nanoeuler.config import load
    from nanoeuler.config.stages import BY_NAME
    from nanoeuler.planning import plan as planning
    from nanoeuler.planning import speed as planned_speed

    source = options.config if options.file is None else options.file
    config = load(source)
    inline = source.lstrip().startswith("{")
    name = options.name or ("config/config.yaml" if inline else source)
    stages = None if options.stages is None else list(filter(None, options.stages.split(",")))
    for stage in stages or []:
        if stage not in BY_NAME:
            raise UserError(
                f"--stages: there is no stage {stage}; name some of {', '.join(BY_NAME)}"
            )
    gpus = None if options.gpus is None else min(options.gpus, 1)  # a step is timed on one
    device = options.device or config["device"]

    def engine(settings: "Training") -> "Backend":
        found = make_backend(device, gpus, settings.precision, settings.residual_precision)
        if settings.reproducible == "chip":
            return found.for_any_processor("reproducible")
        return found

    backend = engine(planning.settings_of(config, "pretrain"))
    sharing = options.gpus or 0
    if options.slurm:
        from nanoeuler.workflow.machine import training_gpus

        sharing = options.gpus or config["slurm"]["nodes"] * training_gpus(config)
    several = sharing > 1
    elsewhere = backend.name != "cuda" and (several or (options.slurm and sharing > 0))
    plan = planning.make_plan(config, backend, stages, sharing if several else 1)
    if options.slurm or elsewhere:
        plan.memory = 0.0  # that of other machines
    here = options.slurm or not elsewhere  # the disk is that of the cluster
    found = planning.shortages(config, plan, name) if here else []
    short = options.unless_short and planning.is_short(config, plan)
    if elsewhere:
        planned_speed.assume_gpu(config, plan)
    elif plan.stages and not (found or short or options.slurm):  # memory suffices for a few steps
        planned_speed.probe(config, backend, plan)
        if backend.device:
            planned_speed.probe_tuning(config, engine, plan)
    if several and plan.tokens_per_second:
        planned_speed.share(config, plan)
    cluster_lines: list[str] = []
    described: dict[str, Any] = {"version": 1, "run": config["run"]}
    if options.slurm:
        from nanoeuler.workflow.cluster_plan import describe_cluster

        training = {stage: cost.seconds for stage, cost in plan.stages.items()}
        cluster_lines, described["slurm"], lacking = describe_cluster(config, training)
        found = lacking + found
    if plan.tokens_per_second and not elsewhere:
        found = planning.shortages(config, plan, name)
    described |= asdict(plan)
    if options.save and not found:
        planning.keep_plan(options.save, described)
    if options.json:
        print(json.dumps(described | {"problems": found}, indent=2, ensure_ascii=False), flush=True)
    else:
        lines = [describe(config, plan), *cluster_lines]
        print(log.printable("\n".join(lines)), flush=True)
    for sentence in found:
        log.line("error", sentence)
    return 1 if found else 0


def describe(config: "Config", plan: "Plan") -> str:
    """The plan as lines for a terminal."""
    wanted = [
        f"{name} {'(size not stated)' if amount is None else size(amount)}"
        for name, amount in plan.download.items()
        if amount != 0
    ]
    rate, speed = plan.tokens_per_second, ""
    if rate:
        if "pretrain" in plan.stages:
            stage = plan.stages["pretrain"]
            rate = stage.tokens / (stage.tokens / rate + stage.updates)
        speed = f", about {rate:,.0f} tokens/s"
    data = f"{size(plan.data_disk)} in {config['data_dir']}"
    if plan.index_disk:
        data += f" ({size(plan.index_disk)} of it the index)"
    results = f"{size(plan.results_disk)} in {config['results_dir']}"
    if plan.results_peak > 1.01 * plan.results_disk:
        results += f" ({size(plan.results_peak)} while it trains)"
    checkpoints = f"{size(plan.checkpoint)} a checkpoint"
    each = (
        f"{size(plan.gpu_memory)} of memory without activations; sends and receives "
        f"{size(plan.step_traffic)} a step"
    )
    text = (
        f"{size(plan.text_bytes)}, about {token_count(plan.text_tokens)}; "
        f"{size(plan.held_out_bytes)} held out"
    )
    facts = [
        ("download", ", ".join(wanted) or "nothing"),
        ("disk", f"{data}, {results}, {checkpoints}"),
        *([("memory", f"{size(plan.memory)} at least")] if plan.memory else []),
        *([("each GPU", each)] if plan.gpu_memory else []),
        ("text", text),
        *((name, describe_stage(config, plan, name)) for name in plan.stages),
        *(("energy", energy) for energy in describe_energy(config, plan)),
        *(("bits/byte", score) for score in describe_score(plan)),
        *(("assumed", assumption) for assumption in plan.assumptions),
    ]
    width = max(10, *(len(name) for name, _ in facts))
    first = f"run {config['run']}: {plan.parameters:,} parameters on {plan.engine}{speed}"
    return "\n".join([first, *(f"  {name:{width}} {fact}" for name, fact in facts)])


def describe_energy(config: "Config", plan: "Plan") -> list[str]:
    """That of training, where it is measured."""
    from nanoeuler.evaluation.formats import energy
    from nanoeuler.system.energy import sum_joules

    taken = sum_joules([stage.joules for stage in plan.stages.values()])
    if not taken:
        return []
    hours, grams = sum(taken.values()) / 3.6e6, config["energy"]["grams_per_kwh"]
    cost = "" if grams is None else f", {grams * hours:,.3g} g of CO₂"
    return [f"about {energy(taken)}, {hours:.3g} kWh{cost}"]


def describe_score(plan: "Plan") -> list[str]:
    from nanoeuler.corpus.sources.registry import ALL_TEXTS

    titles = {source.name: source.title for source in ALL_TEXTS}
    if plan.no_bits_per_byte:
        return [f"no estimate: {plan.no_bits_per_byte}"]
    found = ", ".join(
        f"{titles[source]} {bits.middle:.2f} ({bits.low:.2f} to {bits.high:.2f})"
        for source, bits in plan.bits_per_byte.items()
    )
    return [f"{found}, held out, after pretraining"] if found else []


def describe_stage(config: "Config", plan: "Plan", name: str) -> str:
    from nanoeuler.planning.plan import is_short

    stage = plan.stages[name]
    epochs = counted(float(f"{stage.epochs:.2g}"), "epoch")
    if stage.seconds is not None:
        duration = f"about {format_seconds(stage.seconds)}"
    else:
        duration = "minutes at most" if is_short(config, plan) else "not probed"
    return f"{token_count(stage.tokens)}, {epochs}, {counted(stage.steps, 'step')}, {duration}"


def token_count(amount: float) -> str:
    return f"{amount / 1e6:,.1f} M tokens" if amount >= 1e6 else f"{round(amount, -3):,.0f} tokens"
