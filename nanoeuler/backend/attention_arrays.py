"""The four arrays that belong to one attention, or the gradients of them."""

from dataclasses import dataclass
from typing import Any


@dataclass
class AttentionArrays:
    """By rows, tokens and heads; query, key and value may be parts of a packed product."""

    query: Any  # (B, T, H, E), like out
    key: Any  # (B, T, G, E), like value
    value: Any
    out: Any
