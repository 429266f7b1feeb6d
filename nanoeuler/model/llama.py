"""The Llama family: an attention block and a SwiGLU block in each layer."""

from typing import Any

from nanoeuler.model.blocks.attention import Attention
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.blocks.swiglu import Swiglu
from nanoeuler.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
POSITIONS: str | None = None
FINAL_NORM: tuple[str, ...] = ("model.norm.weight",)


def make_blocks(config: ModelConfig) -> list[Block[Any, Any]]:
    """The blocks of a model, from the embedding on."""
    return [
        block
        for layer in range(config.layers)
        for block in (Attention(config, layer), Swiglu(config, layer))
    ]
