"""The proof of a run: steps of a stage are trained again, and give the numbers that it wrote.

metrics.jsonl holds losses, gradient norms and measurements with all their bits, and each depends on
every weight and row before it. So equal numbers show that this data, these settings and this code
made the run, up to the model whose hash is published with it.
"""

import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from nanoeuler import log
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import Stage, stages_of
from nanoeuler.errors import UserError, brief
from nanoeuler.evaluation.report.gather import read_metrics
from nanoeuler.model.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from nanoeuler.model.files import (
    CONFIG,
    MOST_CONFIG,
    WEIGHTS,
    check_hashes,
    load_model,
    read_description,
)
from nanoeuler.model.weights_file import read_tensors
from nanoeuler.storage.files import read_json, sha256_file
from nanoeuler.system import provenance
from nanoeuler.tracing.runs import configuration_in
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.job import Job
from nanoeuler.training.loop import write_model
from nanoeuler.training.resuming import Skipped, changes
from nanoeuler.training.stages import module_of
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.worker import Worker, environment

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.training.distributed.group import Group

Json = dict[str, Any]
COMPARED = "loss", "loss_all_heads", "gradient_norm"
WRITTEN = {"loss", "validation"}
"""Keys of the lines of metrics.jsonl with numbers that are compared."""
NEEDED = {"fingerprint", "total_steps", "ranks", "micro_batch_rows"}
"""Keys of its first line."""


@dataclass
class Verified:
    """What was compared."""

    stage: str
    first: int  # the step whose state the comparison began with
    last: int  # the last step that was trained again
    seed: bool  # began with the seed, and not with a checkpoint
    values: int = 0  # numbers of metrics.jsonl that are equal
    model: str | None = None  # SHA-256 of the weights that the stage handed on, if they are equal
    adapter: str | None = None  # that of its adapters, if it has some and they are equal
    differs: str | None = None  # what is not
    elsewhere: list[str] = field(default_factory=list)  # what is another machine or version here
    by_ranks: bool = False  # its bits depend on the number of ranks, and on the micro-batches


@dataclass(frozen=True)
class Made:
    """A stage of a run, as it was made."""

    run: Path
    config: Mapping[str, Any]
    stage: Stage
    header: Json
    lines: Mapping[int, list[Json]]  # of metrics.jsonl, by steps

    @property
    def folder(self) -> Path:
        return self.run / self.stage.name

    def require_numbers(self, first: int, last: int | None) -> int:
        """The last step to train again. Raises `UserError` where the run has no such steps, or has
        written no number of them, since nothing would be compared."""
        total, asked = max(self.lines), f"--steps {first}:{'' if last is None else last}"
        end = total if last is None else last
        if not first < end <= total:
            raise UserError(
                f"{asked}: {self.folder} has the steps 1 to {total}; give a first and a last of "
                f"them, such as 0:{min(20, total)}"
            )
        measured = [
            step
            for step, lines in self.lines.items()
            if any(WRITTEN & line.keys() for line in lines)
        ]
        if not any(first < step <= end for step in measured):
            later = min((step for step in measured if step > end), default=total)
            raise UserError(
                f"{asked}: {self.folder} wrote no number of these steps, which could be compared; "
                f"take more of them, such as {first}:{later}"
            )
        return end

    def job(self, output: Path, backend: "Backend", group: "Group") -> Job:
        """The stage, to be trained again. Raises `UserError` where it would be another."""
        settings = self.stage.settings.read(self.config[self.stage.section])
        # as the run computed, whatever its configuration now says; for the rows see `begin`
        used = self.header.get("config", {}).get(self.stage.section, {})
        again = used.get("recompute", settings.recompute) is True
        settings = replace(settings, micro_batch_rows="auto", recompute=again)
        parent = Paths(self.config).parent(self.stage).get("parent") or settings.init_from
        inputs = Inputs.of_run(
            self.config,
            self.stage,
            settings,
            output=output,
            parent=Path(parent) if self.stage.parents and parent else None,
        )
        job = module_of(self.stage).job(inputs, backend, group)
        if self.header["fingerprint"] != job.fingerprint:
            raise UserError(
                f"{self.folder}: was trained with other data, settings, seed or parent than are "
                "here now (its fingerprint is another); bring back what it was made of"
            )
        steps, before = job.schedule.total_steps, self.header["total_steps"]
        if steps != before:  # of a WSD schedule, whose length the fingerprint leaves out
            raise UserError(
                f"{self.folder}: was trained for {before:,} steps, and its configuration now asks "
                f"for {steps:,}; bring back what it was made of"
            )
        if not job.lanes and self.header["ranks"] != group.size:
            count = self.header["ranks"]
            raise UserError(
                f"{self.folder}: was trained by {log.counted(count, 'rank')}, whose sums have an "
                f"order of their own; give --ranks {count}, or --gpus {count} on GPUs"
            )
        return job


def made(run: Path, name: str | None) -> Made:
    """A stage of the run in a folder, by default its first. Raises `UserError` where there is
    none."""
    run = run.absolute()
    config = configuration_in(run)
    stages = {stage.name: stage for stage in stages_of(config)}
    if name is not None and name not in stages:
        raise UserError(f"{run}: has no stage {brief(name)}; it has {', '.join(stages)}")
    stage = stages[name] if name else next(iter(stages.values()))
    header, *entries = [*read_metrics(run / stage.name / "metrics.jsonl")] or [{}]
    by_step: dict[int, list[Json]] = {}
    for line in entries:
        if "step" in line:
            by_step.setdefault(line["step"], []).append(line)
    if not (by_step and header.keys() >= NEEDED):
        raise UserError(f"{run / stage.name}: metrics.jsonl tells of no training; run it first")
    config = {**config, "run": run.name, "results_dir": str(run.parent)}
    return Made(run, config, stage, header, by_step)


def verify(
    stage: Made, first: int, last: int | None, backend: "Backend", group: "Group"
) -> Verified | None:
    """Train steps first + 1 to `last` (None: the stage's end) again, and compare. A rank other than
    0 takes part, and returns None.

    Begins with the newest checkpoint up to `first`, or with the seed where there is none.
    """
    end = stage.require_numbers(first, last)
    with tempfile.TemporaryDirectory() as output:
        job = stage.job(Path(output), backend, group)
        checkpoints = Checkpoints(stage.folder / "checkpoints")
        worker = Worker(job, checkpoints)
        if group.rank:
            job.prepare()
            worker.heed()
            return None
        group.admit()
        job.prepare()
        return Verifier(stage, job, worker, checkpoints).compare(first, end)


class Verifier:
    """A comparison at work."""

    def __init__(self, stage: Made, job: Job, worker: Worker, checkpoints: Checkpoints):
        self.stage, self.job, self.worker, self.checkpoints = stage, job, worker, checkpoints
        self.skipped = Skipped(stage.header.get("skipped", []))
        self.model_step: int | None = None
        finished = any("finished" in line for line in stage.lines[max(stage.lines)])
        if finished and (model := stage.folder / "model" / CONFIG).is_file():  # else an earlier one
            self.model_step = read_description(model.parent)[1]["info"]["step"]

    def compare(self, first: int, last: int) -> Verified:
        start = self.begin(first)
        by_ranks = not self.job.lanes
        found = Verified(self.stage.stage.name, start, last, start == 0, by_ranks=by_ranks)
        found.elsewhere = elsewhere(self.stage.header, self.checkpoints.newest(), self.job)
        trained = None
        with log.Progress("verify", last - start, "steps") as progress:
            for step in range(start, last):
                for wanted in self.after(step):
                    what, before, now = wanted
                    if not same(before, now):
                        found.differs = f"step {step + 1}: {what} {now!r}, in the run {before!r}"
                        found.last = step + 1
                        return found
                    found.values += 1
                progress.update(1, step=f"{step + 1}/{last}")
                if step + 1 == self.model_step:
                    trained = np.array(self.worker.parameters(), np.float32)
        if trained is not None:
            self.compare_model(found, trained)
        return found

    def begin(self, first: int) -> int:
        """Have the state of a step up to `first`; returns that step."""
        newest = self.checkpoints.newest() or {"algorithms": {}}
        rows = min(self.stage.header["micro_batch_rows"], self.job.rows_per_rank)
        self.worker.resume(newest | {"micro_batch_rows": rows})
        saved = self.checkpoints.newest(first) if first else None
        if saved is None or saved["fingerprint"] != self.job.fingerprint:
            self.worker.begin()
            return 0
        self.worker.restore(saved)
        return int(saved["step"])

    def after(self, step: int) -> Iterable[tuple[str, Any, Any]]:
        """Make the update behind `step`: names of what the run wrote of it, its value, and that of
        now."""
        job, worker = self.job, self.worker
        while worker.state.config != job.model_after(step + 1):
            worker.grow()
        worker.stage(self.skipped.rows_of(step))
        worker.step(job.schedule.rate(step))
        result = worker.finish()
        for line in self.stage.lines.get(step + 1, ()):
            if "loss" in line:
                values = result.first_head_loss, result.loss, result.gradient_norm
                for name, value in zip(COMPARED, values, strict=True):
                    yield name, line.get(name), value
            elif "validation" in line:
                measured = worker.validate()
                for name, value in line["validation"].items():
                    yield f"held-out {name}", value, measured.get(name)

    def compare_model(self, found: Verified, trained: np.ndarray) -> None:
        """Write what the stage has written of `trained`, and compare the weights."""
        made, job = self.stage.folder, self.job
        write_model(job, trained, {})
        if job.config.lora:
            name = other_adapters(made / job.adapter_folder.name, job.adapter_folder)
            if name is not None:
                found.differs = f"step {self.model_step}: other adapters than {name}"
                return
            found.adapter = sha256_file(made / job.adapter_folder.name / ADAPTER_WEIGHTS)
        folder = made / job.model_folder.name
        before, now = (load_model(each).parameters for each in (folder, job.model_folder))
        if same_bits(before, now):
            found.model = check_hashes(folder, read_description(folder)[1])
        else:
            found.differs = f"step {self.model_step}: other weights than {folder / WEIGHTS}"


def other_adapters(before: Path, now: Path) -> Path | None:
    """The file of a folder of adapters that says something else than that of now.

    Where the base lies may differ, since runs can be moved; its hash may not.
    """
    keys = [read_json(folder / ADAPTER_CONFIG, MOST_CONFIG) for folder in (before, now)]
    placeless = [
        {**each, "base_model_name_or_path": None} if isinstance(each, dict) else each
        for each in keys
    ]
    if placeless[0] != placeless[1]:
        return before / ADAPTER_CONFIG
    wanted = load_file(now / ADAPTER_WEIGHTS)
    found = {name: np.empty_like(values) for name, values in wanted.items()}
    read_tensors(before / ADAPTER_WEIGHTS, found)
    if all(same_bits(found[name], values) for name, values in wanted.items()):
        return None
    return before / ADAPTER_WEIGHTS


def same_bits(before: np.ndarray, now: np.ndarray) -> bool:
    """For arrays of float32."""
    return np.array_equal(before.view(np.int32), now.view(np.int32))


def same(before: Any, now: Any) -> bool:
    """To the bit, where JSON writes every NaN alike."""
    return before == now or all(
        isinstance(each, float) and math.isnan(each) for each in (before, now)
    )


def elsewhere(header: Mapping[str, Any], saved: Mapping[str, Any] | None, job: Job) -> list[str]:
    """What is another machine, version or code here than it was: it may explain a difference.

    The engine's own, such as its threads, are known where a checkpoint, `saved`, is left.
    """
    kinds = ["nanoeuler", "commit", "python"]
    if job.settings.reproducible != "chip":
        kinds += ["cpu", "device"]
    before, now = header.get("provenance") or {}, provenance.collect(job.backend.device_name)
    own = [
        {key: each.get(key) for key in kinds} | (each.get("packages") or {})
        for each in (before, now)
    ]
    if saved:
        own[0] = saved["environment"] | own[0]
        own[1] = environment(job.backend) | own[1]
    engines = (header.get("check") or {}).get("engine"), job.backend.name
    for each, engine in zip(own, engines, strict=True):
        each["engine"] = engine
    no_cause = {"processor"} | ({"threads"} if job.lanes else set())  # the first is the cpu
    return changes(*({key: each[key] for key in each.keys() - no_cause} for each in own))
