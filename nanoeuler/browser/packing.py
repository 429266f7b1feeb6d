"""A model as the scripts of a page take it: what they must know of it, and its weights."""

import dataclasses
from importlib import resources
from typing import Any

import numpy as np

from nanoeuler.browser.kernels import kernels
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.rotary import rope_scale
from nanoeuler.model.spec import head_name, tensor_table
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.tensors import Tensor
from nanoeuler.tokenizer import Tokenizer

SCRIPTS = (
    *("calculator", "tokenizer", "sampling", "device", "webgpu_ops", "javascript_ops", "model"),
)
"""Files of this folder that a page with a model has, in this order."""

BLOCK = 32
"""Numbers of a matrix in int8 that share a scale."""


def script(name: str) -> str:
    """The text of a script."""
    return (resources.files(__package__) / f"{name}.js").read_text(encoding="utf-8")


def is_known(config: ModelConfig) -> bool:
    """Does model.js have this form?"""
    return (
        not config.only_ours
        and not (config.post_norms or config.window_rope_theta)
        and not (config.attention_cap or config.logit_cap)
        and (config.activation, config.embedding_scale) == ("swiglu", 1)
    )


def describe(saved: SavedModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Configuration, names and sizes of the tensors, tokenizer, template, kernels."""
    config = saved.config
    return {
        "config": describe_config(config),
        "tensors": [[tensor.name, tensor.size] for tensor in written_tensors(config)],
        "tokenizer": describe_tokenizer(tokenizer)
        | {"calls": tokenizer.call_ids if saved.calculator else []},
        "prompt": surroundings(saved),
        "kernels": kernels(config),
    }


def describe_config(config: ModelConfig) -> dict[str, Any]:
    scale_I, factor = rope_scale(config)
    kinds = [config.layer_kind(layer) for layer in range(config.layers)]
    further = {"rope_scale": [scale_I.tolist(), factor], "layer_kinds": kinds}
    return dataclasses.asdict(config) | further


def written_tensors(config: ModelConfig) -> list[Tensor]:
    """All but the MTP heads: head 0 is the one that writes."""
    mtp_heads = {head_name(head) for head in range(1, config.mtp_heads)}
    return [tensor for tensor in tensor_table(config) if tensor.name not in mtp_heads]


def halves(saved: SavedModel) -> np.ndarray:
    """The written tensors one after another in bfloat16, as the upper halves of uint32."""
    buffer = FlatBuffer(saved.config, saved.parameters)
    tensors = written_tensors(saved.config)
    numbers = np.concatenate([buffer[tensor.name].reshape(-1) for tensor in tensors])
    return round_to_bfloat16(numbers).view(np.uint32)


def in_blocks(saved: SavedModel) -> bytes:
    """The written tensors with matrices in int8, for a page.

    First all vectors in bfloat16, one after another, then the codes of all matrices, a byte each,
    of blocks of `BLOCK` numbers, the last one filled with zeros, then the float32 scale of each
    block: a number is its code times that.
    """
    buffer, tensors = FlatBuffer(saved.config, saved.parameters), written_tensors(saved.config)
    arrays: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for tensor in tensors:
        arrays[is_vector(tensor)].append(buffer[tensor.name].reshape(-1))
    vectors, matrices = np.concatenate(arrays[True]), np.concatenate(arrays[False])
    blocks_NB = np.pad(matrices, (0, -len(matrices) % BLOCK)).reshape(-1, BLOCK)
    scales_N = (np.abs(blocks_NB).max(axis=1) / 127).astype("<f4")
    codes_NB = np.rint(blocks_NB / np.where(scales_N, scales_N, 1)[:, None]).astype(np.int8)
    rounded = (round_to_bfloat16(vectors).view(np.uint32) >> 16).astype("<u2")
    return b"".join(each.tobytes() for each in (rounded, codes_NB, scales_N))


def bytes_in_blocks(config: ModelConfig) -> int:
    """Bytes of `in_blocks`."""
    sizes = {True: 0, False: 0}
    for tensor in written_tensors(config):
        sizes[is_vector(tensor)] += tensor.size
    return 2 * sizes[True] + -(-sizes[False] // BLOCK) * (BLOCK + 4)


def is_vector(tensor: Tensor) -> bool:
    return len(tensor.shape) == 1


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even; still as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (rounded & 0xFFFF0000).astype(np.uint32).view(np.float32)


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary
    return {
        "tokens": [token.hex() for token in vocabulary.tokens],
        "specials": sorted(vocabulary.specials.values()),
        "merges": [[left, right] for left, right, _ in vocabulary.merges],
        "end": tokenizer.end_id,
    }


def surroundings(saved: SavedModel) -> list[str]:
    """The text in front of an instruction and behind it; empty for a base model."""
    if saved.template not in TEMPLATES:
        return ["", ""]
    before, _, after = TEMPLATES[saved.template]("\0").partition("\0")
    return [before, after]
