"""The models that are exported: sizes, and what their form can vary in."""

from typing import Any

from tests.small_model import SHAPE

VOCABULARY = 300
GPT2 = {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "tied": True}
FIELDS = SHAPE | {"vocab_size": VOCABULARY, "context": 64}
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "original_context": 40,  # so that long texts go beyond, and pairs lie on both sides of the ramp
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"type": "yarn", "factor": 4.0, "original_context": 40, "beta_fast": 32.0}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head": {"mtp_heads": 1},
    "tied": {"tied": True},
    "no groups": {"kv_heads": 4},
    "one key head": {"kv_heads": 1},
    "wide heads": {"head_size": 16},
    "narrow heads": {"head_size": 6},
    "h of a half": {"step_size": 0.5},
    "another theta": {"rope_theta": 500.0},
    "another epsilon": {"norm_epsilon": 1e-2},
    "normed q and k": {"qk_norm": "rms"},
    "weighted norms": {"qk_norm": "weighted", "step_size": 0.7, "tied": True},
    "gpt2": GPT2,
    "gpt2, untied, more heads": GPT2 | {"tied": False, "mtp_heads": 2, "heads": 8, "kv_heads": 8},
    "gpt2, h of a half, odd": GPT2 | {"step_size": 0.5, "layers": 3, "ffn": 13},
    "llama3 positions": {"rope_scaling": LLAMA3, "head_size": 16},
    "linear positions": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "yarn positions": {"rope_scaling": YARN, "head_size": 16},
    "yarn positions, normed q and k": {"rope_scaling": YARN, "qk_norm": "weighted"},
    "biases": {"qkv_bias": True},
    "a window in all layers": {"windows": [9], "head_size": 8},
    "a window in every second layer": {"windows": [9, 0]},
    "biases, and a window in the last layer": {"qkv_bias": True, "windows": [0, 9], "head_size": 8},
    "normed q and k, and windows": {"qk_norm": "rms", "windows": [9, 0]},
    "every fourth layer without rotation": {"rope_layers": [1, 1, 1, 0], "layers": 5},
    "as Gemma 2": {
        "activation": "geglu",
        "post_norms": True,
        "embedding_scale": 32**0.5,
        "windows": [9, 0],
        "attention_cap": 1.5,
        "logit_cap": 2.5,
        "query_scalar": 5,
        "tied": True,
    },
    "as Gemma 3": {
        "activation": "geglu",
        "post_norms": True,
        "embedding_scale": 32**0.5,
        "qk_norm": "weighted",
        "windows": [9, 0],
        "window_rope_theta": 100.0,
        "tied": True,
    },
    "odd": {"dim": 46, "heads": 1, "kv_heads": 1, "layers": 3, "ffn": 13},
}
