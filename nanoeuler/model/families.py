"""The families of models: what is in front of, in, and behind the layers of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanoeuler.model.blocks.adapted import Adapted
from nanoeuler.model.blocks.attention import Attention
from nanoeuler.model.blocks.biased_attention import BiasedAttention
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.blocks.dropped import Dropped
from nanoeuler.model.blocks.mlp import Gelu, Relu2
from nanoeuler.model.blocks.swiglu import Swiglu
from nanoeuler.model.blocks.varied import VariedAttention, VariedMlp
from nanoeuler.model.config import ModelConfig


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    layer: Callable[[ModelConfig, int], tuple[Block[Any, Any], ...]]
    """The blocks of a layer of that number."""
    embedding: str
    """Name of the embedding, which is the first head too where they are tied."""
    positions: str | None
    """Name of the table of learned positions, (context, dim)."""
    final_norm: tuple[str, ...]
    """Names of the weight of the norm behind the last block and, of a LayerNorm, of its bias."""


def llama_layer(config: ModelConfig, layer: int) -> tuple[Block[Any, Any], ...]:
    c = config
    varies = c.qkv_bias or c.windows or c.rope_layers or c.post_norms or c.attention_cap
    attention = VariedAttention if varies else Attention
    mlp: type[Relu2 | Swiglu] = Relu2 if c.activation == "relu2" else Swiglu
    if c.activation == "geglu" or c.post_norms:
        mlp = VariedMlp
    return attention(config, layer), mlp(config, layer)


def gpt2_layer(config: ModelConfig, layer: int) -> tuple[Block[Any, Any], ...]:
    """Biased attention and MLP (Radford et al. 2019).

    Names are those of Hugging Face's GPT-2, whose files hold the blocks' matrices as (in, out).
    """
    return BiasedAttention(config, layer), Gelu(config, layer)


FAMILIES = {
    "llama": Family(llama_layer, "model.embed_tokens.weight", None, ("model.norm.weight",)),
    "gpt2": Family(
        gpt2_layer,
        "transformer.wte.weight",
        "transformer.wpe.weight",
        ("transformer.ln_f.weight", "transformer.ln_f.bias"),
    ),
}


def family_of(config: ModelConfig) -> Family:
    return FAMILIES[config.family]


def make_blocks(config: ModelConfig, dropout: float = 0.0) -> list[Block[Any, Any]]:
    """The blocks of a model, from the embedding on; `dropout` is the share of `Dropped`."""
    family = family_of(config)
    blocks = [block for layer in range(config.layers) for block in family.layer(config, layer)]
    if config.lora is not None:
        return [Adapted(block, config.lora, index) for index, block in enumerate(blocks)]
    if dropout:
        return [Dropped(block, dropout, index) for index, block in enumerate(blocks)]
    return blocks
