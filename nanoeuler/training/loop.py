"""The loop of every training stage: steps, validation, checkpoints, resuming, export.

The stages differ in their `Job`: the rows they train on, what they validate, and the weights they
start from. A job that is stopped at any moment (Ctrl-C, SIGTERM, kill -9, a power cut) resumes from
its newest checkpoint and ends with the same bits as one that never stopped. Rows whose loss is not
a number are left out, see `resuming.py`.
"""

import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.errors import UserError
from nanoeuler.model.adapters import merge, merged, save_adapters
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.spec import parameter_count, trained_table
from nanoeuler.system import provenance
from nanoeuler.system.energy import ENERGIES
from nanoeuler.training.checkpoint import EARLY, REWIND_STEPS, Checkpoints, Saver
from nanoeuler.training.job import Job
from nanoeuler.training.lock import FolderLock
from nanoeuler.training.measurements import Measurements, Metrics, Throughput, moved
from nanoeuler.training.micro_batches import smaller_batch, smaller_model
from nanoeuler.training.mirror import Mirror
from nanoeuler.training.optimizer.optimizer import optimizer_of
from nanoeuler.training.resuming import Skipped, changes, find_checkpoint
from nanoeuler.training.start_check import Form, check_before_training
from nanoeuler.training.state import StepResult, TrainingState
from nanoeuler.training.stopping import Stopped, catch_signals
from nanoeuler.training.worker import Worker, environment

COSTS = "seconds", *ENERGIES
"""What a stage takes, as a checkpoint and the lines of metrics.jsonl have it, where it is known."""
SHOWN = 3
"""How many of the notes on a step's rows the progress line has, those that come first."""


def train(job: Job, mirror: str | None = None) -> Path:
    """Run `job` to its end, from its newest checkpoint if there is one; returns the model folder.

    `mirror` is an address to which checkpoints are copied. A rank other than 0 takes its share of
    the steps, as rank 0 tells it.

    Raises `Stopped` after a signal. Raises `UserError` when the loss keeps being no number, when
    the disk or the memory is full, and when another trainer is at work in the folder.
    """
    checkpoints = Checkpoints(job.output / "checkpoints")
    worker = Worker(job, checkpoints)
    if job.group.rank:
        try:
            job.prepare()
            worker.heed()
        except MemoryError as error:
            advice = smaller_batch(job, worker.micro_batch_rows)
            raise UserError(f"{job.stage}: {error}; {advice}") from error
        return job.model_folder
    with FolderLock(checkpoints.folder) as lock:
        checkpoints.sweep()
        trainer = None
        try:
            settings, scheme = job.settings, job.base.scheme if job.base else None
            computed = job.backend, job.config, settings.recompute, optimizer_of(settings)
            form = Form(*computed, scheme)
            job.facts["check"] = check_before_training(form, job.stage)
            if job.backend.candidate:
                job.facts["candidate"] = job.info["candidate"] = job.backend.candidate
            job.group.admit()
            job.prepare()
            with Mirror(mirror, job, checkpoints).at_work() if mirror else nullcontext() as copies:
                trainer = Trainer(job, checkpoints, worker, copies)
                with trainer.saver.thread:
                    return trainer.run()
        except MemoryError as error:
            rows = worker.micro_batch_rows if trainer else None
            advice = smaller_model(job) if rows is None else smaller_batch(job, rows)
            raise UserError(f"{job.stage}: {error}; {advice}") from error
        except Exception as error:
            if lock.holds():
                raise
            raise moved(job.output) from error


class Trainer:
    """A job at work."""

    def __init__(
        self, job: Job, checkpoints: Checkpoints, worker: Worker, mirror: Mirror | None = None
    ):
        self.job, self.checkpoints, self.worker = job, checkpoints, worker
        self.metrics = Metrics(job.output / "metrics.jsonl")
        self.measurements = Measurements()
        self.skipped = Skipped()
        written = mirror.take if mirror else None
        self.saver = Saver(checkpoints, job.settings, job.schedule, written)
        self.finished = False
        self.notes: dict[str, float] = {}  # of the rows that were handed over last
        self.before = dict.fromkeys(COSTS, 0.0)  # spent by earlier attempts
        self.energy: dict[str, str] = {}  # for the progress line
        self.worker.joules()
        self.require_alike()
        self.began = time.monotonic()
        peak = job.backend.peak_flops
        self.peak: float | None = peak * job.group.size if peak else None
        resumed = find_checkpoint(job, checkpoints, mirror)
        if resumed is None:
            self.worker.begin()
            self.checkpoints.require_place()
            self.metrics.restart(self.header())
        else:
            self.resume(resumed)

    @property
    def state(self) -> TrainingState:
        return self.worker.state

    # ---- start

    def require_alike(self) -> None:
        """Raise `UserError` where another rank has read other inputs, as when a file was changed
        just now, or computes otherwise."""
        size = self.job.group.size
        for rank, other in enumerate(self.worker.others(), 1):
            if changed := changes(self.worker.trains, other):
                raise UserError(
                    f"{self.job.stage}: rank {rank} of {size} has another {', '.join(changed)} "
                    "than rank 0; give all the same settings, data, code and processors, and run "
                    "again"
                )

    def resume(self, saved: dict[str, Any]) -> None:
        """Take over everything that the checkpoint `saved` holds."""
        job, total = self.job, self.job.schedule.total_steps
        self.skipped = Skipped(saved["skipped"], saved["rewinds"])
        self.before = {cost: saved[cost] for cost in COSTS if cost in saved}
        self.worker.resume(saved)
        self.restore(saved)
        ended = saved["step"] == total or self.stalled()  # "finished" alone could be a flipped bit
        self.finished = saved["finished"] and saved["total_steps"] == total and ended
        if self.finished:
            log.line(
                "finished",
                f"{job.stage} was finished with these settings; exporting its model again",
            )
        else:
            self.notice_changes(saved)
            log.line("resume", f"going on from step {saved['step']} of {job.schedule.total_steps}")

    def restore(self, saved: dict[str, Any]) -> None:
        """Go to the step of the checkpoint `saved`, and forget what came behind it."""
        step = saved["step"]
        self.worker.restore(saved)
        self.saver.step = step
        self.checkpoints.remove_after(step)
        keeps_best = self.job.settings.keep == "best"
        possible = self.checkpoints.steps() if keeps_best else range(step + 1)
        self.measurements = Measurements.restored(saved, possible)
        self.cut_metrics_back(step)

    def notice_changes(self, saved: dict[str, Any]) -> None:
        """Say which differences to the checkpoint's machine or batches may change last bits."""
        here = environment(self.job.backend)
        before = {key: saved["environment"].get(key, "unknown") for key in here}
        here |= {"micro_batch_rows": self.worker.micro_batch_rows, "ranks": self.job.group.size}
        before |= {"micro_batch_rows": saved["micro_batch_rows"], "ranks": saved["ranks"]}
        if self.job.lanes:  # whose sums depend on none of these
            for values in (before, here):
                for key in ("threads", "micro_batch_rows", "ranks"):
                    values.pop(key, None)
        here["recompute"] = self.job.settings.recompute
        before["recompute"] = saved["section"].get("recompute", False)
        changed = changes(before, here)
        if changed:
            log.line(
                "notice",
                f"resuming with another {', '.join(changed)}: "
                "results agree within rounding, not to the bit",
            )

    def header(self) -> dict[str, Any]:
        """The first line of metrics.jsonl."""
        job = self.job
        return {
            "stage": job.stage,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "config": {"model": job.config.to_dict(), job.stage: asdict(job.settings)},
            "parameters": parameter_count(job.config),
            "total_steps": job.schedule.total_steps,
            "tokens_per_step": job.tokens_per_step,
            "micro_batch_rows": self.worker.micro_batch_rows,
            "ranks": job.group.size,
            "fingerprint": job.fingerprint,
            "provenance": provenance.collect(job.backend.device_name),
            **({"skipped": self.skipped.ranges} if self.skipped.ranges else {}),
            **job.facts,
        }

    # ---- growth in depth

    def grow(self) -> None:
        """Refine the model.

        A shallower one is not handed on, so the best of its measurements counts no more.
        """
        self.worker.grow()
        step = self.state.step
        self.measurements.forget_best()
        config = self.state.config
        log.line("grow", "", step=step, layers=config.layers, step_size=config.step_size)

    # ---- the loop

    def run(self) -> Path:
        """Train from the present step to the last one; returns the model folder."""
        job, total = self.job, self.job.schedule.total_steps
        trained = trained_table(job.config) if job.config.lora else ()
        log.line(
            job.stage,
            "",
            parameters=parameter_count(job.config),
            **({"trained": sum(each.size for each in trained)} if trained else {}),
            steps=total,
            tokens_per_step=job.tokens_per_step,
            micro_batch_rows=self.worker.micro_batch_rows,
            engine=job.backend.name,
            ranks=job.group.size,
        )
        every, done = total * job.tokens_per_step, self.state.step * job.tokens_per_step
        with (
            catch_signals() as received,
            log.Progress(job.stage, every, "tokens", done=done) as progress,
        ):
            self.validate_before_training()
            throughput = Throughput(job.tokens_per_step, self.peak)
            flops: float | None = None  # of the rows that were handed over
            while self.state.step < total and not self.finished and not self.stalled():
                while self.state.config != job.model_after(self.state.step + 1):
                    with throughput.paused():
                        self.grow()
                        flops = None
                if flops is None:
                    flops = self.hand_over(self.state.step)
                learning_rate = job.schedule.rate(self.state.step)
                self.worker.step(learning_rate)
                throughput.add_step(flops)
                flops = None
                if job.stream.pure and self.state.step + 1 < total:  # while the device computes
                    flops = self.hand_over(self.state.step + 1)
                result = self.worker.finish()
                if not result.finite:
                    self.leave_out_rows(result)
                    progress.done = self.state.step * job.tokens_per_step
                    flops = None
                    continue
                speed, mfu = throughput.measure()
                progress.update(
                    job.tokens_per_step,
                    step=f"{self.state.step}/{total}",
                    loss=result.first_head_loss,
                    mfu=f"{mfu:.0%}" if mfu else "n/a",
                    **{key: f"{value:.3g}" for key, value in [*self.notes.items()][:SHOWN]},
                    **self.energy,
                )
                if self.state.step % job.settings.log_every == 0 or self.state.step == total:
                    self.record(result, learning_rate, speed, mfu)
                    throughput.restart()
                if received and self.state.step < total:
                    self.save()
                    self.saver.finish()
                    raise Stopped(received[0])
                with throughput.paused():
                    self.save_and_validate()
        if self.finished:  # with what it took, not what exporting it again takes
            self.write(finished=True, **self.before)
        else:
            self.finish()
        return self.export()

    def hand_over(self, step: int) -> float:
        """Give the rows of a step to the engine; returns the floating-point operations they need.

        Where the device's peak is unknown, the operations are not counted.
        """
        rows = self.worker.stage(self.skipped.rows_of(step))
        self.notes = rows.notes
        return rows.training_flops(self.state.config) if self.peak else 0.0

    def validate_before_training(self) -> None:
        """Make the measurement that belongs to the step at which training starts or resumes."""
        step = self.state.step
        if self.finished:
            return
        if step == 0:
            if self.job.tuned:  # what this stage starts from, which it can't hand on as its best
                values = self.worker.validate()
                self.write(validation=values)
                log.line("before", "", **values)
        elif self.is_validated(step) and self.measurements.last != step:
            self.validate()  # the last attempt was stopped between checkpoint and validation

    def save_and_validate(self) -> None:
        """Write a checkpoint and measure the model, as far as the present step asks for it."""
        self.saver.notice()
        step, schedule = self.state.step, self.job.schedule
        if step == schedule.decay_start < schedule.total_steps and schedule.kind == "wsd":
            self.save()  # a longer run will resume here
        if self.is_validated(step):
            if self.saver.due(EARLY):
                self.save()
            self.validate()
        elif self.saver.due():
            self.save()

    def is_validated(self, step: int) -> bool:
        """Whether the model is measured at this step: every so often, and at the end."""
        total = self.job.schedule.total_steps
        every = self.job.settings.validate_every
        assert every is not None  # of tuning, see schedule.py
        return step % every == 0 or step == total

    def stalled(self) -> bool:
        """Whether the last `patience` validations were no better than the best before them."""
        return self.job.patience is not None and self.measurements.worse >= self.job.patience

    def cut_metrics_back(self, step: int) -> None:
        """Leave out of metrics.jsonl what came behind `step`."""
        self.metrics.cut_back(self.header(), step, validated=self.measurements.last == step)

    # ---- losses that are no number

    def leave_out_rows(self, result: StepResult) -> None:
        """Go on without the rows that made the present step fail; see `resuming.py`.

        Raises `UserError` when that was done too often.
        """
        self.saver.finish()
        failed, limit = self.state.step, self.job.settings.rewinds
        what = (
            f"the loss is not a number at step {failed + 1} "
            f"(gradient norm {result.gradient_norm:.3g})"
        )
        if self.skipped.rewinds >= limit:
            raise UserError(f"{self.job.stage}: {what}{self.advice()}")
        update = self.skipped.leave_out(failed)
        first, last = self.skipped.ranges[-1]
        if update < failed:
            self.go_back(update)
        else:
            self.cut_metrics_back(failed)
        log.line(
            "skipped",
            f"{what}: going on from step {self.state.step} without the rows of "
            + (f"step {first + 1}" if first == last else f"steps {first + 1} to {last + 1}")
            + f" ({self.skipped.rewinds} of {log.counted(limit, 'rewind')})",
        )

    def go_back(self, update: int) -> None:
        """Go to the newest checkpoint from before `update`, or to the beginning."""
        saved = self.checkpoints.newest(update)
        if saved is not None:
            self.restore(saved)
            self.validate_before_training()
            return
        self.checkpoints.remove_after(-1)
        self.worker.restart()
        self.measurements = Measurements()
        self.metrics.cut_back(self.header(), 0, validated=True)

    def advice(self) -> str:
        """The end of a sentence about a loss that is no number: what was tried, and what to do."""
        stage, tried, step = self.job.stage, self.skipped.rewinds, self.state.step
        text = f" after {log.counted(tried, 'rewind')}" if tried else ""
        if self.job.backend.candidate:
            return f"{text}; `nanoeuler check --op` says whether your ops are to blame"
        text += f"; lower {stage}.learning_rate or raise {stage}.warmup_steps"
        if self.job.backend.precision == "fp16":
            text += f", or leave {stage}.precision out: numbers of 16 bits end at 65,504"
        good = self.checkpoints.newest(step - REWIND_STEPS) or self.checkpoints.newest()
        if good is None or BY_SECTION[stage].parents:  # a short stage, whose start may matter
            return text
        kept = self.checkpoints.copy_aside(good["step"], self.job.fingerprint)
        return f"{text}, and set {stage}.init_from: {kept} to go on from the weights of that step"

    # ---- measurements

    def spent(self) -> dict[str, float]:
        """What the job took, earlier attempts included, as far as all of them were measured."""
        now = {"seconds": time.monotonic() - self.began, **self.worker.joules()}
        self.before = {cost: value for cost, value in self.before.items() if cost in now}
        spent = {cost: before + now[cost] for cost, before in self.before.items()}
        if joules := sum(spent.get(kind, 0.0) for kind in ENERGIES):
            self.energy = {"energy": f"{log.rounded(joules)}J"}
        return spent

    def write(self, **values: Any) -> None:
        """Append a line about the present step to metrics.jsonl."""
        step = self.state.step
        tokens = step * self.job.tokens_per_step
        self.metrics.write(**{"step": step, "tokens": tokens, **self.spent(), **values})

    def record(
        self, result: StepResult, learning_rate: float, speed: float, mfu: float | None
    ) -> None:
        saturated = self.job.backend.runtime.saturated
        self.write(
            loss=result.first_head_loss,
            loss_all_heads=result.loss,
            learning_rate=learning_rate,
            gradient_norm=result.gradient_norm,
            tokens_per_second=speed,
            mfu=mfu,
            **({} if saturated is None else {"saturated": saturated}),
            **self.notes,
        )

    def validate(self) -> None:
        """Measure the model on held-out data, and keep its parameters if it is the best so far.

        They are written with the next checkpoint, and until then are computed again after a kill.
        """
        step, values = self.state.step, self.worker.validate()
        self.measurements.add(step, self.job.score(values))
        is_best = self.job.settings.keep == "best" and self.measurements.best_step == step
        if is_best and step != self.saver.step:
            self.measurements.best_parameters = np.asarray(self.worker.parameters(), np.float32)
        self.write(validation=values)
        log.line("validation", "", step=step, **values, best=self.measurements.best_score)
        if self.job.sample:
            log.line("sample", self.job.sample(self.state.model))

    # ---- checkpoints and the end

    def save(self) -> None:
        """Have a checkpoint written, and the best model, while training goes on."""
        self.saver.finish()  # two at once may not fit into memory
        job, schedule = self.job, self.job.schedule
        info = {
            "stage": job.stage,
            "fingerprint": job.fingerprint,
            "tokenizer": job.inputs["tokenizer"],
            "total_steps": schedule.total_steps,
            "decay_start": schedule.decay_start,
            "tokens": self.state.step * job.tokens_per_step,
            "section": asdict(job.settings),
            "micro_batch_rows": self.worker.micro_batch_rows,
            "ranks": job.group.size,
            **self.measurements.saved,
            "skipped": self.skipped.ranges,
            "rewinds": self.skipped.rewinds,
            "finished": self.finished,
            **self.spent(),
            "algorithms": job.backend.algorithms,
            **({"memory": job.memory.saved} if job.memory else {}),
            **({"scales": scales} if (scales := job.backend.runtime.scales) else {}),
            "environment": environment(job.backend),
            "provenance": provenance.collect(job.backend.device_name),
        }
        step, config, measured = self.state.step, self.state.config, self.measurements
        best, parameters = measured.best_step, measured.best_parameters
        states = [(step, self.worker.tensors())]
        if parameters is not None and best is not None and best != step:
            states = [(best, {"parameters": parameters}), *states]
        measured.best_parameters = None
        self.saver.begin(states, config, info)

    def finish(self) -> None:
        """Save the last state and note that the stage is finished."""
        best, worse = self.measurements.best_step, self.measurements.worse
        if self.job.settings.keep == "final" and self.measurements.ended_worse:
            log.line("overfit", self.measurements.compared)
        if self.stalled() and best is not None and self.state.step < self.job.schedule.total_steps:
            log.line(
                "stalled",
                f"no better held-out measurement in {worse}, the best at step {best}: "
                f"{self.job.stage} ends here",
            )
        self.finished = True
        self.save()
        self.saver.finish()
        self.write(finished=True)

    def export(self) -> Path:
        """Write the model folder: the final weights, or the best where the stage keeps those."""
        job, step = self.job, self.state.step
        parameters = np.asarray(self.worker.parameters(), np.float32)
        best = self.measurements.best_step
        if job.settings.keep == "best" and best is not None and best != step:
            step = best
            parameters = self.checkpoints.read_parameters(step, job.config)
        info = {
            "step": step,
            "tokens": step * job.tokens_per_step,
            "rows": job.rows,
            "fingerprint": job.fingerprint,
            "provenance": provenance.collect(job.backend.device_name),
            **({"skipped": self.skipped.ranges} if self.skipped.ranges else {}),
            **job.info,
        }
        self.checkpoints.require_place()
        if job.base is not None and job.base.scheme:
            log.line("merged", f"adapters and weights in {job.base.scheme}, in float32")
        write_model(job, parameters, info)
        log.line("model", str(job.model_folder), step=step, **self.energy)
        return job.model_folder


def write_model(job: Job, parameters: np.ndarray, info: dict[str, Any]) -> None:
    """Write the model folder of a stage that has trained `parameters`.

    Adapters go to a folder beside it, too, and are merged into the model that they belong to, in
    its memory.
    """
    config, weights, tensors = job.config, parameters, None
    if job.base is not None:
        origin = job.parent, job.info["parent"]
        save_adapters(job.adapter_folder, config, parameters, *origin)
        config, base = job.base.config, job.base.weights
        if isinstance(base, QuantizedBuffer):
            weights, tensors = np.zeros(0, np.float32), merged(job.config, base, parameters)
        else:
            merge(job.config, base, parameters)
            weights = base
    save_model(
        job.model_folder,
        SavedModel(
            *(config, weights, job.tokenizer_path, job.stage, job.template, info),
            calculator=job.calculator,
        ),
        tensors=tensors,
    )
