"""Adapters of low rank (LoRA, Hu et al. 2021): a model with them, merged into it, and their folder.

The folder is PEFT's: `adapter_config.json`, and `adapter_model.safetensors` with A and B of each
matrix. They fit the model folder that they were trained on, which transformers reads: where that
has outputs that are multiplied by h, so has B.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.model.blocks.adapted import target_of
from nanoeuler.model.config import Lora, ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import block_matrices
from nanoeuler.model.weights_file import OUTPUTS, write_safetensors
from nanoeuler.storage.files import write_json
from nanoeuler.storage.folders import atomic_folder

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Of the names in PEFT's files."""
DOWN, UP = ".lora_A.weight", ".lora_B.weight"


class Wanted(Protocol):
    """A section `lora` of the configuration."""

    @property
    def rank(self) -> int: ...

    @property
    def alpha(self) -> float | None: ...

    @property
    def targets(self) -> str | list[str]: ...

    @property
    def dropout(self) -> float: ...


def adapted(config: ModelConfig, wanted: Wanted | None) -> ModelConfig:
    """The model with adapters, or without a section as it is.

    Raises `UserError` for adapters that it cannot have.
    """
    if wanted is None:
        return config
    names = list(dict.fromkeys(target_of(matrix.name) for matrix in block_matrices(config)))
    asked = [wanted.targets] if isinstance(wanted.targets, str) else wanted.targets
    targets = names if asked == ["all"] else asked
    for target in targets:
        if target not in names:
            raise UserError(
                f"lora.targets has {brief(target)}, and the blocks of this model have "
                f"{', '.join(names)}; name some of these, or write all"
            )
    if not targets:
        raise UserError("lora.targets is empty, so that nothing would be trained; write all")
    if wanted.rank > config.dim:
        raise UserError(
            f"lora.rank is {wanted.rank}, above model.dim = {config.dim}, which is the most that a "
            "matrix of the residual stream can have; lower it"
        )
    alpha = 2 * wanted.rank if wanted.alpha is None else wanted.alpha
    ordered = tuple(name for name in names if name in targets)
    return replace(config, lora=Lora(wanted.rank, float(alpha), ordered, wanted.dropout))


def merged(config: ModelConfig, parameters: np.ndarray) -> tuple[ModelConfig, np.ndarray]:
    """The model without adapters that computes the same; its parameters take the place of
    `parameters`, a flat buffer."""
    base = replace(config, lora=None)
    if config.lora is not None:
        buffer, scale = FlatBuffer(config, parameters), config.lora.alpha / config.lora.rank
        for module in adapted_modules(config):
            down_RI, up_OR = buffer[module + DOWN], buffer.in_file(module + UP)
            buffer[f"{module}.weight"][...] += scale * (up_OR @ down_RI)
    return base, parameters[: FlatBuffer.elements(base)]


def adapted_modules(config: ModelConfig) -> Iterator[str]:
    """The matrices that have adapters, by their names without `.weight`."""
    for tensor in block_matrices(config):
        if tensor.name.endswith(DOWN):
            yield tensor.name.removesuffix(DOWN)


def save_adapters(
    folder: Path, config: ModelConfig, trained: np.ndarray, base: Path | None, sha256: str | None
) -> None:
    """Write PEFT's folder, which appears whole or not at all.

    `trained`: a flat buffer of the adapters. `base`: folder of the model that they were trained on,
    whose weights' file has the hash `sha256`; None: random weights.
    """
    lora, buffer = config.lora, FlatBuffer(config, trained)
    assert lora is not None
    tensors = {}
    for name in buffer.rows:
        factor = config.step_size if is_output(name) else 1.0
        tensors[PREFIX + name] = np.ascontiguousarray(buffer.in_file(name) * np.float32(factor))
    keys: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if base is None else str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.targets),
        "bias": "none",
        "fan_in_fan_out": config.family == "gpt2",
        "inference_mode": True,
        "revision": sha256,  # of the base: PEFT warns of keys that it does not know
    }
    with atomic_folder(folder) as temporary:
        write_safetensors(temporary / ADAPTER_WEIGHTS, tensors, {"format": "pt"})
        write_json(temporary / ADAPTER_CONFIG, keys)


def is_output(name: str) -> bool:
    """Is this the B of a matrix that a block's step is proportional to?"""
    return name.endswith(UP) and f"{name.removesuffix(UP)}.weight".endswith(OUTPUTS)
