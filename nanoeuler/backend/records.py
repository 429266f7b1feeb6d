"""The records that ops take: arrays that belong together, and the forms of a model's blocks."""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Array = Any
"""An array of the engine: NumPy's or CuPy's."""

RopeTable = tuple[Array, Array]
"""Cosines and sines of the rotary angles, each (positions, head_size / 2)."""


class Rotation(NamedTuple):
    """Where tokens stand, and the angles by which `rope` rotates what stands there."""

    positions_N: Array
    table: RopeTable


class AttentionArrays(NamedTuple):
    """The arrays of one attention, or their gradients; q, k, v may be parts of a packed product.
    And the soft cap of its scores."""

    query: Array  # (B, T, H, E), like out
    key: Array  # (B, T, G, E), like value
    value: Array
    out: Array
    cap: float = 0.0  # 0: none


class RmsNorm(NamedTuple):
    """A norm at one point of the residual stream: where it reads and writes."""

    x_ND: Array  # the residual stream at this point
    weight_D: Array
    epsilon: float
    out_ND: Array
    inverse_rms_N: Array  # 1 / √(mean(x²) + ε), kept for the backward pass


class LayerNorm(NamedTuple):
    """A LayerNorm at one point of the residual stream; its backward pass recomputes the mean."""

    x_ND: Array
    weight_D: Array
    bias_D: Array
    epsilon: float
    out_ND: Array
    inverse_rms_N: Array  # 1 / √(mean((x − mean)²) + ε)


Norm = RmsNorm | LayerNorm


class NormGradients(NamedTuple):
    """Outputs of the backward pass of a norm."""

    dx_ND: Array
    dweight_D: Array
    dbias_D: Array = None  # of a LayerNorm
    add_to_dx: bool = False  # dx holds the gradient that flows past the norm along the stream
    accumulate: bool = False  # add to the gradients of weight and bias
    out_ND: Array | None = None  # the norm's output once more, maybe in the place of `dout`


class EulerStep(NamedTuple):
    """A step of the residual stream behind a product, and the norm behind it.

    norm.x = x + step_size · (product + bias), then the norm.
    """

    x_ND: Array
    delta_ND: Array  # scratch for the product
    step_size: float
    norm: Norm
    bias_D: Array | None = None  # with one the norm is a LayerNorm


class HeadNorm(NamedTuple):
    """An RMSNorm of every head of q or k, with arrays of its own."""

    weight_E: Array | None  # of all heads; None: all ones
    epsilon: float
    raw_NHE: Array  # contiguous, `residual`: the heads before the norm, kept for the backward pass
    inverse_rms_NH: Array
    scratch_NHE: Array  # contiguous, `activation`
    dscratch_NHE: Array  # the same; for the backward pass alone


class Adapter(NamedTuple):
    """A change of low rank to some rows of a matrix (Hu et al. 2021), or its gradients."""

    rows: slice
    down_RI: Array  # A
    up_RO: Array  # Bᵀ


class AdaptedMatrix(NamedTuple):
    """A frozen matrix with adapters: x Wᵀ, and scale · (dropout(x) Aᵀ) Bᵀ added to the columns of
    each adapter's rows."""

    weight_OI: Array  # None where this has gradients
    adapters: list[Adapter]
    scale: float
    salt: int  # tells the random numbers of dropout from those of other matrices


class GateUp(NamedTuple):
    """The packed product of an MLP with gates, or its gradient."""

    packed_NO: Array
    gate: slice  # its columns
    up: slice

    @property
    def parts(self) -> tuple[Array, Array]:
        """Gate and up, (N, F) each."""
        return self.packed_NO[:, self.gate], self.packed_NO[:, self.up]


class LogitRows(NamedTuple):
    """Logits and, for each of their rows, what a loss takes and finds."""

    logits_RV: Array  # a backward pass puts their gradient in their place
    targets_R: Array  # −1: none, so that log-probability and gradient are 0
    logprobs_R: Array  # of the targets: found
    lse_R: Array  # log Σ exp(logits): found
    weights_R: Array = None  # the loss is −Σ weights · logprobs


class ChoiceRows(NamedTuple):
    """B rows that an engine chooses a token for; see `ChoosingBackend.choose`."""

    settings: Array  # int64: temperature, top-p, seed and top-k; (4) for all rows, or (B, 4)
    draws_B: Array  # int64: number of the token in its row's sequence, for the random numbers
    chosen_B: Array
    tokens_B: Array  # the same for the next step, with 0 instead of −1
    lengths_B: Array | None = None  # tokens in the cache


class DraftRows(NamedTuple):
    """State of B rows that decode a token and M drafts in a pass; ops bring it up to date."""

    tokens_B: Array  # the last token accepted
    drafts_BM: Array
    lengths_B: Array  # tokens in the cache
    draws_B: Array  # random numbers drawn so far


class PreferencePairs(NamedTuple):
    """The preference pairs of R rows, at most P in each."""

    spans_RP3: Array  # chosen: tokens span 0 to span 1; rejected: span 1 to span 2
    reference_RP2: Array  # float64: log-probability of each side under the reference
    scales_RP2: Array  # β, or β per token
    shares_RP: Array  # weight of each pair's loss; 0 for an empty slot


class AdamWConstants(NamedTuple):
    """The constants of AdamW; the learning rate comes from the schedule."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


class ParameterRun(NamedTuple):
    """Neighbouring tensors in the flat buffers that AdamW moves alike."""

    part: slice  # where they lie
    decays: bool  # whether weight decay pulls at them
    rate: float = 1.0  # multiple of the learning rate


class MuonConstants(NamedTuple):
    """The constants of Muon; the learning rate comes from the schedule."""

    momentum: float
    weight_decay: float
    polynomials: tuple[tuple[float, float, float], ...]
    """(a, b, c) of each Newton–Schulz iteration X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X."""


class MatrixGroup(NamedTuple):
    """Matrices of one shape that Muon moves, in the flat buffers."""

    rows: int  # as they are stored, with padding
    columns: int
    offsets: tuple[int, ...]  # of each matrix, in elements
    scale: float  # of its update, which else has singular values near 1


@dataclass
class FlatState:
    """The flat buffers of an update, laid out by the tensor table."""

    parameters: Array
    working: Array  # the copy that products read; `parameters` itself where their types agree
    gradients: Array


# ---- blocks


@functools.cache
def defaults_of(form: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that have a default, by name."""
    fields = dataclasses.fields(form)
    return [(f.name, f.default) for f in fields if f.default is not dataclasses.MISSING]


@dataclass(frozen=True)
class BlockForm:
    """The function that a block computes, without its weights. A field with a default is a variant.

    An engine's fused path names the variants that it knows: a block with any other variant takes
    the composed path, so that a new variant is never silently left out.
    """

    step_size: float
    epsilon: float  # of the norm in front
    rank: int = field(default=0, kw_only=True)  # of adapters, where its matrices have any
    dropout: float = field(default=0.0, kw_only=True)  # while it is trained

    @functools.cached_property
    def variants(self) -> frozenset[str]:
        """Names of the fields that differ from their defaults."""
        kind: Any = type(self)
        return frozenset(
            name for name, default in defaults_of(kind) if getattr(self, name) != default
        )


@dataclass(frozen=True)
class AttentionForm(BlockForm):
    """Causal grouped-query attention with rotary positions."""

    heads: int
    kv_heads: int
    head_size: int
    columns: int  # of the packed product q, k, v, padding included
    query: slice  # where q, k and v lie among them
    key: slice
    value: slice
    qk_norm: str = "none"  # RMSNorm of each head of q and k before the rotation: rms, weighted
    qkv_bias: bool = False  # the packed product has a bias
    window: int = 0  # a token sees itself and window − 1 tokens before it; 0: its whole document
    rotates: bool = True  # with rotary positions
    post_norm: bool = False  # behind the block's last product
    cap: float = 0.0  # of scores: cap · tanh(score / cap) in their place; 0: none


@dataclass(frozen=True)
class BiasedAttentionForm(AttentionForm):
    """Attention with biases and without a rotation, LayerNorm in front."""


@dataclass(frozen=True)
class SwigluForm(BlockForm):
    """An MLP with SwiGLU."""

    ffn: int
    columns: int  # of the packed product gate, up, padding included
    gate: slice
    up: slice
    gelu: bool = False  # GEGLU
    post_norm: bool = False  # behind the block's last product


@dataclass(frozen=True)
class GeluForm(BlockForm):
    """An MLP with GELU and biases, LayerNorm in front."""

    ffn: int


@dataclass
class AttentionWeights:
    """Weights of an attention block, or their gradients; matrices are (out, in)."""

    norm: Array  # (D,)
    query_key_value: Array  # (columns, D)
    output: Array  # (D, H·E)
    query_norm: Array | None = None  # (E,) with the variant qk_norm: weighted
    key_norm: Array | None = None
    query_key_value_bias: Array | None = None  # (columns,) with the variant qkv_bias
    norm_bias: Array | None = None  # these two, and the one before, of a BiasedAttentionForm
    output_bias: Array | None = None
    post_norm: Array | None = None  # (D,) with the variant


@dataclass
class SwigluWeights:
    """Weights of an MLP block, or their gradients; matrices are (out, in)."""

    norm: Array  # (D,)
    gate_up: Array  # (columns, D)
    down: Array  # (D, F)
    post_norm: Array | None = None  # (D,) with the variant


@dataclass
class GeluWeights:
    """Weights of an MLP block with GELU, or their gradients; matrices are (out, in)."""

    norm: Array  # (D,)
    norm_bias: Array
    up: Array  # (F, D)
    up_bias: Array  # (F,)
    down: Array  # (D, F)
    down_bias: Array  # (D,)


@dataclass(eq=False)
class ModelWeights:
    """All weights of a model, or their gradients, as views of a flat buffer."""

    flat: Array  # None where adapters lie in another than what they are trained on
    embedding: Array  # (V, D)
    blocks: list[Any]  # by block: AttentionWeights, SwigluWeights or GeluWeights
    final_norm: Array  # (D,)
    heads: Array  # (K · head rows, D)
    first_head: Array  # (head rows, D): head 0 alone, all that generation needs
    positions: Array | None = None  # (context, D) where positions are learned
    final_norm_bias: Array | None = None  # of a LayerNorm


class CacheSlots(NamedTuple):
    """Keys and values of one attention block for B sequences of up to S tokens."""

    keys_BSGE: Array
    values_BSGE: Array


@dataclass
class DecodeStep:
    """T new tokens of each of B sequences, on their way through all blocks."""

    rope_table: RopeTable
    forms: list[BlockForm]
    weights: list[Any]  # by block
    slots: list[CacheSlots | None]  # by block
    x_ND: Array = None  # (B · T, D) residual stream: the embeddings, then the last block's output
    lengths_B: Array = None  # tokens in the cache, which is the first new token's position
    starts_BT: Array = None  # zeros: a new token sees all of the cache
    last_BD: Array = None  # if given, where the output for each sequence's last token goes, alone
    ends_B: Array = None  # the slots of those tokens
    prepared: Any = None  # what the engine made of all but the new tokens, to be used again
