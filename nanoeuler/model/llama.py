"""The Llama family: an attention block and an MLP block in each layer."""

from typing import Any

from nanoeuler.model.blocks.attention import Attention
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.blocks.relu2 import Relu2
from nanoeuler.model.blocks.swiglu import Swiglu
from nanoeuler.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
POSITIONS: str | None = None
FINAL_NORM: tuple[str, ...] = ("model.norm.weight",)


def make_blocks(config: ModelConfig) -> list[Block[Any, Any]]:
    """The blocks of a model, from the embedding on."""
    mlp: type[Relu2 | Swiglu] = Relu2 if config.activation == "relu2" else Swiglu
    return [
        block
        for layer in range(config.layers)
        for block in (Attention(config, layer), mlp(config, layer))
    ]
