"""Adapters of low rank (LoRA, Hu et al. 2021): a model with them, merged into it, and their folder.

The folder is PEFT's: `adapter_config.json`, and `adapter_model.safetensors` with A and B of each
matrix. They fit the model folder that they were trained on, which transformers reads: where that
has outputs that are multiplied by h, so has B.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nanoeuler.backend.quantized import in_floats
from nanoeuler.errors import UserError, brief
from nanoeuler.model.blocks.adapted import target_of
from nanoeuler.model.config import Lora, ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.spec import block_matrices
from nanoeuler.model.tensors import Tensor
from nanoeuler.model.weights_file import OUTPUTS, Later, norms_of_ones, write_safetensors
from nanoeuler.storage.files import write_json
from nanoeuler.storage.folders import atomic_folder

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Prefix of the names in PEFT's files."""
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


def merge(config: ModelConfig, parameters: np.ndarray, trained: np.ndarray) -> None:
    """Let `parameters`, a flat buffer of the model without adapters, compute what it computes with
    those of `trained`, a flat buffer of them."""
    buffer = FlatBuffer(replace(config, lora=None), parameters)
    for name, change in changes(config, trained).items():
        buffer[name][...] += change()


def merged(config: ModelConfig, base: QuantizedBuffer, trained: np.ndarray) -> dict[str, Later]:
    """The float32 tensors of a model folder that computes what `base` does with adapters."""
    changed = changes(config, trained)

    def make(row: Tensor) -> np.ndarray:
        values = in_floats(base[row.name])
        if row.name in changed:
            values = values + changed[row.name]()
        return values.T if row.transposed else values

    own = {
        row.name: Later(row.shape[:: -1 if row.transposed else 1], make, row) for row in base.table
    }
    ones = norms_of_ones(base.config).items()
    return own | {name: Later(each.shape, np.ones, each.shape) for name, each in ones}


def changes(config: ModelConfig, trained: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Matrix → alpha / rank · B A, computed when it is asked for."""
    lora, adapters = config.lora, FlatBuffer(config, trained)
    assert lora is not None
    scale = lora.alpha / lora.rank

    def change(module: str) -> np.ndarray:
        # BLAS and einsum add up in another order, or round once for two, on other processors
        up_OR, down_RI = adapters.in_file(module + UP), adapters[module + DOWN]
        return scale * np.array([(up_R[:, None] * down_RI).sum(axis=0) for up_R in up_OR])

    modules = (name.removesuffix(DOWN) for name in adapters.rows if name.endswith(DOWN))
    return {f"{module}.weight": partial(change, module) for module in modules}


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
