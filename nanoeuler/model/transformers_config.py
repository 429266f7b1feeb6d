"""The config by which transformers computes what a model of ours does, if it has a class for it."""

import math
from dataclasses import asdict
from typing import Any

from nanoeuler.model.config import ModelConfig

TRANSFORMERS = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
}
"""`model_type` of the Llama family's models in transformers → the class's name."""


GEMMA = {"post_norms": True, "activation": "geglu", "qkv_bias": False, "rope_layers": ()}
"""Fields of a Gemma 2, and with a norm of q and k of a Gemma 3."""


def transformers_keys(config: ModelConfig, end_id: int, dtype: str = "float32") -> dict[str, Any]:
    """The keys of a Hugging Face config, or none where its classes would compute something else.

    Readers ignore the heads beyond head 0.
    """
    keys = gpt2_keys if config.family == "gpt2" else llama_keys
    return {} if config.step_size != 1.0 or config.only_ours else keys(config, end_id, dtype)


def gpt2_keys(config: ModelConfig, end_id: int, dtype: str) -> dict[str, Any]:
    """Those of a GPT-2."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ffn,
        "n_positions": config.context,
        "n_ctx": config.context,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_epsilon,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": config.tied,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }


def llama_keys(config: ModelConfig, end_id: int, dtype: str) -> dict[str, Any]:
    """Those of the class that computes the same; none where there is no such class."""
    model_type = transformers_type(config)
    if model_type is None:
        return {}
    return {
        "architectures": [f"{TRANSFORMERS[model_type]}ForCausalLM"],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        **rope_keys(config),
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        **layer_keys(config, model_type),
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }


def transformers_type(config: ModelConfig) -> str | None:
    """The simplest of TRANSFORMERS that computes what `config` does; None: there is none.

    Qwen2 has biases, Qwen3 norms of q and k, Mistral a window in all layers, and SmolLM3 layers
    without rotary positions. All but Llama and Mistral name the layers that have the window.
    """
    c = config
    windows = {c.layer_kind(layer)[0] for layer in range(c.layers)}
    if len(windows - {0}) > 1:
        return None
    if GEMMA.items() <= asdict(c).items():
        scaled = math.isclose(c.embedding_scale, math.sqrt(c.dim), rel_tol=1e-6)
        if not scaled or (c.query_scalar or 0) % 1:
            return None
        if c.qk_norm == "none":
            return None if c.window_rope_theta or c.dim % c.heads else "gemma2"
        known = c.window_rope_theta or windows == {0} or c.rope_scaling is None
        return "gemma3_text" if known else None
    if c.post_norms or c.activation != "swiglu" or c.embedding_scale != 1 or c.window_rope_theta:
        return None
    if (c.attention_cap, c.logit_cap, c.query_scalar) != (None, None, None):
        return None
    match c.qkv_bias, c.qk_norm, bool(c.rope_layers):
        case False, "none", False if len(windows) == 1:
            return "mistral" if max(windows) else "llama"
        case False, "none", _:
            return "smollm3"
        case True, "none", False:
            return "qwen2"
        case False, _, False:
            return "qwen3"
    return None


def layer_keys(config: ModelConfig, model_type: str) -> dict[str, Any]:
    """What says which layers have windows, and which rotary positions."""
    kinds = [config.layer_kind(layer) for layer in range(config.layers)]
    window = max(window for window, _ in kinds)
    keys: dict[str, Any] = {}
    if model_type == "mistral":
        return {"sliding_window": window}
    if model_type in ("gemma2", "gemma3_text"):
        keys = {
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": int(config.query_scalar or config.head_size),
            "attn_logit_softcapping": config.attention_cap,
            "final_logit_softcapping": config.logit_cap,
            "pad_token_id": None,
        }
        window = window or config.context
    if model_type == "gemma3_text":
        keys["rope_local_base_freq"] = config.window_rope_theta or config.rope_theta
    if model_type == "smollm3":
        layers = [int(rotates) for _, rotates in kinds]
        keys = {"no_rope_layers": layers, "pad_token_id": None}  # else it is 128,004
    if window:
        names = ["sliding_attention" if each else "full_attention" for each, _ in kinds]
        keys |= {"use_sliding_window": True, "sliding_window": window, "layer_types": names}
    return keys


def rope_keys(config: ModelConfig) -> dict[str, Any]:
    """Scaled rotary positions under transformers' names, in the place that its versions 4 and 5
    read."""
    if config.rope_scaling is None:
        return {}
    keys = asdict(config.rope_scaling)
    keys = {"rope_type": keys.pop("type"), **keys}
    if "original_context" in keys:
        keys["original_max_position_embeddings"] = keys.pop("original_context")
    return {"rope_scaling": keys}
