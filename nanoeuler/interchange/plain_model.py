"""A model in the terms of other programs: one head, h = 1, the names of Hugging Face."""

from dataclasses import dataclass, replace

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.transformers_config import transformers_type
from nanoeuler.model.weights_file import OUTPUTS, from_bf16, norms_of_ones, to_bf16

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Types of weights that a model is exported in, and their names in Hugging Face's files."""

NORM = "norm.weight"
"""End of the name of a norm's weight."""


@dataclass
class PlainModel:
    """A Llama, with QK-norm a Qwen3, or a GPT-2 that computes what a model of ours does."""

    config: ModelConfig
    tensors: dict[str, np.ndarray]  # float32, contiguous, in the shapes of Hugging Face's files


def plain_config(c: ModelConfig) -> ModelConfig:
    """The fields of the model that computes the same with one head and h = 1.

    The norm of q and k without weights is one with ones. Raises `UserError` for what other programs
    do not compute.
    """
    if (field := c.only_ours) is not None:
        raise UserError(
            f"model.{field} is {getattr(c, field)}, which other programs do not compute: this "
            "model cannot be exported; train one without it"
        )
    if c.family != "gpt2" and transformers_type(c) is None:
        raise UserError(
            "no other program computes a model of this form (model.activation, qk_norm, qkv_bias, "
            "windows, rope_layers, window_rope_theta, post_norms, embedding_scale, attention_cap, "
            "logit_cap and query_scalar together), so it cannot be exported; train one in the form "
            "of a model that they know"
        )
    qk_norm = "none" if c.qk_norm == "none" else "weighted"
    return replace(c, step_size=1.0, qk_norm=qk_norm, mtp_heads=1, mtp_weights=())


def plain_model(saved: SavedModel) -> PlainModel:
    """`saved` with h folded into the last matrix of each block, and head 0 only.

    x + h·W f(x) is x + (h·W) f(x), and a bias is scaled like W. Raises `UserError` like
    `plain_config`.
    """
    c, config = saved.config, plain_config(saved.config)
    buffer, ones = FlatBuffer(c, saved.parameters), norms_of_ones(c)
    tensors = {
        tensor.name: np.ascontiguousarray(buffer.in_file(tensor.name))
        if tensor.name in buffer.rows
        else ones[tensor.name]
        for tensor in tensor_table(config)
    }
    if c.step_size != 1.0:
        for name in tensors:
            if name.endswith(OUTPUTS):
                tensors[name] = tensors[name] * np.float32(c.step_size)
    return PlainModel(config, tensors)


def cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    """`tensor` in f32, in f16, or in bf16 as the upper halves of float32 (uint16).

    Raises `UserError` for a value that the type does not hold.
    """
    if dtype == "bf16":
        result = to_bf16(tensor)
        finite = np.isfinite(tensor).all() and np.isfinite(from_bf16(result)).all()
    else:
        with np.errstate(over="ignore"):
            result = tensor.astype(np.float16 if dtype == "f16" else np.float32, copy=False)
        finite = np.isfinite(result).all()
    if not finite:
        raise UserError(
            f"tensor {name} holds a value that is not finite in {dtype}; export the model with "
            "--dtype f32, or if that says the same, take an earlier model"
        )
    return result
