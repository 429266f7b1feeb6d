"""A model folder holds all that chat, evaluation and export need.

Its model is three files: `model.safetensors`, `config.json` and `tokenizer.json`. Tensors have the
names and shapes of Hugging Face's Llama or GPT-2, in float32 (of a model that was exported, maybe
in bf16), without padding. `config.json` carries this project's fields under `nanoeuler`, beside the
keys that readers of those look for.
That section holds the hashes of the other two files and its own, which are compared when the folder
is read.
Beside them lie the companions, which are for other tools.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open, serialize_file
from safetensors.numpy import save_file

from nanoeuler import log
from nanoeuler.errors import UserError, brief
from nanoeuler.files import link_or_copy, read_json, sha256_file, write_json
from nanoeuler.folders import atomic_folder
from nanoeuler.integrity import Origin, check_file, check_seal, seal
from nanoeuler.model.bf16 import from_bf16, to_bf16
from nanoeuler.model.companions import COMPANIONS, write_companions
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.template import TEMPLATES
from nanoeuler.shipped import find
from nanoeuler.tokenizer import tokenizer_json

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


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


def norms_of_ones(config: ModelConfig) -> dict[str, np.ndarray]:
    """The weights that transformers wants of a QK-norm without any: with ones it computes the same.

    A model folder holds them beside the model's own tensors.
    """
    if config.qk_norm != "rms":
        return {}
    own = {tensor.name for tensor in tensor_table(config)}
    table = tensor_table(replace(config, qk_norm="weighted"))
    return {
        tensor.name: np.ones(tensor.shape, np.float32) for tensor in table if tensor.name not in own
    }


def save_tensors(
    path: Path,
    buffers: dict[str, FlatBuffer],
    dtype: str = "f32",
    further: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Write the named tensors of flat buffers, in f32 or bf16, and `further` ones; the keys of
    `buffers` are prefixes ("" for none)."""
    tensors = {
        prefix + tensor.name: np.ascontiguousarray(buffer.in_file(tensor.name))
        for prefix, buffer in buffers.items()
        for tensor in buffer.table
    } | dict(further)
    if dtype == "bf16":
        arrays = {name: to_bf16(tensor) for name, tensor in tensors.items()}
        serialize_file(
            {
                name: TensorSpec(
                    dtype="bfloat16",
                    shape=array.shape,
                    data_ptr=array.ctypes.data,
                    data_len=array.nbytes,
                )
                for name, array in arrays.items()
            },
            path,
        )
    else:
        write_safetensors(path, tensors)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file. Raises OSError when it cannot be written."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # it hides the number of the system's error in its text
        number = re.search(r"os error (\d+)", str(error))
        if number:
            raise OSError(int(number[1]), str(error), str(path)) from error
        raise


def load_parameters(path: Path, config: ModelConfig) -> np.ndarray:
    """The flat parameters of a model of `config` in the weights of a model folder or a checkpoint.

    Raises `UserError` like `load_tensors`.
    """
    buffer = FlatBuffer(config, np.zeros(FlatBuffer.elements(config), np.float32))
    load_tensors(path, {"": buffer}, norms_of_ones(config))
    return buffer.array


def load_tensors(
    path: Path,
    buffers: dict[str, FlatBuffer],
    known: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Read what `save_tensors` wrote into `buffers`; of the `known` tensors it may have written
    further ones.

    Raises `UserError` for a damaged file or one of another model.
    """
    wanted = {
        prefix + tensor.name: buffer.in_file(tensor.name)
        for prefix, buffer in buffers.items()
        for tensor in buffer.table
    }
    other_fields = "the file is of a model with other fields than its config says"
    try:
        with safe_open(path, framework="numpy") as file:
            present = set(file.keys())
            for name in sorted(present - wanted.keys()):
                if name not in known:
                    raise UserError(f"{path}: tensor {name} is one too many; {other_fields}")
                stored = file.get_slice(name)
                shape = known[name].shape
                check_stored(path, name, stored.get_dtype(), stored.get_shape(), shape)
                wanted[name] = np.zeros(shape, np.float32)
            for name, view in wanted.items():
                if name not in present:
                    raise UserError(f"{path}: tensor {name} is missing; {other_fields}")
                stored = file.get_slice(name)
                check_stored(path, name, stored.get_dtype(), stored.get_shape(), view.shape)
            halves = bf16_tensors(path) if stored.get_dtype() == "BF16" else None
            for name, view in wanted.items():
                view[...] = halves[name] if halves else file.get_tensor(name)
            for name in present & known.keys():
                if not np.array_equal(wanted[name], known[name]):
                    raise UserError(f"{path}: tensor {name} has other values; {other_fields}")
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; train the model first or give its folder"
        ) from error
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path}: damaged or cut off ({error}); copy it again from where it came, or delete "
            f"{path.parent} and run its stage again"
        ) from error


def bf16_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file in bf16, as float32. (The package reads no bf16 for NumPy.)"""
    return {
        name: from_bf16(np.frombuffer(entry["data"], np.uint16)).reshape(entry["shape"])
        for name, entry in deserialize(path.read_bytes())
    }


def check_stored(
    path: Path, name: str, dtype: str, shape: Sequence[int], expected: Sequence[int]
) -> None:
    """Refuse a stored tensor that does not fit the model."""
    if dtype not in ("F32", "BF16"):
        raise UserError(
            f"{path}: tensor {name} has type {dtype}; a nanoeuler model is stored in float32 or "
            "bf16, so this file was not written by it"
        )
    if tuple(shape) != tuple(expected):
        raise UserError(
            f"{path}: tensor {name} has shape {list(shape)} where the config asks for "
            f"{list(expected)}"
        )


def previous(folder: Path) -> Path:
    """Where a model is kept while its stage makes the next one: see `keep_model`."""
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
                if (folder / name).is_file():  # earlier versions wrote no companions
                    link_or_copy(folder / name, temporary / name)


def usable(folder: Path) -> Path:
    """`folder`, or where its model is kept while the next one is made."""
    kept = previous(folder)
    if (folder / CONFIG).is_file() or not (kept / CONFIG).is_file():
        return folder
    log.line("previous", f"{folder} is being made again; until it is whole, {kept} is used")
    return kept


def save_model(folder: str | Path, model: SavedModel, dtype: str = "f32") -> None:
    """Write a model folder, which appears whole or not at all; its weights in f32 or bf16."""
    folder = Path(folder)
    with atomic_folder(folder) as temporary:
        buffers = {"": FlatBuffer(model.config, model.parameters)}
        save_tensors(temporary / WEIGHTS, buffers, dtype, norms_of_ones(model.config))
        vocabulary = tokenizer_json.read_unchecked(model.tokenizer_path)
        tokenizer_json.write_framed(temporary / TOKENIZER, vocabulary)
        hashes = {name: sha256_file(temporary / name) for name in (WEIGHTS, TOKENIZER)}
        description = {
            "version": 2,  # 1 had no seal
            "model": model.config.to_dict(),
            "stage": model.stage,
            "template": model.template,
            "info": model.info,
            "sha256": hashes,
        }
        keys = transformers_keys(model.config, vocabulary.end_id)
        write_json(temporary / CONFIG, keys | {"nanoeuler": seal(description)})
        write_companions(temporary, model, vocabulary, known_to_transformers=bool(keys))
    shutil.rmtree(previous(folder), ignore_errors=True)


def load_model(folder: str | Path) -> SavedModel:
    """Read a model folder. Raises `UserError` when it is damaged, or not a model folder."""
    folder = usable(Path(folder))
    config, description = read_description(folder)
    parameters = load_parameters(folder / WEIGHTS, config)
    check_hashes(folder, description)
    return SavedModel(
        config,
        parameters,
        folder / TOKENIZER,
        description.get("stage", "unknown"),
        description.get("template"),
        description.get("info", {}),
    )


def find_model(folder: Path) -> Path:
    """The model folder that `folder` stands for: itself, that of a stage, a run's last one, or a
    shipped one such as models/stories.

    Its model may be the one that is kept while the next is made: see `usable`.
    """
    inside = ("", "model", "dpo/model", "sft/model", "pretrain/model")
    for model in (folder / each for each in inside):
        if any((place / CONFIG).is_file() for place in (model, previous(model))):
            return model
    return find(folder)


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


def read_description(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The model's configuration, and the whole section of this project in `config.json`.

    Raises `UserError` for a section that is not as it was written.
    """
    config, description = read_unsealed(folder)
    path, sealed = folder / CONFIG, description.get("version", 1) != 1
    check_seal(path, description, origin_of(folder, description), required=sealed)
    return config, description


def read_unsealed(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The same, whoever wrote or changed it."""
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
    content = read_json(folder / CONFIG)
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


def transformers_keys(config: ModelConfig, end_id: int, dtype: str = "float32") -> dict[str, Any]:
    """The keys of a Hugging Face config, or none where its classes would compute something else.

    Readers ignore the heads beyond head 0.
    """
    keys = gpt2_keys if config.family == "gpt2" else llama_keys
    return {} if config.step_size != 1.0 else keys(config, end_id, dtype)


def gpt2_keys(config: ModelConfig, end_id: int, dtype: str) -> dict[str, Any]:
    """Those of a GPT-2."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ffn,
        "n_positions": config.context,
        "n_ctx": config.context,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_epsilon,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": config.tied,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }


def llama_keys(config: ModelConfig, end_id: int, dtype: str) -> dict[str, Any]:
    """Those of a Llama, or with QK-norm a Qwen3, which norms each head of q and k before the
    rotation, too."""
    llama = config.qk_norm == "none"
    return {
        "architectures": ["LlamaForCausalLM" if llama else "Qwen3ForCausalLM"],
        "model_type": "llama" if llama else "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }
