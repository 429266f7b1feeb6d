"""What the model is: its configuration, the table of its tensors, and what a token costs.

Everything that needs to know a tensor's name, shape or place (buffers, model files, optimizer, gradient checks, memory
estimates, the parameter count) reads `tensor_table`; nothing writes an offset or a shape a second time.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanoeuler.errors import UserError

BLOCK = 128
"""Tensors start on multiples of this many elements, so that a flat buffer is blocks with one property each (decay or not)."""

PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "dim": 128,
        "heads": 4,
        "kv_heads": 2,
        "layers": 4,
        "context": 128,
        "ffn": 341,
        "vocab_size": 512,
    },
    "medium": {
        "dim": 256,
        "heads": 8,
        "kv_heads": 4,
        "layers": 8,
        "context": 256,
        "ffn": 682,
        "vocab_size": 4096,
    },
    "base": {
        "dim": 768,
        "heads": 12,
        "kv_heads": 4,
        "layers": 16,
        "context": 512,
        "ffn": 2048,
        "vocab_size": 4096,
    },
    "large": {
        "dim": 1024,
        "heads": 16,
        "kv_heads": 4,
        "layers": 20,
        "context": 1024,
        "ffn": 2816,
        "vocab_size": 8192,
    },
}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer: pre-norm RMSNorm, rotary positions, grouped-query attention, SwiGLU, K prediction heads.

    Sources: RMSNorm (Zhang & Sennrich 2019), RoPE (Su et al. 2021, rotate-half form), GQA (Ainslie et al. 2023),
    SwiGLU (Shazeer 2020), multi-token prediction (Gloeckle et al. 2024, with linear heads on one hidden state).
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    context: int
    head_size: int = 0  # 0: dim / heads
    mtp_heads: int = 4  # K; head 0 is an ordinary language-model head
    mtp_weights: tuple[float, ...] = ()  # relative weights of the K head losses; empty: equal
    norm_epsilon: float = 1e-5
    rope_theta: float = 10_000.0
    step_size: float = 1.0  # h of x + h·f(x)
    tied: bool = False  # head 0 shares the embedding's weights

    def __post_init__(self) -> None:
        for field in (
            "vocab_size",
            "dim",
            "layers",
            "heads",
            "kv_heads",
            "ffn",
            "context",
            "mtp_heads",
        ):
            if getattr(self, field) < 1:
                raise UserError(f"model.{field} is {getattr(self, field)}: it must be at least 1")
        if self.head_size == 0:
            if self.dim % self.heads:
                raise UserError(
                    f"model.heads is {self.heads}, which does not divide model.dim = {self.dim}; change one of them or set model.head_size"
                )
            object.__setattr__(self, "head_size", self.dim // self.heads)
        if self.heads % self.kv_heads:
            raise UserError(
                f"model.kv_heads is {self.kv_heads}, which does not divide model.heads = {self.heads}; every key/value head serves equally many query heads"
            )
        if self.head_size < 2 or self.head_size % 2:
            raise UserError(
                f"model.head_size is {self.head_size}: rotary positions turn pairs of elements, so it must be even and above 0"
            )
        weights = tuple(float(weight) for weight in self.mtp_weights) or (1.0,) * self.mtp_heads
        if len(weights) != self.mtp_heads or min(weights) < 0 or weights[0] <= 0:
            raise UserError(
                f"model.mtp_weights is {list(weights)}: it needs one weight ≥ 0 for each of the {self.mtp_heads} heads, and head 0's above 0"
            )
        object.__setattr__(self, "mtp_weights", weights)
        if not (self.norm_epsilon > 0 and self.rope_theta > 1 and self.step_size > 0):
            raise UserError(
                "model.norm_epsilon and model.step_size must be above 0, and model.rope_theta above 1"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build from the config's `model` section: a preset's fields, overridden by the others. Raises `UserError`."""
        values = {key: value for key, value in values.items() if value is not None}
        preset = values.pop("preset", None)
        if preset is not None and preset not in PRESETS:
            raise UserError(f"model.preset is {preset!r}; there are {', '.join(PRESETS)}")
        merged = PRESETS.get(preset, {}) | values
        known = {field.name: field for field in dataclasses.fields(cls)}
        for key in merged:
            if key not in known:
                raise UserError(
                    f"model.{key} is no field of the model; there are {', '.join(known)}"
                )
        required = [
            name
            for name, field in known.items()
            if field.default is dataclasses.MISSING and name not in merged
        ]
        if required:
            raise UserError(
                f"the model section lacks {', '.join(required)}; give them or a preset ({', '.join(PRESETS)})"
            )
        for key, value in merged.items():
            check_type(key, value, known[key].type)
        if "mtp_weights" in merged:
            merged["mtp_weights"] = tuple(merged["mtp_weights"])
        return cls(**merged)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"mtp_weights": list(self.mtp_weights)}

    @property
    def ffn_storage(self) -> int:
        """`ffn` rounded up to a multiple of 8, the width of a vector load; the padding is zero and stays zero."""
        return round_up(self.ffn, 8)

    @property
    def vocab_storage(self) -> int:
        return round_up(self.vocab_size, 8)


def check_type(field: str, value: Any, kind: Any) -> None:
    """Refuse a value of the wrong type: a quoted number, a fraction of a layer."""

    def number(item: Any) -> bool:
        return isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)

    words, right = {
        int: ("a whole number", isinstance(value, int) and not isinstance(value, bool)),
        float: ("a number", number(value)),
        bool: ("true or false", isinstance(value, bool)),
    }.get(kind, ("a list of numbers", isinstance(value, list | tuple) and all(map(number, value))))
    if not right:
        raise UserError(f"model.{field} is {value!r}: it must be {words}")


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table. Matrices are (out, in), row-major, as in Hugging Face's Llama."""

    name: str
    shape: tuple[int, ...]
    storage_shape: tuple[int, ...]
    offset: int  # of its first element in a flat buffer, in elements
    initial_std: float | None  # of a normal distribution with mean 0; None: all ones
    decay: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def storage_size(self) -> int:
        return math.prod(self.storage_shape)

    @property
    def stop(self) -> int:
        return self.offset + self.storage_size


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def head_name(index: int) -> str:
    """Name of prediction head `index` when it is a tensor of its own."""
    return "lm_head.weight" if index == 0 else f"mtp_heads.{index}.weight"


def tensor_table(config: ModelConfig) -> tuple[Tensor, ...]:
    """Every parameter in the order of the flat buffers: embedding, layers, final norm, heads (tied: the embedding is the first head).

    Members of a packed product (q, k, v; gate, up; the heads) are adjacent, and their rows are padded until the next one
    starts on a block, so that the product's weight is one view.
    """
    rows: list[Tensor] = []
    offset = 0

    def add(
        name: str,
        shape: tuple[int, ...],
        storage_shape: tuple[int, ...] | None = None,
        std: float | None = 0.02,
        packed: bool = False,
    ) -> None:
        nonlocal offset
        storage = storage_shape or shape
        if packed:
            storage = (round_up(storage[0], BLOCK // math.gcd(storage[1], BLOCK)), storage[1])
        rows.append(Tensor(name, shape, storage, offset, std, decay=len(shape) > 1))
        offset = round_up(rows[-1].stop, BLOCK)

    c = config
    query_size, key_size = c.heads * c.head_size, c.kv_heads * c.head_size
    residual_std = 0.02 / math.sqrt(2 * c.layers)
    if not c.tied:
        add("model.embed_tokens.weight", (c.vocab_size, c.dim), (c.vocab_storage, c.dim))
    for layer in range(c.layers):
        prefix = f"model.layers.{layer}"
        add(f"{prefix}.input_layernorm.weight", (c.dim,), std=None)
        add(f"{prefix}.self_attn.q_proj.weight", (query_size, c.dim), packed=True)
        add(f"{prefix}.self_attn.k_proj.weight", (key_size, c.dim), packed=True)
        add(f"{prefix}.self_attn.v_proj.weight", (key_size, c.dim), packed=True)
        add(f"{prefix}.self_attn.o_proj.weight", (c.dim, query_size), std=residual_std)
        add(f"{prefix}.post_attention_layernorm.weight", (c.dim,), std=None)
        add(f"{prefix}.mlp.gate_proj.weight", (c.ffn, c.dim), (c.ffn_storage, c.dim), packed=True)
        add(f"{prefix}.mlp.up_proj.weight", (c.ffn, c.dim), (c.ffn_storage, c.dim), packed=True)
        add(
            f"{prefix}.mlp.down_proj.weight",
            (c.dim, c.ffn),
            (c.dim, c.ffn_storage),
            std=residual_std,
        )
    add("model.norm.weight", (c.dim,), std=None)
    if c.tied:
        add(
            "model.embed_tokens.weight",
            (c.vocab_size, c.dim),
            (c.vocab_storage, c.dim),
            packed=True,
        )
    for head in range(1 if c.tied else 0, c.mtp_heads):
        add(head_name(head), (c.vocab_size, c.dim), (c.vocab_storage, c.dim), packed=True)
    return tuple(rows)


def storage_elements(table: tuple[Tensor, ...]) -> int:
    """Length of a flat buffer for `table`, in elements."""
    return round_up(table[-1].stop, BLOCK)


def parameter_count(config: ModelConfig) -> int:
    """Number of trained parameters, padding not counted."""
    return sum(tensor.size for tensor in tensor_table(config))


def parameters_by_kind(config: ModelConfig) -> dict[str, int]:
    """Number of trained parameters of each kind; a tied embedding counts as the embedding that it also is."""
    marks = {
        "embedding": ("embed_tokens",),
        "attention": ("self_attn",),
        "mlp": (".mlp.",),
        "norms": ("norm",),
        "heads": ("lm_head", "mtp_heads"),
    }
    counts = dict.fromkeys(marks, 0)
    for tensor in tensor_table(config):
        counts[
            next(
                kind for kind, parts in marks.items() if any(part in tensor.name for part in parts)
            )
        ] += tensor.size
    return counts


def forward_flops(config: ModelConfig, tokens: float, seen: float, predicted: float) -> float:
    """Floating-point operations of the forward pass of `tokens` tokens; a multiply-add counts two.

    Matrix products, all K heads for the tokens that predict, and causal attention of tokens that see `seen` keys together; glue is not counted.
    """
    c = config
    per_layer = c.dim * c.head_size * (2 * c.heads + 2 * c.kv_heads) + 3 * c.dim * c.ffn
    heads = c.mtp_heads * c.vocab_size * c.dim
    return (
        2 * (tokens * c.layers * per_layer + predicted * heads)
        + 2 * 2 * seen * c.layers * c.heads * c.head_size
    )


def training_flops(config: ModelConfig, tokens: float, seen: float, predicted: float) -> float:
    """Forward plus backward, which costs twice the forward (Kaplan et al. 2020); recomputation is not counted, as usual for MFU."""
    return 3 * forward_flops(config, tokens, seen, predicted)


def forward_flops_per_token(config: ModelConfig, length: int) -> float:
    """Of rows of `length` tokens, each one document: a token sees (length + 1) / 2 keys on average, and predicts."""
    return forward_flops(config, 1, (length + 1) / 2, 1)


def training_flops_per_token(config: ModelConfig, length: int) -> float:
    return training_flops(config, 1, (length + 1) / 2, 1)


def activation_elements_per_token(config: ModelConfig) -> int:
    """Elements that a training step keeps per token: what `Transformer` saves for the backward pass, its scratch and the logits."""
    c = config
    qkv = (c.heads + 2 * c.kv_heads) * c.head_size
    saved = c.layers * (2 * c.dim + 2 + qkv + c.heads * (c.head_size + 1) + 2 * c.ffn_storage)
    scratch = 3 * c.dim + qkv + c.heads * c.head_size + c.ffn_storage
    return saved + scratch + c.mtp_heads * c.vocab_storage


def activation_bytes_per_row(config: ModelConfig, length: int, scores: bool = True) -> int:
    """Bytes that a training step in float32 takes per row of `length` tokens: what it keeps, and with `scores` the reference's attention scores.

    Of those, (heads, length, length) each, up to four exist at a time; the other engines make none.
    """
    return 4 * (
        length * activation_elements_per_token(config) + 4 * config.heads * length**2 * scores
    )


def state_bytes(config: ModelConfig) -> int:
    """Bytes of parameters, gradients and both moments of AdamW in float32."""
    return 4 * 4 * storage_elements(tensor_table(config))
