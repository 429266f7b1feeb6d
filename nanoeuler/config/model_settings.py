"""The configuration's section of the model: what a form's fields are called there, with ranges,
defaults and meanings. `nanoeuler/model/config.py` builds the form."""

from typing import Annotated, Literal

from annotated_types import Ge

from nanoeuler.storage.section import Section, key, optional, section


@section
class RopeScaling(Section):
    """Scaled rotary positions: `nanoeuler/model/rope_scaling.py` says what each type has."""

    # any text: ModelConfig says why other programs' types are not here
    type: str = key(
        "linear divides all rotary frequencies by factor, llama3 (as in Llama 3.1) and yarn the "
        "low ones only; a model without this section has plain rotary positions"
    )
    factor: float = key("by which the longest wavelengths grow, from 1 on", ge=1)
    original_context: int = optional(
        "llama3, yarn: tokens of the texts that the model was first trained on", ge=1
    )
    low_freq_factor: float = optional(
        "llama3: turns in the original context below which factor divides", gt=0
    )
    high_freq_factor: float = optional("llama3: turns above which nothing divides", gt=0)
    beta_fast: float = optional("yarn: turns above which nothing divides; left out, 32", gt=0)
    beta_slow: float = optional("yarn: turns below which factor divides; left out, 1", gt=0)
    attention_factor: float = optional(
        "yarn: factor on cosines and sines; left out, 0.1 · ln(factor) + 1", gt=0
    )
    truncate: bool = optional(
        "yarn: the ramp between the two begins and ends at whole pairs; left out, true"
    )


@section
class Model(Section):
    """The transformer; `ModelConfig` is built from this section, and has the presets."""

    preset: Literal["small", "medium", "base", "large", "gpt2", "gpt2-tiny", None] = key(
        "small has 1.05 M parameters, medium 11 M, base 116 M, large 267 M, gpt2 124 M, gpt2-tiny "
        "0.9 M; null means that every field is given",
        default=None,
    )
    family: Literal["llama", "gpt2"] = optional(
        "llama, or gpt2 with LayerNorm, GELU, learned positions and biases; left out, llama"
    )
    dim: int = optional("width of the hidden state", ge=1)
    heads: int = optional("query heads", ge=1)
    kv_heads: int = optional("key and value heads; each serves heads / kv_heads query heads", ge=1)
    layers: int = optional("blocks", ge=1)
    context: int = optional("tokens of a training row", ge=2)
    ffn: int = optional("inner width of the MLP", ge=1)
    head_size: int = optional("width of a head, an even number; left out, dim / heads", ge=0)
    mtp_heads: int = optional(
        "number of prediction heads, K; head k predicts the token k + 1 positions ahead", ge=1
    )
    mtp_weights: list[Annotated[float, Ge(0)]] = optional(
        "weights of the K head losses; left out, equal"
    )
    tied: bool = optional("head 0 shares its weights with the embedding")
    qk_norm: Literal["none", "rms", "weighted"] = optional(
        "RMSNorm of each head of queries and keys before the rotation, without a weight (rms) or "
        "with one (weighted); left out, none"
    )
    activation: Literal["swiglu", "geglu", "relu2"] = optional(
        "of the MLP of the Llama family: swiglu, geglu (its gate has GELU), or relu2 (max(x, 0)², "
        "without a gate); left out, swiglu"
    )
    qkv_bias: bool = optional(
        "the products of queries, keys and values have biases, as in Qwen2; left out, false"
    )
    windows: list[Annotated[int, Ge(0)]] = optional(
        "sliding windows of the layers' attention, over and over: tokens that a token sees, itself "
        "among them, or 0 for all before it; left out, 0"
    )
    rope_layers: list[Literal[0, 1]] = optional(
        "1 for each layer with rotary positions, 0 for each without, over and over; left out, 1"
    )
    window_rope_theta: float = optional(
        "base of the rotary frequencies in layers with a window, which are never scaled; left out, "
        "as in the other layers",
        ge=0,
    )
    post_norms: bool = optional(
        "a norm behind each block, too: x + norm(f(norm(x))), as in Gemma; left out, false"
    )
    embedding_scale: float = optional(
        "factor of the embeddings where they enter the stream; left out, 1", gt=0
    )
    attention_cap: float = optional(
        "soft cap of attention's scores: cap · tanh(score / cap) in their place, as in Gemma 2; "
        "left out, none",
        gt=0,
    )
    logit_cap: float = optional("soft cap of the logits, likewise; left out, none", gt=0)
    query_scalar: float = optional(
        "attention's scores are q · k / √query_scalar; left out, the head size", gt=0
    )
    norm_epsilon: float = optional("epsilon of the norms", gt=0)
    rope_theta: float = optional("base of the rotary frequencies", gt=1)
    rope_scaling: RopeScaling = optional(
        "rotary frequencies of a model that was first trained on shorter texts"
    )
    step_size: float = optional("h of x + h·f(x), the Euler step of a block", gt=0)
    vocab_size: int = optional(
        "set by tokenizer.vocab_size; given here it must agree, or with an init_from be larger, as "
        "where an imported model has rows that no token has",
        ge=272,
        le=2**20,
    )
