"""Starting a stage from weights that exist: another stage's model folder, or a checkpoint of any stage."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.files import read_json, sha256_file
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import CONFIG, WEIGHTS
from nanoeuler.training.checkpoint import STATE, Checkpoints, read_parameters


@dataclass
class Parent:
    """Weights to start from. `folder` is the model or checkpoint folder that they were read from."""

    folder: Path
    parameters: np.ndarray
    fingerprint: str  # sha256 of the weights' file


def find_weights(folder: Path) -> Path:
    """The model or checkpoint folder that `folder` names: itself, its `model`, or the newest of its `checkpoints`."""
    for candidate in (folder, folder / "model"):
        if (candidate / WEIGHTS).is_file():
            return candidate
    for checkpoints in (Checkpoints(folder), Checkpoints(folder / "checkpoints")):
        newest = checkpoints.newest() if checkpoints.folder.is_dir() else None
        if newest is not None:
            return checkpoints.path(newest["step"])
    raise UserError(
        f"{folder}: no {WEIGHTS} there, nor checkpoints; give the folder of a model, a checkpoint or a stage"
    )


def read_config(folder: Path) -> ModelConfig:
    """The model's fields as a model folder or a checkpoint states them."""
    if (folder / CONFIG).is_file():
        description = read_json(folder / CONFIG).get("nanoeuler", {})
    else:
        description = read_json(folder / STATE)
    if "model" not in description:
        raise UserError(
            f"{folder}: says nothing of the model's fields; give a folder that nanoeuler wrote"
        )
    return ModelConfig.from_dict(description["model"])


def read_parent(folder: str | Path, model: ModelConfig) -> Parent:
    """Read the weights of `folder` for a model of `model`'s fields; only the context may differ, since RoPE has no parameters."""
    found = find_weights(Path(folder))
    theirs = read_config(found)
    ours, other = model.to_dict(), replace(theirs, context=model.context).to_dict()
    different = [
        f"{key} {other[key]} there, {ours[key]} here"
        for key in ours
        if ours[key] != other[key] and key != "mtp_weights"
    ]
    if different:
        raise UserError(
            f"{found}: its model has other fields than this config's ({'; '.join(different)}); use the config it was trained with"
        )
    return Parent(found, read_parameters(found, model), sha256_file(found / WEIGHTS))
