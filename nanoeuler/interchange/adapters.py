"""The stage `import` for adapters: PEFT's folder onto the model that they belong to, merged."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.interchange.exporting import require_new
from nanoeuler.interchange.importing import tensors_in
from nanoeuler.model.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    PREFIX,
    adapted,
    is_output,
    merge,
)
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import MOST_CONFIG, WEIGHTS, SavedModel, load_model, save_model, usable
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.storage.files import read_json, sha256_file

PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others change the base
    "use_dora": (False,),
    "use_rslora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "modules_to_save": ([],),
    "exclude_modules": ([],),
    "layers_to_transform": ([],),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([],),
    "alora_invocation_tokens": ([],),
}
"""Key of an adapter's config → the values that mean what this project computes; so does none."""
MOST_ALPHA = 1e6
"""No adapters come near; an infinite one would make weights that are no numbers."""


@dataclass(frozen=True)
class Stored:
    """What an adapter's config says of it."""

    rank: int
    alpha: float
    targets: str | list[str]
    dropout: float = 0.0


def import_adapters(folder: Path, base: Path, output: Path) -> SavedModel:
    """Write the model in the folder `base` with the adapters of PEFT's `folder` merged into it to
    the new model folder `output`.

    Raises `UserError` for a folder that is damaged, and for adapters of another model.
    """
    require_new(output)
    path = folder / ADAPTER_CONFIG
    keys = read_json(path, MOST_CONFIG)
    if not isinstance(keys, dict):
        raise UserError(f"{path}: not the config of an adapter; give PEFT's folder of one")
    wanted = read_keys(path, keys)
    saved = load_model(base)
    check_base(path, keys, base)
    try:
        config = adapted(saved.config, wanted)
    except UserError as error:
        raise UserError(f"{path}: {str(error).replace('lora.rank', 'r')}") from error
    trained = np.zeros(FlatBuffer.trained_elements(config), np.float32)
    read_adapters(folder / ADAPTER_WEIGHTS, config, trained)
    merge(config, saved.parameters, trained)
    hashes = {ADAPTER_WEIGHTS: sha256_file(folder / ADAPTER_WEIGHTS)}
    info = saved.info | {"adapters": {"name": folder.resolve().name, "sha256": hashes}}
    result = replace(saved, quantized=None, stage="imported", info=info)
    save_model(output, result)
    return result


def read_keys(path: Path, keys: Mapping[str, Any]) -> Stored:
    """Rank, alpha and targets. Raises `UserError` for what would compute something else."""
    for key, allowed in PLAIN.items():
        value = keys.get(key)
        if value is not None and value not in allowed:
            raise UserError(
                f"{path}: {key} is {brief(value)}, which adapters of a nanoeuler model do not "
                "have; give adapters without it"
            )
    rank, alpha, targets = (keys.get(key) for key in ("r", "lora_alpha", "target_modules"))
    if type(rank) is not int or rank < 1:
        raise UserError(f"{path}: r is {brief(rank)}: it must be a whole number from 1 on")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha <= MOST_ALPHA:
        raise UserError(
            f"{path}: lora_alpha is {brief(alpha)}: it must be above 0 and at most {MOST_ALPHA:g}"
        )
    if targets == "all-linear":
        targets = "all"
    elif not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise UserError(
            f"{path}: target_modules is {brief(targets)}: it must be a list of names, such as "
            "q_proj"
        )
    return Stored(rank, alpha, targets)


def check_base(path: Path, keys: Mapping[str, Any], base: Path) -> None:
    """Raise `UserError` where adapters of ours say that they belong to another model."""
    wanted = keys.get("revision")
    is_hash = isinstance(wanted, str) and re.fullmatch("[0-9a-f]{64}", wanted)
    if is_hash and wanted != sha256_file(usable(base) / WEIGHTS):
        raise UserError(
            f"{path}: these adapters were trained on another model than {base}: its {WEIGHTS} has "
            f"another sha256 than {brief(wanted)}; give the folder of theirs, which was "
            f"{brief(keys.get('base_model_name_or_path'))}"
        )


def read_adapters(path: Path, config: ModelConfig, trained: np.ndarray) -> None:
    """Read A and B of all matrices into a flat buffer of adapters."""
    buffer = FlatBuffer(config, trained)
    missing = set(buffer.rows)
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; save the adapters with save_pretrained(safe_serialization=True)"
        )
    for stored, shape, read in tensors_in(path):
        name = stored.removeprefix(PREFIX)
        if name not in missing:
            raise UserError(
                f"{path}: has a tensor {brief(stored)}, which these adapters of this model do not "
                "have; give the model that they belong to"
            )
        view = buffer.in_file(name)
        if shape != view.shape:
            raise UserError(
                f"{path}: tensor {stored} has shape {list(shape)} where the model and "
                f"{ADAPTER_CONFIG} ask for {list(view.shape)}; give the model that they belong to"
            )
        view[...] = read()
        if not np.isfinite(view).all():
            raise UserError(f"{path}: tensor {stored} holds values that are not finite")
        if is_output(name):  # they fit a folder whose outputs are multiplied by h
            view /= np.float32(config.step_size)
        missing.discard(name)
    if missing:
        raise UserError(
            f"{path}: lacks the tensor {PREFIX}{min(missing)}; fetch the adapters again"
        )
