"""The families of models. A module for each says what is in front of, in, and behind its layers."""

from typing import Any, Protocol

from nanoeuler.model import gpt2, llama
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.config import ModelConfig


class Family(Protocol):
    """The interface of a family's module."""

    EMBEDDING: str
    """Name of the embedding, which is the first head too where they are tied."""
    POSITIONS: str | None
    """Name of the table of learned positions, (context, dim)."""
    FINAL_NORM: tuple[str, ...]
    """Names of the weight of the norm behind the last block and, of a LayerNorm, of its bias."""

    def make_blocks(self, config: ModelConfig) -> list[Block[Any, Any]]:
        """The blocks of a model, from the embedding on."""


FAMILIES: dict[str, Family] = {"llama": llama, "gpt2": gpt2}


def family_of(config: ModelConfig) -> Family:
    return FAMILIES[config.family]


def make_blocks(config: ModelConfig) -> list[Block[Any, Any]]:
    """The blocks of a model, from the embedding on."""
    return family_of(config).make_blocks(config)
