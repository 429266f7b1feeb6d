"""Cases of the checks: elementwise ops, and small models of every form."""

from typing import Any

ELEMENTWISE = ("gelu", "relu2")
"""Ops op(x, out) with op_backward(dout, x, dx, out): see `gelu` in the contract."""

TINY: dict[str, Any] = {
    "vocab_size": 19,
    "dim": 8,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 11,
    "context": 8,
    "mtp_heads": 3,
}
"""Small enough to change every parameter; ffn and vocabulary are odd, so that there is padding."""

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "grouped heads, K = 3, two documents a row": ({}, 7),
    "tied heads, head size apart from dim / heads": (
        {"tied": True, "head_size": 6, "kv_heads": 1},
        5,
    ),
    "K = 1, step size 0.5, full heads": (
        {"mtp_heads": 1, "step_size": 0.5, "kv_heads": 4, "layers": 1},
        3,
    ),
    "K = 4, unequal head weights, a row of one token": (
        {"mtp_heads": 4, "mtp_weights": [1.0, 0.5, 0.25, 0.125], "layers": 1},
        1,
    ),
    "QK-norm without weights": ({"qk_norm": "rms", "mtp_heads": 1, "head_size": 6}, 5),
    "QK-norm with weights, one key/value head": (
        {"qk_norm": "weighted", "mtp_heads": 1, "head_size": 6, "kv_heads": 1},
        5,
    ),
    "ReLU², step size 0.5, two documents a row": (
        {"activation": "relu2", "mtp_heads": 1, "step_size": 0.5},
        5,
    ),
    "GPT-2, two layers, K = 2, tied heads": (
        {"family": "gpt2", "kv_heads": 4, "mtp_heads": 2, "tied": True},
        7,
    ),
    "GPT-2, one layer, step size 0.5, two documents a row": (
        {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "step_size": 0.5, "layers": 1},
        5,
    ),
    "one layer, K = 2, step size 0.5, two documents a row": (
        {"mtp_heads": 2, "step_size": 0.5, "layers": 1},
        5,
    ),
}
"""Name → the fields that differ from `TINY`, and the odd length of the rows.

The last two cases are the quick form: they are cheap, and no op of their family idles in them.
"""
