"""The model that a config of transformers describes.

Settings under which transformers would compute something else than this project are refused, each
by name.
"""

import math
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError, brief
from nanoeuler.model.config import LARGEST, ModelConfig
from nanoeuler.model.rope_scaling import read_rope_scaling

GPT2, GEMMA2, GEMMA3 = "GPT2LMHeadModel", "Gemma2ForCausalLM", "Gemma3ForCausalLM"
GEMMA = {"activation": "geglu", "post_norms": True}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_norm": "weighted"},
    "SmolLM3ForCausalLM": {},
    GEMMA2: GEMMA,
    GEMMA3: GEMMA | {"qk_norm": "weighted"},
    GPT2: {},
}
"""Class in transformers → fields that its models have without saying so."""
FIELDS = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "context": "max_position_embeddings",
}
"""Field of a model → its key in the config, which must be there."""
GPT2_FIELDS = {
    "vocab_size": "vocab_size",
    "dim": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "context": "n_positions",
}
"""Fields of a GPT-2, likewise."""
ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (),
    "partial_rotary_factor": (1.0,),
}
"""Key of a config → the values that mean what this project computes; so does none."""
GPT2_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (),
}
"""Keys of a GPT-2's config, likewise."""
GEMMA_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "use_bidirectional_attention": (False,),
    "quantization_config": (),
}
"""Keys of a Gemma's config, likewise."""
SETTINGS = {GPT2: GPT2_ONLY, GEMMA2: GEMMA_ONLY, GEMMA3: GEMMA_ONLY}
"""By architecture; ONLY for the others."""
GEMMA_NUMBERS = {
    "attention_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
    "query_scalar": "query_pre_attn_scalar",
}
"""Field of a Gemma → its key, which may be null."""
ORIGINAL = "original_max_position_embeddings"
"""Key of the context that scaled rotary positions stretch."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "Qwen3ForCausalLM": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "SmolLM3ForCausalLM": {
        "num_key_value_heads": 4,
        "no_rope_layer_interval": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
    GEMMA2: {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    GEMMA3: {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
}
"""transformers' values for keys that are left out, where they differ from our defaults. (A null
differs again: no window, or as many key heads as query heads.)
"""
SLIDES = "use_sliding_window"
"""Without it, classes but Mistral's and Gemma's leave `sliding_window` alone."""
INTERVALS = ("no_rope_layer_interval", "sliding_window_pattern")
"""Keys that say the how-many-th layers are of another kind."""
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
"""Name of a layer's attention → has it the window?"""


def read_config(path: Path, keys: Any) -> ModelConfig:
    """The model that a config of transformers describes."""
    if not isinstance(keys, dict):
        raise UserError(f"{path}: not the config of a model; give Hugging Face's folder of one")
    if "nanoeuler" in keys:
        raise UserError(f"{path.parent}: a nanoeuler model already; use it as it is")
    architectures = keys.get("architectures") or [None]
    architecture = architectures[0] if isinstance(architectures, list) else architectures
    if architecture not in list(ARCHITECTURES):
        raise UserError(
            f"{path}: its architecture is {brief(architecture)}; "
            f"import reads {', '.join(ARCHITECTURES)}"
        )
    keys = DEFAULTS.get(architecture, {}) | keys
    check_settings(path, keys, architecture)
    names = GPT2_FIELDS if architecture == GPT2 else FIELDS
    missing = [key for key in names.values() if type(keys.get(key)) is not int]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}, or it is no whole number")
    for field, key in names.items():  # before lists are made of so many
        if not 1 <= keys[key] <= LARGEST[field]:
            raise UserError(
                f"{path}: {key} is {brief(keys[key])}: it must be at least 1 and at most "
                f"{LARGEST[field]}"
            )
    fields = {field: keys[key] for field, key in names.items()} | {"mtp_heads": 1}
    if architecture == GPT2:
        fields |= gpt2_fields(keys)
    else:
        fields |= llama_fields(path, keys, architecture)
    try:
        return ModelConfig.from_dict(fields)
    except UserError as error:
        words = str(error)
        for field, key in GEMMA_NUMBERS.items():
            words = words.replace(f"model.{field}", key)
        raise UserError(f"{path}: {words}") from error


def gpt2_fields(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields of a GPT-2."""
    tied = keys.get("tie_word_embeddings")
    return {
        "family": "gpt2",
        "kv_heads": keys["n_head"],
        "ffn": keys.get("n_inner") or 4 * keys["n_embd"],
        "norm_epsilon": keys.get("layer_norm_epsilon", 1e-5),
        "tied": True if tied is None else tied,
    }


def llama_fields(path: Path, keys: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The other fields of a model of the Llama family."""
    return {
        "kv_heads": keys.get("num_key_value_heads") or keys["num_attention_heads"],
        "head_size": keys.get("head_dim") or 0,
        "norm_epsilon": keys.get("rms_norm_eps", 1e-6),
        **(gemma3_positions if architecture == GEMMA3 else rotary_fields)(path, keys),
        **layer_fields(path, keys, architecture),
        "tied": keys.get("tie_word_embeddings") or False,
        **ARCHITECTURES[architecture],
        **(gemma_fields(keys) if architecture in (GEMMA2, GEMMA3) else {}),
    }


def check_settings(path: Path, keys: Mapping[str, Any], architecture: str) -> None:
    for key, allowed in SETTINGS.get(architecture, ONLY).items():
        value = keys.get(key)
        if value is not None and value not in allowed:
            raise UserError(
                f"{path}: {key} is {brief(value)}, which a nanoeuler model does not have; "
                "give a model without it"
            )


def layer_fields(path: Path, keys: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Which layers have rotary positions, and which a sliding window."""
    layers = range(keys["num_hidden_layers"])
    rope_layers = [1 for _ in layers]
    for key in {*INTERVALS, "max_window_layers"} & keys.keys():
        if type(keys[key]) is not int or keys[key] < (key in INTERVALS):
            raise UserError(f"{path}: {key} is {brief(keys[key])}, which is no number of layers")
    if architecture == "SmolLM3ForCausalLM":
        usual = [int((layer + 1) % keys["no_rope_layer_interval"] != 0) for layer in layers]
        rope_layers = list_of_layers(path, keys, "no_rope_layers", (0, 1)) or usual
    window = keys.get("sliding_window")
    match architecture:
        case "MistralForCausalLM":
            sliding = [True for _ in layers]
        case "SmolLM3ForCausalLM":
            sliding = [not rotates for rotates in rope_layers]
        case "Qwen2ForCausalLM" | "Qwen3ForCausalLM":
            sliding = [layer >= keys["max_window_layers"] for layer in layers]
        case "Gemma2ForCausalLM":
            sliding = [layer % 2 == 0 for layer in layers]
        case "Gemma3ForCausalLM":
            sliding = [(layer + 1) % keys["sliding_window_pattern"] != 0 for layer in layers]
        case _:
            window = None
    always = architecture in ("MistralForCausalLM", GEMMA2, GEMMA3)
    if window is None or not (always or keys.get(SLIDES)):
        return {"rope_layers": rope_layers}
    if type(window) is not int or window < 1:
        raise UserError(f"{path}: sliding_window is {brief(window)}, which is no number of tokens")
    if architecture != "MistralForCausalLM":
        named = list_of_layers(path, keys, "layer_types", LAYER_TYPES)
        sliding = [LAYER_TYPES[name] for name in named] if named else sliding
    return {"rope_layers": rope_layers, "windows": [window * each for each in sliding]}


def gemma_fields(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Scales and soft caps."""
    numbers = {field: keys.get(key) for field, key in GEMMA_NUMBERS.items()}
    return {"embedding_scale": math.sqrt(keys["hidden_size"])} | numbers


def gemma3_positions(path: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary positions of the two kinds of layers: since transformers 5 each has an entry of
    its own in `rope_parameters`."""
    both = keys.get("rope_parameters")
    if not isinstance(both, dict) or "full_attention" not in both:
        local = keys["rope_local_base_freq"]
        return rotary_fields(path, keys) | {"window_rope_theta": local}
    whole, local = both["full_attention"], both.get("sliding_attention") or {}
    if not isinstance(local, dict) or local.get("rope_type", "default") != "default":
        raise UserError(
            f"{path}: rope_parameters.sliding_attention is {brief(local)}, but positions in "
            "windows are not scaled in a nanoeuler model; give another one"
        )
    found = rotary_fields(path, {**keys, "rope_parameters": whole, "rope_scaling": None})
    return found | {"window_rope_theta": local.get("rope_theta", 10_000.0)}


def list_of_layers(path: Path, keys: Mapping[str, Any], key: str, known: Container[Any]) -> Any:
    """The list of something for each layer under `key`; None where there is none."""
    found = keys.get(key)
    if found is None:
        return None
    layers = keys["num_hidden_layers"]
    if not isinstance(found, list) or len(found) != layers:
        raise UserError(
            f"{path}: {key} is {brief(found)}: it must be a list for {layers} layers; correct it"
        )
    strange = [each for each in found if not isinstance(each, int | str) or each not in known]
    if strange:
        raise UserError(
            f"{path}: {key} has {brief(strange[0])}, which a nanoeuler model does not have; give a "
            "model without it"
        )
    return found


def rotary_fields(path: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Base and scaling of rotary positions: in `rope_parameters` since transformers 5, before in
    `rope_scaling` and beside it."""
    named = "rope_scaling" if keys.get("rope_scaling") else "rope_parameters"
    rope = keys.get(named) or {}
    if not isinstance(rope, dict):
        raise UserError(f"{path}: {named} is {brief(rope)}: it must be an object; correct it")
    found = {"rope_theta": rope.get("rope_theta", keys.get("rope_theta", 10_000.0))}
    type_key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.get(type_key, "default")
    rest = {key: rope[key] for key in rope if key not in ("rope_type", "type", "rope_theta")}
    if kind == "default":
        if rest:
            raise UserError(
                f"{path}: {named} has {brief(min(rest))}, which plain rotary positions of a "
                "nanoeuler model do not have; give a model without it"
            )
        return found
    if kind in ("llama3", "yarn"):
        # transformers prefers the one beside them, and takes the whole context where there is none
        inside = rest.pop(ORIGINAL, keys["max_position_embeddings"])
        rest["original_context"] = keys.get(ORIGINAL, inside)
    try:
        return found | {"rope_scaling": read_rope_scaling(rest | {"type": kind})}
    except UserError as error:
        words = str(error).replace("original_context", ORIGINAL)
        words = words.replace("model.rope_scaling.type", f"{named}.{type_key}")
        words = words.replace("model.rope_scaling", named)
        raise UserError(f"{path}: {words}") from error
