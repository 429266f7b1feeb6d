"""The training state on disk: a folder per checkpoint, written whole or not at all.

`checkpoints/step-00001200/` holds `model.safetensors` (a model that other stages can start from, or
of one that is frozen its adapters),
`optimizer.safetensors`, and `state.json` with the hashes of both and its own. They are compared
when a checkpoint is read. The newest two checkpoints are kept, of the best model its weights alone,
and the last before a WSD schedule's decay; when the stage is finished, one of the newest.
"""

import contextlib
import copy
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.config.settings import Training
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.weights_file import load_tensors, save_tensors
from nanoeuler.storage.files import link_or_copy, read_json, sha256_file, write_json
from nanoeuler.storage.folders import atomic_folder, files_of_ours, move_folder
from nanoeuler.storage.integrity import Origin, check_file, check_seal, seal
from nanoeuler.storage.temporary import sweep
from nanoeuler.training.lock import LOCK
from nanoeuler.training.measurements import moved
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.state import TrainingState

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class Checkpoints:
    """The checkpoints of one stage of one run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first, damaged or not."""
        named = [re.fullmatch("step-([0-9]{8,})", path.name) for path in self.folder.glob("*/")]
        return sorted(int(name[1]) for name in named if name)

    def resumable(self) -> list[int]:
        """Steps with more than weights, oldest first, damaged or not."""
        return [step for step in self.steps() if (self.path(step) / OPTIMIZER).exists()]

    def require_place(self) -> None:
        """Raise `UserError` where the stage's folder, which has the trainer's lock, is gone: a new
        one would hide where it is."""
        if not (self.folder / LOCK).exists():
            raise moved(self.folder.parent)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        config: ModelConfig,
        tensors: Mapping[str, np.ndarray],
        info: dict[str, Any],
    ) -> None:
        """Write a state's `tensors()`, or its parameters alone.

        `info` (JSON) is for the trainer, to resume.
        """
        buffers = {
            name: FlatBuffer(config, np.asarray(array, np.float32))
            for name, array in tensors.items()
        }
        files = {WEIGHTS: {"": buffers.pop("parameters")}}
        if buffers:
            files[OPTIMIZER] = {f"{name}/": buffer for name, buffer in buffers.items()}
        if files_of_ours(self.path(step)) is None:  # damaged
            self.remove(step)
        with atomic_folder(self.path(step), parents=False) as temporary:
            for name, content in files.items():
                save_tensors(temporary / name, content)
            hashes = {name: sha256_file(temporary / name) for name in files}
            state = {"version": 1, "step": step, "sha256": hashes}
            write_json(temporary / STATE, seal(state | {"model": config.to_dict(), **info}))

    def read_state(self, step: int) -> dict[str, Any] | None:
        """`state.json` of a checkpoint; None, and a line in the log, where a file is damaged."""
        path = self.path(step)
        try:
            return read_checkpoint(path)
        except UserError as error:
            fallback = "falling back to the checkpoint before it"
            log.line("checkpoint", f"{path}: it is damaged; {fallback} ({error})")
            return None

    def newest(self, limit: int | None = None) -> dict[str, Any] | None:
        """`read_state` of the newest checkpoint that is whole, neither damaged nor weights alone.

        With `limit`, of that step or an earlier one.
        """
        for step in reversed(self.steps()):
            if limit is None or step <= limit:
                content = self.read_state(step)
                if content is not None and OPTIMIZER in content["sha256"]:
                    return content
        return None

    def restore(self, step: int, state: TrainingState) -> None:
        """Load parameters and optimizer tensors of checkpoint `step` into `state`."""
        buffers = {name: empty(state.config) for name in ("parameters", *state.optimizer.tensors)}
        moments = {f"{name}/": buffers[name] for name in state.optimizer.tensors}
        load_tensors(self.path(step) / WEIGHTS, {"": buffers["parameters"]})
        load_tensors(self.path(step) / OPTIMIZER, moments)
        state.load({name: buffer.array for name, buffer in buffers.items()}, step)

    def read_parameters(self, step: int, config: ModelConfig) -> np.ndarray:
        """The trained parameters of checkpoint `step`. Raises `UserError` when it is damaged."""
        read_checkpoint(self.path(step))
        buffer = empty(config)
        load_tensors(self.path(step) / WEIGHTS, {"": buffer})
        return buffer.array

    def remove(self, step: int) -> None:
        """Delete a checkpoint. Other files that somebody has put into its folder stay."""
        for name in (WEIGHTS, OPTIMIZER, STATE):
            (self.path(step) / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path(step).rmdir()

    def sweep(self) -> None:
        """Delete what killed trainers have left half-written."""
        sweep(self.folder, "step-")

    def remove_all_but(self, steps: set[int]) -> None:
        """Delete the other checkpoints."""
        for step in set(self.steps()) - steps:
            self.remove(step)

    def keep_weights_alone(self, step: int) -> None:
        """Delete the optimizer's tensors of a checkpoint from which no training will resume."""
        content = self.read_state(step)
        if content is not None:
            weights = {WEIGHTS: content["sha256"][WEIGHTS]}
            write_json(self.path(step) / STATE, seal(content | {"sha256": weights}))
            (self.path(step) / OPTIMIZER).unlink(missing_ok=True)

    def best_before(self, step: int) -> int:
        """The step that checkpoint `step` names as the best so far, or `step` itself."""
        with contextlib.suppress(UserError, OSError, KeyError, TypeError, AttributeError):
            return read_json(self.path(step) / STATE)["best"]["step"]
        return step

    def copy_aside(self, step: int, fingerprint: str) -> Path:
        """Keep a checkpoint where other settings can start from it; returns its new folder."""
        target = self.stale(fingerprint) / self.path(step).name
        shutil.copytree(self.path(step), target, copy_function=link_or_copy, dirs_exist_ok=True)
        return target

    def remove_after(self, step: int) -> None:
        """Delete the checkpoints of later steps, which are about to be computed again."""
        for later in self.steps():
            if later > step:
                self.remove(later)

    def stale(self, fingerprint: str) -> Path:
        """The folder to which the checkpoints of a fingerprint are set aside."""
        return self.folder.with_name(f"{self.folder.name}.stale-{fingerprint[:8]}")

    def set_aside(self, fingerprint: str) -> Path:
        """Move all checkpoints to another folder, since they belong to other settings.

        Returns that folder.
        """
        target = Checkpoints(self.stale(fingerprint))
        target.remove_all_but(set())
        self.move_to(target)
        return target.folder

    def move_to(self, other: "Checkpoints") -> None:
        """Move all checkpoints, with what somebody has put into their folders."""
        other.folder.mkdir(parents=True, exist_ok=True)
        for step in self.steps():
            move_folder(self.path(step), other.path(step))


def empty(config: ModelConfig) -> FlatBuffer:
    """For the tensors of a checkpoint: those that are trained."""
    return FlatBuffer(config, np.zeros(FlatBuffer.trained_elements(config), np.float32))


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint folder, whose files are all as they were written.

    Raises `UserError` when one is not.
    """
    content = read_json(folder / STATE)
    parts = [content.get(key) for key in ("sha256", "model")] if isinstance(content, dict) else []
    if not parts or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{folder / STATE}: not the state of a checkpoint; delete {folder}")
    remedy = f"delete {folder} and run the stage again, which resumes from the checkpoint before it"
    origin = Origin(f"the stage {content.get('stage')}", remedy)
    check_seal(folder / STATE, content, origin)
    if WEIGHTS not in content["sha256"]:
        raise UserError(f"{folder / STATE}: lacks the sha256 of {WEIGHTS}; {remedy}")
    for name in {WEIGHTS, OPTIMIZER} & content["sha256"].keys():
        check_file(folder / name, content["sha256"][name], origin)
    return content


# ---- when they are due, a thread that writes them beside training, and which of them stay


REWIND_STEPS = 100
"""Steps to go back when weights are to blame for a loss that is no number: see `Skipped`."""
EARLY = 0.5
"""Share of the time between two checkpoints after which a measurement on held-out data, which may
take long, waits for the next."""


class Saver:
    """Writes the checkpoints of a stage."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        settings: Training,
        schedule: Schedule,
        written: Callable[[], None] | None = None,
    ):
        """The thread calls `written` when there is a new checkpoint."""
        self.checkpoints, self.settings, self.schedule = checkpoints, settings, schedule
        self.written = written
        self.thread = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None
        self.step: int | None = None
        """Step of the checkpoint that was handed over last, or from which training resumed."""
        self.handed_over = time.monotonic()

    def due(self, share: float = 1.0) -> bool:
        """Whether `share` of the time between checkpoints has passed since the last one."""
        passed = time.monotonic() - self.handed_over
        return passed >= share * 60 * self.settings.checkpoint_minutes

    def begin(
        self,
        states: Sequence[tuple[int, Mapping[str, np.ndarray]]],
        config: ModelConfig,
        info: dict[str, Any],
    ) -> None:
        """Begin to write the tensors of some steps, and then delete what nothing needs any more.

        Training resumes from the last of `states`, with `info` as it is now. Nobody may change the
        tensors. The checkpoint before must have been finished.
        """
        assert self.writing is None
        last, info = states[-1][0], copy.deepcopy(info)

        def write() -> None:
            self.checkpoints.require_place()
            for step, tensors in states:
                self.checkpoints.save(step, config, tensors, info)
            self.remove_old(last, finished=info["finished"])
            if self.written:
                self.written()

        self.writing = self.thread.submit(write)
        self.step, self.handed_over = last, time.monotonic()

    def notice(self) -> None:
        """Raise what went wrong with a checkpoint, if that is known by now."""
        if self.writing is not None and self.writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises what went wrong with it."""
        if self.writing is not None:
            self.writing.result()
            self.writing = None

    def remove_old(self, step: int, *, finished: bool) -> None:
        """Keep those from which training may resume, and the best that each of them names.

        It may end with those weights. When the stage is finished, nothing else needs them.
        """
        present = self.checkpoints.resumable()
        resumed = {present[-1]}
        if not finished:
            earlier = [number for number in present if number <= step - REWIND_STEPS]
            resumed |= {*present[-2:], *earlier[-1:]}  # if the last is damaged, and to rewind to
        if self.schedule.kind == "wsd":
            resumed.add(self.schedule.decay_start)
        best = set()
        if self.settings.keep == "best":
            kept = resumed & set(present)
            best = {self.checkpoints.best_before(number) for number in kept}
        self.checkpoints.remove_all_but(resumed | best)
        if finished:
            for number in best & set(present) - resumed:
                self.checkpoints.keep_weights_alone(number)
