"""A model folder holds all that chat, evaluation and export need.

Its model is three files: `model.safetensors`, `config.json` and `tokenizer.json`. Tensors have the
names and shapes of Hugging Face's Llama or GPT-2, in float32 (of a model that was exported, maybe
in bf16; of one that was quantized, as codes and scales), without padding. `config.json` carries
this project's fields under `nanoeuler`, beside the keys that readers of those look for.
That section holds the hashes of the other two files and its own, which are compared when the folder
is read.
Beside them lie the companions, which are for other tools.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError, brief
from nanoeuler.model.companions import COMPANIONS, write_companions
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.quantized import SCHEMES, QuantizedBuffer
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.transformers_config import transformers_keys
from nanoeuler.model.weights_file import (
    Later,
    load_parameters,
    require_size,
    save_parameters,
    write_one_by_one,
)
from nanoeuler.storage.files import link_or_copy, read_json, sha256_file, write_json
from nanoeuler.storage.folders import atomic_folder
from nanoeuler.storage.integrity import Origin, check_file, check_seal, seal
from nanoeuler.tokenizer import tokenizer_json

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MOST_CONFIG = 10_000_000
"""Bytes of `config.json`, which has some thousand."""


@dataclass
class SavedModel:
    """The contents of a model folder.

    `parameters` is a flat float32 buffer laid out by `tensor_table(config)`.
    """

    config: ModelConfig
    parameters: np.ndarray
    tokenizer_path: Path
    stage: str  # pretrain, sft, …
    template: str | None  # the prompt template that it was tuned on; None for a base model
    info: dict[str, Any] = field(default_factory=dict)  # provenance, licences, training summary
    calculator: bool = False  # has it learned to call the calculator?
    quantized: QuantizedBuffer | None = None  # the parameters as codes and scales, if it has them


def previous(folder: Path) -> Path:
    """Folder of a model while its stage makes the next one: see `keep_model`."""
    whole = Path(os.path.abspath(folder))  # "." has no name
    return whole.parent / f"{whole.name}.previous"


def keep_model(folder: str | Path) -> None:
    """Give the files of a whole model folder second names, which outlive those in `folder`.

    Snakemake deletes the outputs of a rule before it runs, and again when it is stopped.
    `load_model` reads the kept model until `save_model` has written its successor.
    """
    folder = Path(folder)
    if all((folder / name).is_file() for name in (WEIGHTS, CONFIG, TOKENIZER)):
        with atomic_folder(previous(folder)) as temporary:
            for name in (WEIGHTS, CONFIG, TOKENIZER, *COMPANIONS):
                if (folder / name).is_file():
                    link_or_copy(folder / name, temporary / name)


def usable(folder: Path) -> Path:
    """`folder`, or where its model is kept while the next one is made."""
    kept = previous(folder)
    if (folder / CONFIG).is_file() or not (kept / CONFIG).is_file():
        return folder
    log.line("previous", f"{folder} is being made again; until it is whole, {kept} is used")
    return kept


def save_model(
    folder: str | Path,
    model: SavedModel,
    dtype: str = "f32",
    tensors: Mapping[str, Later] | None = None,
) -> None:
    """Write a model folder, which appears whole or not at all; its weights in f32 or bf16, or as
    codes and scales where they are quantized.

    `tensors`: the weights of a model of step size 1 that are nowhere yet.
    """
    folder = Path(folder)
    with atomic_folder(folder) as temporary:
        keys: dict[str, Any] = {}  # transformers computes with neither codes nor any h
        vocabulary = tokenizer_json.read_unchecked(model.tokenizer_path)
        if model.quantized:
            model.quantized.save(temporary / WEIGHTS)
        else:
            step = model.config.step_size
            if tensors is None:
                step = save_parameters(temporary / WEIGHTS, model.config, model.parameters, dtype)
            else:
                write_one_by_one(temporary / WEIGHTS, tensors)
            if not model.config.post_norms:  # a Gemma's files hold norms less 1: exports alone do
                keys = transformers_keys(replace(model.config, step_size=step), vocabulary.end_id)
        tokenizer_json.write_framed(temporary / TOKENIZER, vocabulary)
        hashes = {name: sha256_file(temporary / name) for name in (WEIGHTS, TOKENIZER)}
        description = {
            "version": 1,
            "model": model.config.to_dict(),
            "stage": model.stage,
            "template": model.template,
            **({"calculator": True} if model.calculator else {}),
            **({"quantized": model.quantized.scheme} if model.quantized else {}),
            "info": model.info,
            "sha256": hashes,
        }
        write_json(temporary / CONFIG, keys | {"nanoeuler": seal(description)})
        write_companions(temporary, model, vocabulary, known_to_transformers=bool(keys))
    shutil.rmtree(previous(folder), ignore_errors=True)


def load_model(folder: str | Path, *, as_codes: bool = False) -> SavedModel:
    """Read a model folder. Raises `UserError` when it is damaged, or not a model folder.

    `as_codes`: the `parameters` of a quantized model are left empty.
    """
    folder = usable(Path(folder))
    config, description = read_description(folder)
    weights = read_weights(folder, config, description)
    check_hashes(folder, description)
    quantized = weights if isinstance(weights, QuantizedBuffer) else None
    if isinstance(weights, QuantizedBuffer):
        weights = np.zeros(0, np.float32) if as_codes else weights.dense()
    return SavedModel(
        config,
        weights,
        folder / TOKENIZER,
        description.get("stage", "unknown"),
        description.get("template"),
        description.get("info", {}),
        description.get("calculator", False),
        quantized,
    )


def quantized(model: SavedModel, scheme: str) -> SavedModel:
    """`model` with its weights rounded, and without their floats.

    Raises `UserError` for a scheme that is unknown, a model that is quantized otherwise, or one
    whose rows are no whole blocks.
    """
    if scheme not in list(SCHEMES):
        raise UserError(f"{brief(scheme)} is no kind of weights; there are {', '.join(SCHEMES)}")
    if model.quantized is None:
        weights = QuantizedBuffer.of(model.config, model.parameters, scheme)
        nothing = np.zeros(0, np.float32)
        return replace(model, config=weights.config, parameters=nothing, quantized=weights)
    if model.quantized.scheme != scheme:
        raise UserError(
            f"the model is in {model.quantized.scheme} already; give the one that it was quantized "
            f"from to have it in {scheme}"
        )
    return model


def read_weights(
    folder: Path, config: ModelConfig, description: Mapping[str, Any]
) -> np.ndarray | QuantizedBuffer:
    """The weights of a model folder, as they are stored there."""
    scheme = description.get("quantized")
    if scheme is None:
        return load_parameters(folder / WEIGHTS, config)
    require_size(config, [folder / WEIGHTS], bits=4)
    return QuantizedBuffer.load(folder / WEIGHTS, config, scheme)


def require_floats(folder: Path, scheme: str | None) -> None:
    """Refuse to change weights that are quantized."""
    if scheme is not None:
        raise UserError(
            f"{folder}: its weights are {scheme}, which nothing but adapters can be trained on; "
            "start from the model that it was quantized from, make floats of it with `nanoeuler "
            "export --format hf` and `nanoeuler import`, or set lora: {} for a stage of tuning"
        )


def check_hashes(folder: Path, description: Mapping[str, Any]) -> str:
    """Compare weights and tokenizer with the hashes in the description, and return the weights'.

    Raises `UserError` where a file or its hash is missing, or another.
    """
    origin, noted = origin_of(folder, description), description.get("sha256")
    hashes = noted if isinstance(noted, dict) else {}
    for name in (WEIGHTS, TOKENIZER):
        if name not in hashes:
            raise UserError(f"{folder / CONFIG}: lacks the sha256 of {name}; {origin.remedy}")
        check_file(folder / name, hashes[name], origin)
    return hashes[WEIGHTS]


def origin_of(folder: Path, description: Mapping[str, Any]) -> Origin:
    return Origin(
        f"the stage {str(description.get('stage'))[:40]}",
        f"delete {folder} and run the stage again, which exports it from its checkpoint, or, if "
        f"you changed it yourself: nanoeuler accept {folder}",
    )


def load_config(folder: str | Path) -> ModelConfig:
    """The configuration of a model folder. Raises `UserError` like `load_model`."""
    return read_description(usable(Path(folder)))[0]


def scheme_in(folder: str | Path | None) -> str | None:
    """The scheme of the model in a folder, if it is quantized; None where there is none yet."""
    if folder is not None:
        with contextlib.suppress(UserError):
            return read_description(usable(Path(folder)))[1].get("quantized")
    return None


def read_description(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The model's configuration, and the whole section of this project in `config.json`.

    Raises `UserError` for a section that is not as it was written.
    """
    config, description = read_unsealed(folder)
    origin = origin_of(folder, description)
    check_seal(folder / CONFIG, description, origin)
    return config, description


def read_unsealed(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """`read_description` without a check of the seal."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: {'a file' if folder.exists() else 'no such folder'}; give the model folder "
            "of a finished stage, such as results/demo/sft/model"
        )
    if not (folder / CONFIG).is_file() and (folder / "model" / CONFIG).is_file():
        raise UserError(f"{folder}: the folder of a stage; its model lies in {folder / 'model'}")
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder}: holds no finished model ({CONFIG}: no such file); give the folder of one, "
            "or run its stage to the end"
        )
    content = read_json(folder / CONFIG, MOST_CONFIG)
    description = content.get("nanoeuler") if isinstance(content, dict) else None
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise UserError(
            f"{folder / CONFIG}: not the config of a nanoeuler model "
            "(it has no 'nanoeuler' section with a 'model'); if it is Hugging Face's, "
            f"make one of it: nanoeuler import {folder}"
        )
    check_description(folder / CONFIG, description)
    try:
        return ModelConfig.from_dict(description["model"]), description
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error


def check_description(path: Path, description: Mapping[str, Any]) -> None:
    """Raise `UserError` for a section of ours that no model can be used by."""
    template, stage = description.get("template"), description.get("stage", "")
    if template is not None and template not in list(TEMPLATES):
        known = ", ".join(TEMPLATES)
        raise UserError(f"{path}: template is {brief(template)}; write one of {known}, or null")
    if not isinstance(stage, str) or not isinstance(description.get("info", {}), dict):
        raise UserError(f"{path}: stage must be a text and info an object; correct it")
    scheme = description.get("quantized")
    if scheme is not None and scheme not in list(SCHEMES):
        raise UserError(
            f"{path}: quantized is {brief(scheme)}; this version knows {', '.join(SCHEMES)}"
        )
    if not isinstance(description.get("calculator", False), bool):
        raise UserError(f"{path}: calculator must be true or false; correct it")
