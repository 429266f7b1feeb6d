"""Subcommands that train, one for each stage; and `fit`: how much of their records fits."""

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers
from nanoeuler.config.stages import BY_SECTION, RECORD_STAGES, Stage
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.training.distributed.group import Group


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="say how many records and pairs the context will hold, before any training",
        description="Say how many records of each stage fit into the context, and fail when that "
        "is less than its minimum_fit_share.",
    )
    sections = " and ".join(stage.section for stage in RECORD_STAGES.values())
    parser.add_config(f"model.context and the sections {sections}")
    parser.add_path("--tokenizer", "FILE", "tokenizer.json")
    for kind in RECORD_STAGES:
        parser.add_optional_path(f"--{kind}", "MANIFEST", f"manifest.json of the {kind}")
    parser.add_path("--output", "FILE", "JSON file for the counts")
    parser.finish(run_fit)

    for stage in BY_SECTION.values():
        add_stage(subparsers, stage)


def add_stage(subparsers: Subparsers, stage: Stage) -> None:
    parser = subparsers.add_parser(
        stage.section,
        help=stage.help,
        description=f"{stage.help.capitalize()}; resumes where it stopped.",
    )
    if stage.records:
        own = stage.records.kind
        parser.add_path(f"--{own}", "MANIFEST", f"manifest.json of the {stage.records.noun}")
        for kind in RECORD_STAGES:
            if kind != own:
                meaning = f"manifest.json of {kind} whose held-out prompts are not to be learned"
                parser.add_optional_path(f"--{kind}", "MANIFEST", meaning)
    else:
        parser.add_path("--tokens", "MANIFEST", "manifest.json of the token shards")
    if stage.parents:
        meaning = f"model to start from (default: {stage.section}.init_from"
        meaning += ")" if stage.needs_parent else "; without either the weights are random)"
        parser.add_optional_path("--parent", "DIR", meaning)
    parser.add_config(f"the sections seed, model and {stage.section}")
    parser.add_path("--tokenizer", "FILE", "tokenizer.json")
    parser.add_path("--output", "DIR", f"folder of the stage, such as results/demo/{stage.name}")
    parser.add_device()
    parser.add_shared_gpus()
    parser.add_ranks()
    parser.add_optional_path(
        "--candidate",
        "FILE",
        "compute with the ops that this file defines instead of the specification's (slow; for "
        "docs/lessons)",
    )
    parser.finish(partial(run_stage, stage), resumes=True)


def run_fit(options: argparse.Namespace) -> None:
    from nanoeuler.config import load
    from nanoeuler.storage.files import write_json
    from nanoeuler.training.fit import check_fit

    counts = check_fit(load(options.config), options.tokenizer, records_in(options))
    write_json(options.output, counts)


def records_in(options: argparse.Namespace) -> dict[str, Path]:
    """The manifests of records that were given, by their kinds."""
    given = {kind: getattr(options, kind, None) for kind in RECORD_STAGES}
    return {kind: manifest for kind, manifest in given.items() if manifest}


def explaining(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Says what a learner's own function did wrong, where a file of such was given."""
    if not options.candidate:
        return nullcontext()
    from nanoeuler.lessons.candidate import explained

    return explained(options.candidate)


def run_stage(stage: Stage, options: argparse.Namespace) -> int:
    """Train a stage, on the engine of `--device` with the number formats of its settings.

    A stop by a signal ends with the status that shells expect.
    """
    from nanoeuler.config import load
    from nanoeuler.storage.folders import require_ours
    from nanoeuler.training.distributed.ranks import connected
    from nanoeuler.training.loop import train
    from nanoeuler.training.stages import module_of
    from nanoeuler.training.stages.inputs import Inputs
    from nanoeuler.training.stopping import Stopped

    config = load(options.config)
    settings = stage.settings.read(config[stage.section])
    parent = None
    if stage.parents:
        parent = options.parent or (Path(settings.init_from) if settings.init_from else None)
    if stage.needs_parent and parent is None:
        raise UserError(
            f"{stage.section} starts from a tuned model; give its folder with --parent, or set "
            f"{stage.section}.init_from"
        )
    records = records_in(options)
    data = records.pop(stage.records.kind) if stage.records else options.tokens
    inputs = Inputs(config, settings, data, options.tokenizer, options.output, parent, records)
    require_ours(options.output / "model")
    try:
        with group_of(options, options.output) as group:
            backend = candidate_backend(options, group.size) or engine_of(
                options, group, settings.precision, settings.residual_precision
            )
            if settings.reproducible == "chip":
                backend = backend.for_any_processor(f"{stage.section}.reproducible")
            with explaining(options):
                job = module_of(stage).job(inputs, backend, connected(group, backend))
                train(job, config.get("checkpoint_mirror"))
        return 0
    except Stopped as stopped:
        how = "" if options.log else "; run the same command again to go on"  # else the workflow's
        log.line("stopped", f"the state is saved{how}")
        return 128 + stopped.signal_number


def rank_count(options: argparse.Namespace) -> int:
    """Processes that share the work: one for each of `--gpus`, or those of `--ranks`."""
    from nanoeuler.backend import gpu_count
    from nanoeuler.training.distributed.slurm_tasks import task

    gpus = options.gpus
    if started := task():
        if options.ranks > 1 or gpus not in (None, 0, 1):
            raise UserError(
                f"srun has started {started.size} ranks already; leave out --ranks and --gpus"
            )
        return started.size
    if gpus in (None, 0, 1):
        return options.ranks
    if options.device not in ("auto", "cuda"):
        raise UserError(f"--gpus {gpus} and --device {options.device}: leave one of them out")
    if options.ranks > 1:
        raise UserError("--gpus starts a rank for each GPU; leave --ranks out")
    there = gpu_count()
    if gpus == "auto":
        return max(1, there)
    if gpus > there:
        found = log.counted(there, "GPU") if there else "no GPU"
        raise UserError(f"--gpus {gpus}: {found} can be used here; give as many, or 0 for the CPU")
    return gpus


@contextmanager
def group_of(options: argparse.Namespace, folder: Path) -> Iterator["Group"]:
    """The ranks that `--gpus` or `--ranks` ask for; `folder` is seen by the hosts of all."""
    from nanoeuler.backend import takes_gpu
    from nanoeuler.training.distributed.ranks import ranks

    if options.ranks > 1 and takes_gpu(options.device, options.gpus):
        raise UserError(f"--ranks {options.ranks}: ranks compute on a CPU; add --device cpu")
    with ranks(rank_count(options), folder) as group:
        yield group


def engine_of(
    options: argparse.Namespace, group: "Group", precision: str = "auto", residual: str = "auto"
) -> "Backend":
    """The engine of this rank. Raises `UserError` where ranks would share a GPU."""
    from nanoeuler.backend import make_backend

    gpus = options.gpus if group.size == 1 and options.gpus != "auto" else None
    backend = make_backend(options.device, gpus, precision, residual)
    if group.size > 1 and backend.device and backend.device.shared:
        raise UserError(
            f"--gpus {group.size}: another process of nanoeuler is at work on one of the "
            "GPUs; wait for it, or ask for fewer"
        )
    return backend


def candidate_backend(options: argparse.Namespace, ranks: int) -> "Backend | None":
    """The specification with the ops of `--candidate`; None where there is no such option.

    Raises `UserError` for a folder that holds another run, which it would replace.
    """
    if options.candidate is None:
        return None
    from nanoeuler.backend.reference import ReferenceBackend
    from nanoeuler.lessons.candidate import read_candidate
    from nanoeuler.storage.files import read_lines

    path, metrics = options.candidate, options.output / "metrics.jsonl"
    if ranks > 1 or options.device not in ("auto", "reference"):
        raise UserError(
            "--candidate computes with the specification's ops in one process; leave out --ranks, "
            "--gpus and --device"
        )
    if metrics.exists() and '"candidate"' not in next(read_lines(metrics), b"").decode():
        raise UserError(
            f"{options.output}: holds a run without --candidate, which this one would replace; "
            "give --output another folder"
        )
    candidate = read_candidate(path)
    engine = candidate.engine(ReferenceBackend)
    replaced = [name for name in candidate.functions if name in vars(engine)]
    if not replaced:
        raise UserError(
            f"{path}: defines no op of training; `nanoeuler check --op NAME` says how it is defined"
        )
    candidate.check_calls()
    log.line("candidate", f"{path} computes {', '.join(replaced)}")
    backend: Backend = engine()
    return backend
