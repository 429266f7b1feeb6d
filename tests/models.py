"""Small models that several folders of tests share."""

import numpy as np

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer

ODD = {
    "vocab_size": 300,
    "dim": 48,
    "layers": 2,
    "heads": 6,
    "kv_heads": 2,
    "ffn": 50,
    "context": 37,
    "mtp_heads": 3,
    "step_size": 0.5,
    "tied": True,
}
"""Sizes that no vector, block or number of threads divides."""
TINY = ModelConfig(
    vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=20, context=8, mtp_heads=2
)


def wide_transformer(**changes: object) -> Transformer:
    """A model of 19 tokens, eight times as wide as a fresh one: its predictions differ clearly."""
    fields = {
        "vocab_size": 19,
        "dim": 16,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 11,
        "context": 8,
        "mtp_heads": 3,
    }
    config = ModelConfig.from_dict(fields | changes)
    parameters = initial_parameters(config, seed=3) * np.float32(8)
    return Transformer(config, parameters, ReferenceBackend())
