"""The GPT-2 family (Radford et al. 2019): biased attention and MLP, learned positions.

Names are those of Hugging Face's GPT-2, whose files hold the blocks' matrices as (in, out).
"""

from typing import Any

from nanoeuler.model.blocks.biased_attention import BiasedAttention
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.blocks.gelu import Gelu
from nanoeuler.model.config import ModelConfig

EMBEDDING = "transformer.wte.weight"
POSITIONS: str | None = "transformer.wpe.weight"
FINAL_NORM: tuple[str, ...] = ("transformer.ln_f.weight", "transformer.ln_f.bias")


def make_blocks(config: ModelConfig) -> list[Block[Any, Any]]:
    """The blocks of a model, from the embedding on."""
    return [
        block
        for layer in range(config.layers)
        for block in (BiasedAttention(config, layer), Gelu(config, layer))
    ]
