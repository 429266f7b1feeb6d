"""The one loop of every training stage: steps, validation, checkpoints, resume, export.

Stages differ in their rows (a `Stream`), in what they validate and in where their first weights come from; all of that is
in a `Job`. A job that is stopped at any moment (Ctrl-C, SIGTERM, kill -9, a power cut) goes on from its newest checkpoint
and ends with the same bits as one that never stopped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log, provenance
from nanoeuler.backend.ops import Backend
from nanoeuler.errors import UserError
from nanoeuler.model.check import check_all
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.lock import FolderLock
from nanoeuler.training.metrics import Metrics
from nanoeuler.training.micro_batches import micro_batch_rows, smaller_batch, smaller_model
from nanoeuler.training.objectives import KnownWeights, Objective
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.state import TrainingState
from nanoeuler.training.stopping import Stopped, catch_signals
from nanoeuler.training.streams import Stream


@dataclass
class Job:
    """All that distinguishes one training stage from another."""

    stage: str
    output: Path  # results/<run>/<stage>
    config: ModelConfig
    section: dict[str, Any]  # the stage's section of the configuration
    fingerprint: str
    stream: Stream
    schedule: Schedule
    backend: Backend
    initial: Callable[[], np.ndarray]  # flat parameters to start from
    validate: Callable[[Transformer], dict[str, float]]
    score: Callable[[dict[str, float]], float]  # of a validation; lower is better
    tokenizer_path: Path
    template: str | None
    objective: Objective = field(default_factory=KnownWeights)
    tuned: bool = False  # starts from a trained model, which is measured before the first step
    facts: dict[str, Any] = field(default_factory=dict)  # for the first line of metrics.jsonl
    info: dict[str, Any] = field(default_factory=dict)  # for the model folder: licences, parent


def train(job: Job) -> Path:
    """Run `job` to its end, from its newest checkpoint if there is one; returns the model folder.

    Raises `Stopped` after a signal, `UserError` when the loss is not a number, the disk is full or another trainer is at work.
    """
    checkpoints = Checkpoints(job.output / "checkpoints")
    with FolderLock(checkpoints.folder):
        check_gradients()
        trainer = None
        try:
            trainer = Trainer(job, checkpoints)
            return trainer.run()
        except MemoryError as error:
            raise UserError(
                f"{job.stage}: {error}; {smaller_batch(job, trainer.micro_batch_rows) if trainer else smaller_model(job)}"
            ) from error


def check_gradients() -> None:
    """The quick gradient check: a model whose backward pass is wrong is not worth training."""
    worst = max(
        check_all(quick=True), key=lambda comparison: (not comparison.passed, comparison.error)
    )
    if not worst.passed:
        raise UserError(
            f"the gradient of {worst.tensor} ({worst.case}) is off by {worst.error:.2g}; run 'nanoeuler check' for the whole table"
        )
    log.line(
        "gradients", f"every op and tensor agrees with finite differences to {worst.error:.1e}"
    )


class Trainer:
    """One job at work."""

    def __init__(self, job: Job, checkpoints: Checkpoints):
        self.job, self.checkpoints = job, checkpoints
        self.metrics = Metrics(job.output / "metrics.jsonl")
        self.best: dict[str, Any] | None = None  # {"step", "score"} of the best validation so far
        self.validated: int | None = None  # step of the last validation
        self.worse = 0  # validations since the best
        self.finished = False
        self.seconds_before = 0.0  # spent by earlier attempts
        self.began = self.saved = time.monotonic()
        self.micro_batch_rows = micro_batch_rows(job)
        self.peak: float | None = job.backend.peak_flops
        o = job.section
        optimizer = AdamW(o["beta1"], o["beta2"], o["epsilon"], o["weight_decay"], o["clip_norm"])
        resumed = self.find_checkpoint()
        initial = job.initial() if resumed is None else np.zeros_like(job.initial())
        self.state = TrainingState(
            job.config,
            job.backend,
            initial,
            optimizer,
            recompute=o.get("recompute", False),
            objective=job.objective,
        )
        if resumed is None:
            self.metrics.restart(self.header())
        else:
            self.resume(resumed)

    # ---- start

    def find_checkpoint(self) -> dict[str, Any] | None:
        """State of the checkpoint to go on from, if there is one of this job."""
        job, checkpoints = self.job, self.checkpoints
        state = checkpoints.newest()
        if state is None:
            return None
        if state["fingerprint"] != job.fingerprint:
            kept = checkpoints.set_aside(state["fingerprint"])
            changed = changes(state["section"], job.section)
            what = ", ".join(changed) or "data, model, seed or parent"
            log.line(
                "fresh",
                f"changed since the last run: {what}; its checkpoints are kept in {kept}, training starts from the beginning",
            )
            if len(changed) == 1 and changed[0].split()[0] in ("tokens", "epochs"):
                log.line(
                    "fresh",
                    f"a cosine schedule is planned for its whole length; to go on from the old weights set {job.stage}.init_from: {kept}",
                )
            return None
        if (
            state["total_steps"] != job.schedule.total_steps
        ):  # WSD only: cosine has its length in the fingerprint
            limit = min(state["decay_start"], job.schedule.decay_start)
            state = checkpoints.newest(limit)
            if state is None:
                log.line(
                    "fresh",
                    f"no checkpoint from before the decay (step {limit}) is left; training starts from the beginning",
                )
                return None
            log.line(
                "longer",
                f"now {job.schedule.total_steps} steps: going on from step {state['step']}, before the earlier schedule's decay",
            )
        return state

    def resume(self, saved: dict[str, Any]) -> None:
        job = self.job
        self.checkpoints.restore(saved["step"], self.state)
        self.checkpoints.remove_after(saved["step"])
        self.best, self.validated, self.seconds_before = (
            saved["best"],
            saved["validated"],
            saved["seconds"],
        )
        self.worse = saved.get("worse", 0)
        if self.best is not None and self.best["step"] > saved["step"]:
            self.best = None
        self.finished = saved["finished"] and saved["total_steps"] == job.schedule.total_steps
        if job.section.get("micro_batch_rows", "auto") == "auto":
            self.micro_batch_rows = saved["micro_batch_rows"]  # as many as fit here may be others
        job.backend.algorithms.update(saved.get("algorithms", {}))
        self.metrics.cut_back(
            self.header(), saved["step"], validated=self.validated == saved["step"]
        )
        here = environment(job.backend)
        changed = [
            f"{key} {saved['environment'].get(key)} → {value}"
            for key, value in here.items()
            if saved["environment"].get(key) != value
        ]
        if saved["micro_batch_rows"] != self.micro_batch_rows:
            changed.append(
                f"micro_batch_rows {saved['micro_batch_rows']} → {self.micro_batch_rows}"
            )
        if changed and not self.finished:
            log.line(
                "notice",
                f"resuming with another {', '.join(changed)}: results agree within rounding, not to the bit",
            )
        if self.finished:
            log.line(
                "finished",
                f"{job.stage} was finished with these settings; exporting its model again",
            )
        else:
            log.line("resume", f"going on from step {saved['step']} of {job.schedule.total_steps}")

    def header(self) -> dict[str, Any]:
        job = self.job
        return {
            "stage": job.stage,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "config": {"model": job.config.to_dict(), job.stage: job.section},
            "parameters": parameter_count(job.config),
            "total_steps": job.schedule.total_steps,
            "tokens_per_step": job.stream.rows_per_step * job.stream.length,
            "micro_batch_rows": self.micro_batch_rows,
            "fingerprint": job.fingerprint,
            "provenance": provenance.collect(job.backend.device_name),
            **job.facts,
        }

    # ---- the loop

    def run(self) -> Path:
        job, state = self.job, self.state
        total, tokens_per_step = (
            job.schedule.total_steps,
            job.stream.rows_per_step * job.stream.length,
        )
        log.line(
            job.stage,
            parameters=parameter_count(job.config),
            steps=total,
            tokens_per_step=tokens_per_step,
            micro_batch_rows=self.micro_batch_rows,
            engine=job.backend.name,
        )
        since_log, steps_since_log, flops_since_log, flops = time.monotonic(), 0, 0.0, 0.0
        with (
            catch_signals() as received,
            log.Progress(
                job.stage, total * tokens_per_step, "tokens", done=state.step * tokens_per_step
            ) as progress,
        ):
            if (
                not self.finished
                and state.step
                and state.step % job.section["validate_every"] == 0
                and self.validated != state.step
            ):
                self.validate()  # the earlier attempt was stopped between checkpoint and validation
            if job.tuned and state.step == 0 and not self.finished:
                self.measure_start()
                since_log = time.monotonic()
            if state.step < total:
                flops = self.hand_over(state.step)
            while state.step < total and not self.finished and not self.stalled():
                learning_rate = job.schedule.rate(state.step)
                state.start(self.micro_batch_rows, learning_rate)
                flops_since_log += flops
                if state.step + 1 < total:
                    flops = self.hand_over(
                        state.step + 1
                    )  # made and copied while a device computes
                result = state.finish()
                if not (math.isfinite(result.loss) and math.isfinite(result.gradient_norm)):
                    last = self.checkpoints.steps()
                    kept = (
                        f"the checkpoint of step {last[-1]} is kept"
                        if last
                        else "no checkpoint was written yet"
                    )
                    raise UserError(
                        f"{job.stage}: the loss is not a number at step {state.step + 1} (gradient norm {result.gradient_norm:.3g}); {kept}; "
                        f"lower {job.stage}.learning_rate or raise {job.stage}.warmup_steps"
                    )
                steps_since_log += 1
                passed = max(time.monotonic() - since_log, 1e-9)
                rate = steps_since_log * tokens_per_step / passed
                mfu = flops_since_log / passed / self.peak if self.peak else None
                progress.update(
                    tokens_per_step,
                    step=f"{state.step}/{total}",
                    loss=result.first_head_loss,
                    mfu=f"{mfu:.0%}" if mfu else "n/a",
                )
                if state.step % job.section["log_every"] == 0 or state.step == total:
                    self.metrics.write(
                        step=state.step,
                        tokens=state.step * tokens_per_step,
                        seconds=self.seconds(),
                        loss=result.first_head_loss,
                        loss_all_heads=result.loss,
                        learning_rate=learning_rate,
                        gradient_norm=result.gradient_norm,
                        tokens_per_second=rate,
                        mfu=mfu,
                    )
                    since_log, steps_since_log, flops_since_log = time.monotonic(), 0, 0.0
                if received and state.step < total:
                    self.save()
                    raise Stopped(received[0])
                paused = time.monotonic()
                if state.step == job.schedule.decay_start < total and job.schedule.kind == "wsd":
                    self.save()  # where a longer run will go on from
                if state.step % job.section["validate_every"] == 0 or state.step == total:
                    if job.section["keep"] == "best" or self.due(0.1):
                        self.save()  # before the validation, which may take long
                    self.validate()
                elif self.due():
                    self.save()
                since_log += time.monotonic() - paused
        if not self.finished:
            if self.stalled() and state.step < total:
                log.line(
                    "stalled",
                    f"no better held-out measurement in {self.worse}, the best at step {self.best['step']}: {job.stage} ends here",
                )
            self.finished = True
            self.save()
            self.metrics.write(
                finished=True,
                step=state.step,
                tokens=state.step * tokens_per_step,
                seconds=self.seconds(),
            )
        return self.export()

    def hand_over(self, step: int) -> float:
        """Give the engine the rows of a step; returns the floating-point operations that they ask for, where the device's peak is known."""
        rows = self.job.stream.step(step)
        self.state.stage(rows)
        return rows.training_flops(self.job.config) if self.peak else 0.0

    def due(self, share: float = 1.0) -> bool:
        """Has `share` of the time between checkpoints gone by?"""
        return time.monotonic() - self.saved >= share * 60 * self.job.section["checkpoint_minutes"]

    def stalled(self) -> bool:
        """Were the last `patience` validations no better than the best before them?"""
        return (
            self.job.section.get("patience") is not None
            and self.worse >= self.job.section["patience"]
        )

    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    def validate(self) -> None:
        job, step = self.job, self.state.step
        values = job.validate(self.state.model)
        self.validated = step
        score = job.score(values)
        if self.best is None or score < self.best["score"]:
            self.best, self.worse = {"step": step, "score": score}, 0
        else:
            self.worse += 1
        tokens = step * job.stream.rows_per_step * job.stream.length
        self.metrics.write(step=step, tokens=tokens, seconds=self.seconds(), validation=values)
        log.line("validation", step=step, **values, best=self.best["score"])

    def measure_start(self) -> None:
        """Note what the model that this stage starts from is worth; it is not among those that the stage may hand on."""
        values = self.job.validate(self.state.model)
        self.metrics.write(step=0, tokens=0, seconds=self.seconds(), validation=values)
        log.line("before", **values)

    def save(self) -> None:
        job = self.job
        info = {
            "stage": job.stage,
            "fingerprint": job.fingerprint,
            "total_steps": job.schedule.total_steps,
            "decay_start": job.schedule.decay_start,
            "tokens": self.state.step * job.stream.rows_per_step * job.stream.length,
            "section": job.section,
            "micro_batch_rows": self.micro_batch_rows,
            "best": self.best,
            "validated": self.validated,
            "worse": self.worse,
            "finished": self.finished,
            "seconds": self.seconds(),
            "algorithms": job.backend.algorithms,
            "environment": environment(job.backend),
            "provenance": provenance.collect(job.backend.device_name),
        }
        self.checkpoints.save(self.state, info)
        kept = {self.best["step"]} if self.best and job.section["keep"] == "best" else set()
        if job.schedule.kind == "wsd":
            kept.add(job.schedule.decay_start)
        self.checkpoints.remove_all_but(kept)
        self.saved = time.monotonic()

    # ---- the end

    def export(self) -> Path:
        """Write the model folder: the final weights, or the best on held-out data where the stage keeps those."""
        job, state = self.job, self.state
        parameters, step = np.asarray(job.backend.to_host(state.parameters), np.float32), state.step
        if job.section["keep"] == "best" and self.best is not None and self.best["step"] != step:
            parameters, step = (
                self.checkpoints.read_parameters(self.best["step"], job.config),
                self.best["step"],
            )
        tokens = step * job.stream.rows_per_step * job.stream.length
        info = {
            "step": step,
            "tokens": tokens,
            "fingerprint": job.fingerprint,
            "provenance": provenance.collect(job.backend.device_name),
            **job.info,
        }
        folder = job.output / "model"
        save_model(
            folder,
            SavedModel(job.config, parameters, job.tokenizer_path, job.stage, job.template, info),
        )
        log.line("model", str(folder), step=step)
        return folder


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The keys whose values differ, as "key old → new"."""
    return [
        f"{key} {before.get(key)} → {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def environment(backend: Backend) -> dict[str, Any]:
    """What has to be the same for the same bits."""
    return backend.environment() | {"numpy": np.__version__}
