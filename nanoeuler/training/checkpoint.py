"""The training state on disk: a folder per checkpoint, written whole or not at all.

`checkpoints/step-00001200/` holds `model.safetensors` (a model that other stages can start from),
`optimizer.safetensors`, and `state.json` with the hashes of both and its own. They are compared
when a checkpoint is read. The newest two checkpoints are kept, of the best model its weights alone,
and the last before a WSD schedule's decay; when the stage is finished, one of the newest.
"""

import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.weights_file import load_parameters, load_tensors, save_tensors
from nanoeuler.storage.files import link_or_copy, read_json, sha256_file, write_json
from nanoeuler.storage.folders import atomic_folder, files_of_ours, move_folder
from nanoeuler.storage.integrity import Origin, check_file, check_seal, seal
from nanoeuler.storage.temporary import sweep
from nanoeuler.training.lock import LOCK
from nanoeuler.training.measurements import moved
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
        buffers = {
            name: FlatBuffer(state.config, np.zeros(FlatBuffer.elements(state.config), np.float32))
            for name in ("parameters", *state.optimizer.tensors)
        }
        moments = {f"{name}/": buffers[name] for name in state.optimizer.tensors}
        load_tensors(self.path(step) / WEIGHTS, {"": buffers["parameters"]})
        load_tensors(self.path(step) / OPTIMIZER, moments)
        state.load({name: buffer.array for name, buffer in buffers.items()}, step)

    def read_parameters(self, step: int, config: ModelConfig) -> np.ndarray:
        """The parameters of checkpoint `step`. Raises `UserError` when it is damaged."""
        read_checkpoint(self.path(step))
        return read_parameters(self.path(step), config)

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


def read_parameters(folder: Path, config: ModelConfig) -> np.ndarray:
    """Flat parameters of a model or checkpoint folder, for a model of `config`.

    Raises `UserError` when they don't fit.
    """
    return load_parameters(folder / WEIGHTS, config)
