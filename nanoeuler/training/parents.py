"""The model that a stage starts from: a model folder, or a checkpoint of any stage."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.config.stages import KINDS
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.files import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    check_hashes,
    read_description,
    read_weights,
    require_floats,
    usable,
)
from nanoeuler.model.flat import FlatBuffer, draw
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.weights_file import load_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.checkpoint import Checkpoints, read_checkpoint

UNTUNED_TEMPLATE = "alpaca"
"""The template of prompts for a parent that was tuned with none."""


@dataclass
class Parent:
    """Weights to start from."""

    folder: Path  # the model or checkpoint folder that they were read from
    weights: np.ndarray | QuantizedBuffer
    fingerprint: str  # sha256 of the weights' file
    description: dict[str, Any]  # of the model in its folder; empty for a checkpoint
    started: bool = False  # from the weights, in whose very memory an engine may train

    def start(self, model: ModelConfig, seed: int) -> np.ndarray:
        """What is trained: the parameters as they were read, or fresh adapters if `model` has
        any. Nobody else may have them."""
        if self.started and model.lora is None:
            self.weights[...] = load_parameters(self.folder / WEIGHTS, model)  # type: ignore[index]
        self.started = True
        return self.at_start(model, seed)

    def at_start(self, model: ModelConfig, seed: int) -> np.ndarray:
        """The values that `start` gives, to be read before training begins."""
        if model.lora is None:
            assert isinstance(self.weights, np.ndarray)
            return self.weights
        adapters = np.zeros(FlatBuffer.trained_elements(model), np.float32)
        draw(FlatBuffer(model, adapters), model, seed)
        return adapters

    def base(self, model: ModelConfig, backend: Backend) -> Frozen | None:
        """What the adapters of `model` are trained on, if it has any."""
        return Frozen(model, self.weights, backend) if model.lora is not None else None

    @property
    def template(self) -> str:
        """The template that the parent was tuned with."""
        return template_in(self.description)

    @property
    def calculator(self) -> bool:
        """Has the parent learned to call the calculator?"""
        return self.description.get("calculator", False)

    @property
    def inherited(self) -> dict[str, Any]:
        """The parent's records, and the model that it was: their licences bind a model that is
        tuned further, too."""
        info, kinds = self.description.get("info", {}), ("imported", *KINDS)
        return {key: info[key] for key in kinds if key in info}


def read_parent(
    folder: str | Path, model: ModelConfig, tokenizer: Tokenizer, tokenizer_path: Path
) -> Parent:
    """Read the weights of `folder` for a model with the fields of `model`, maybe with adapters, and
    a tokenizer that was read from `tokenizer_path`.

    Only the context may differ, where positions are not learned: RoPE has no parameters. Raises
    `UserError` for another tokenizer than the weights were trained with, for other fields, and for
    a file that is not as it was written.
    """
    found = find_weights(Path(folder))
    if (found / CONFIG).is_file():
        config, description = read_description(found)
        if model.lora is None:
            require_floats(found, description.get("quantized"))
        fingerprint = check_hashes(found, description)
        known = Tokenizer.load(found / TOKENIZER).fingerprint
    else:
        state = read_checkpoint(found)
        config, description = ModelConfig.from_dict(state["model"]), {}
        fingerprint, known = state["sha256"][WEIGHTS], state["tokenizer"]
    if known != tokenizer.fingerprint:
        raise UserError(
            f"{found}: was trained with another tokenizer than {tokenizer_path}, so that each of "
            "its rows would stand for another piece of text; set tokenizer.path to a folder with "
            "the model's own (`nanoeuler train TEXT --from MODEL` does), or start from another "
            "model"
        )
    learned = family_of(config).positions is not None
    theirs = asdict(config if learned else replace(config, context=model.context))
    if config.lora is not None:
        raise UserError(
            f"{found}: a checkpoint of adapters without the model that they belong to; give the "
            "model folder of its stage, which has them merged"
        )
    model = replace(model, lora=None)
    ours = asdict(model)
    different = [
        f"{key} {theirs[key]} there, {ours[key]} here"
        for key in ours
        if ours[key] != theirs[key] and key != "mtp_weights"
    ]
    if different:
        remedy = "use the config it was trained with"
        if description.get("quantized") and different[0].startswith("step_size 1.0"):
            remedy = "its weights have h in them, so set model.step_size to 1"
        raise UserError(
            f"{found}: its model has other fields than this config's ({'; '.join(different)}); "
            f"{remedy}"
        )
    return Parent(found, read_weights(found, model, description), fingerprint, description)


def template_in(description: Mapping[str, Any]) -> str:
    return description.get("template") or UNTUNED_TEMPLATE


def read_template(folder: str | Path) -> str:
    """The template that the model in `folder` was tuned with. Raises `UserError` without one."""
    found = find_weights(Path(folder))
    return template_in(read_description(found)[1] if (found / CONFIG).is_file() else {})


def find_weights(folder: Path) -> Path:
    """The model or checkpoint folder in `folder`.

    That is `folder` itself, its `model`, or the newest of its `checkpoints`.
    """
    for candidate in map(usable, (folder, folder / "model")):
        if (candidate / WEIGHTS).is_file():
            return candidate
    for checkpoints in (Checkpoints(folder), Checkpoints(folder / "checkpoints")):
        newest = checkpoints.newest() if checkpoints.folder.is_dir() else None
        if newest is not None:
            return checkpoints.path(newest["step"])
    raise UserError(
        f"{folder}: no {WEIGHTS} there, nor checkpoints; "
        "give the folder of a model, a checkpoint or a stage"
    )


def check_tokenizer(
    tokenizer: Tokenizer, path: Path, model: ModelConfig, *, started: bool = False
) -> None:
    """Refuse a tokenizer (read from `path`) whose vocabulary has not the model's size.

    A model that is `started` from a parent may have rows that no token has: see `import`.
    """
    spare = model.vocab_size - tokenizer.vocab_size
    if spare < 0 or (spare and not started):
        raise UserError(
            f"model.vocab_size is {model.vocab_size} but {path} has {tokenizer.vocab_size} "
            "entries; make them equal (tokenizer.vocab_size sets both)"
        )
