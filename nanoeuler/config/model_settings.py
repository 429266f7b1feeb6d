"""The configuration's section of the model: what a form's fields are called there, with ranges,
defaults and meanings. `nanoeuler/model/config.py` builds the form."""

from typing import Annotated, Literal

from annotated_types import Ge

from nanoeuler.storage.section import Section, key, section


@section
class RopeScaling(Section):
    """Scaled rotary positions: `nanoeuler/model/rope_scaling.py` says what each type has."""

    # any text: ModelConfig says why other programs' types are not here
    type: str = key(
        "linear divides all rotary frequencies by factor, llama3 (as in Llama 3.1) and yarn the "
        "low ones only; a model without this section has plain rotary positions"
    )
    factor: float = key("by which the longest wavelengths grow, from 1 on", ge=1)
    original_context: int = key(
        "llama3, yarn: tokens of the texts that the model was first trained on", optional=True, ge=1
    )
    low_freq_factor: float = key(
        "llama3: turns in the original context below which factor divides", optional=True, gt=0
    )
    high_freq_factor: float = key("llama3: turns above which nothing divides", optional=True, gt=0)
    beta_fast: float = key(
        "yarn: turns above which nothing divides; left out, 32", optional=True, gt=0
    )
    beta_slow: float = key(
        "yarn: turns below which factor divides; left out, 1", optional=True, gt=0
    )
    attention_factor: float = key(
        "yarn: factor on cosines and sines; left out, 0.1 · ln(factor) + 1", optional=True, gt=0
    )
    truncate: bool = key(
        "yarn: the ramp between the two begins and ends at whole pairs; left out, true",
        optional=True,
    )


@section
class Model(Section):
    """The transformer; `ModelConfig` is built from this section, and has the presets."""

    preset: Literal["small", "medium", "base", "large", "gpt2", "gpt2-tiny", None] = key(
        "small has 1.05 M parameters, medium 11 M, base 116 M, large 267 M, gpt2 124 M, gpt2-tiny "
        "0.9 M; null means that every field is given",
        default=None,
    )
    family: Literal["llama", "gpt2"] = key(
        "llama, or gpt2 with LayerNorm, GELU, learned positions and biases; left out, llama",
        optional=True,
    )
    dim: int = key("width of the hidden state", optional=True, ge=1)
    heads: int = key("query heads", optional=True, ge=1)
    kv_heads: int = key(
        "key and value heads; each serves heads / kv_heads query heads", optional=True, ge=1
    )
    layers: int = key("blocks", optional=True, ge=1)
    context: int = key("tokens of a training row", optional=True, ge=2)
    ffn: int = key("inner width of the MLP", optional=True, ge=1)
    head_size: int = key(
        "width of a head, an even number; left out, dim / heads", optional=True, ge=0
    )
    mtp_heads: int = key(
        "number of prediction heads, K; head k predicts the token k + 1 positions ahead",
        optional=True,
        ge=1,
    )
    mtp_weights: list[Annotated[float, Ge(0)]] = key(
        "weights of the K head losses; left out, equal", optional=True
    )
    tied: bool = key("head 0 shares its weights with the embedding", optional=True)
    qk_norm: Literal["none", "rms", "weighted"] = key(
        "RMSNorm of each head of queries and keys before the rotation, without a weight (rms) or "
        "with one (weighted); left out, none",
        optional=True,
    )
    activation: Literal["swiglu", "geglu", "relu2"] = key(
        "of the MLP of the Llama family: swiglu, geglu (its gate has GELU), or relu2 (max(x, 0)², "
        "without a gate); left out, swiglu",
        optional=True,
    )
    qkv_bias: bool = key(
        "the products of queries, keys and values have biases, as in Qwen2; left out, false",
        optional=True,
    )
    windows: list[Annotated[int, Ge(0)]] = key(
        "sliding windows of the layers' attention, over and over: tokens that a token sees, itself "
        "among them, or 0 for all before it; left out, 0",
        optional=True,
    )
    rope_layers: list[Literal[0, 1]] = key(
        "1 for each layer with rotary positions, 0 for each without, over and over; left out, 1",
        optional=True,
    )
    window_rope_theta: float = key(
        "base of the rotary frequencies in layers with a window, which are never scaled; left out, "
        "as in the other layers",
        optional=True,
        ge=0,
    )
    post_norms: bool = key(
        "a norm behind each block, too: x + norm(f(norm(x))), as in Gemma; left out, false",
        optional=True,
    )
    embedding_scale: float = key(
        "factor of the embeddings where they enter the stream; left out, 1", optional=True, gt=0
    )
    attention_cap: float = key(
        "soft cap of attention's scores: cap · tanh(score / cap) in their place, as in Gemma 2; "
        "left out, none",
        optional=True,
        gt=0,
    )
    logit_cap: float = key("soft cap of the logits, likewise; left out, none", optional=True, gt=0)
    query_scalar: float = key(
        "attention's scores are q · k / √query_scalar; left out, the head size", optional=True, gt=0
    )
    norm_epsilon: float = key("epsilon of the norms", optional=True, gt=0)
    rope_theta: float = key("base of the rotary frequencies", optional=True, gt=1)
    rope_scaling: RopeScaling = key(
        "rotary frequencies of a model that was first trained on shorter texts", optional=True
    )
    step_size: float = key("h of x + h·f(x), the Euler step of a block", optional=True, gt=0)
    vocab_size: int = key(
        "set by tokenizer.vocab_size; given here it must agree, or with an init_from be larger, as "
        "where an imported model has rows that no token has",
        optional=True,
        ge=272,
        le=2**20,
    )
