"""The configuration of a model: its fields, its presets, and which values fit together."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanoeuler.errors import UserError, brief
from nanoeuler.model.rope_scaling import RopeScaling, read_rope_scaling
from nanoeuler.storage.shape import LARGEST_COUNT


def sized(*sizes: int) -> dict[str, Any]:
    fields = ("dim", "heads", "kv_heads", "layers", "context", "ffn", "vocab_size")
    return dict(zip(fields, sizes, strict=True))


GPT2 = {"family": "gpt2", "mtp_heads": 1, "tied": True}

PRESETS = {
    # dim, heads, kv_heads, layers, context, ffn, vocab_size
    "small": sized(128, 4, 2, 4, 128, 341, 512),
    "medium": sized(256, 8, 4, 8, 256, 682, 4096),
    "base": sized(768, 12, 4, 16, 512, 2048, 4096),
    "large": sized(1024, 16, 4, 20, 1024, 2816, 8192),
    "gpt2": sized(768, 12, 12, 12, 1024, 3072, 50_257) | GPT2,
    "gpt2-tiny": sized(128, 4, 4, 4, 128, 512, 512) | GPT2,
}

LARGEST = {
    "vocab_size": 2**20,
    "dim": 2**16,
    "layers": 2**10,
    "heads": 2**10,
    "kv_heads": 2**10,
    "ffn": 2**20,
    "context": 2**24,
    "mtp_heads": 2**6,
}
"""Counts, which are at least 1, and the largest that a model may have. No machine holds a model
that comes near; without an end, a mistyped number would lay out tensors until memory is full."""
PATTERNS = {"windows": (0, LARGEST["context"]), "rope_layers": (1, 1)}
"""Fields that say something of each layer, over and over: what a layer has without them, and the
largest number there."""
WORDS = {
    "family": ("llama", "gpt2"),
    "qk_norm": ("none", "rms", "weighted"),
    "activation": ("swiglu", "geglu", "relu2"),
}
"""Fields that are one of these words."""
LATER = (
    *("rope_scaling", "qkv_bias", "windows", "rope_layers"),
    *("window_rope_theta", "post_norms", "embedding_scale", "lora"),
    *("attention_cap", "logit_cap", "query_scalar"),
)
"""Fields that models had not from the first version on."""

ONLY_OURS: dict[str, tuple[Any, ...]] = {"activation": ("swiglu", "geglu")}
"""Fields that other programs know with these values alone: with another one a model is trained,
used and measured, but neither exported nor computed by the report's page."""


@dataclass(frozen=True)
class Lora:
    """Adapters of low rank, which are trained instead of a model's own tensors (Hu et al. 2021).

    Of a matrix W they are A (rank, in) and B (out, rank): W + alpha / rank · B A.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]  # matrices that have them, by their names in a layer: q_proj, …
    dropout: float = 0.0  # share of what A reads that is left out of each training step

    def __post_init__(self) -> None:
        """Raises `UserError` for values that are out of range."""
        right = {
            "rank": (is_whole_number(self.rank) and self.rank >= 1, "a whole number from 1 on"),
            "alpha": (is_number(self.alpha) and self.alpha > 0, "a number above 0"),
            "dropout": (is_number(self.dropout) and 0 <= self.dropout < 1, "from 0 to below 1"),
        }
        for key, (is_right, words) in right.items():
            if not is_right:
                raise UserError(f"lora.{key} is {brief(getattr(self, key))}: it must be {words}")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Lora":
        """From JSON values. Raises `UserError`."""
        try:
            return cls(**{**values, "targets": tuple(map(str, values["targets"]))})
        except (TypeError, KeyError) as error:
            raise UserError(f"lora is {brief(values)}: it has other keys ({error})") from error


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer with K prediction heads.

    The Llama family: pre-norm RMSNorm (Zhang & Sennrich 2019), rotary positions in the rotate-half
    form (Su et al. 2021), grouped-query attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020), and
    multi-token prediction with linear heads on one hidden state (Gloeckle et al. 2024).

    The GPT-2 family (Radford et al. 2019): LayerNorm, learned positions, multi-head attention,
    GELU, and biases everywhere; with the same heads.
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
    qk_norm: str = "none"  # RMSNorm of each head of q and k: none, rms (no weight), weighted
    family: str = "llama"  # or gpt2
    activation: str = "swiglu"  # of the Llama family's MLP: or geglu, or relu2 without a gate
    rope_scaling: RopeScaling | None = None  # for a context longer than the original one
    qkv_bias: bool = False  # the products of q, k and v have biases
    windows: tuple[int, ...] = ()  # of the layers, over and over: keys that a token sees; 0: all
    rope_layers: tuple[int, ...] = ()  # likewise: 1 with rotary positions, 0 without any
    window_rope_theta: float = 0.0  # of layers with a window; 0: as in the others
    post_norms: bool = False  # x + h · norm(f(norm(x)))
    embedding_scale: float = 1.0  # of an embedding where it enters the stream
    attention_cap: float | None = None  # of scores: cap · tanh(score / cap) in their place
    logit_cap: float | None = None  # likewise of logits
    query_scalar: float | None = None  # scores are q · k / √query_scalar; None: head_size
    lora: Lora | None = None  # while they are trained: model folders have them merged

    def __post_init__(self) -> None:
        """Fill in the defaults that depend on other fields. Raises `UserError`."""
        for field, largest in LARGEST.items():
            if not 1 <= getattr(self, field) <= largest:
                raise UserError(
                    f"model.{field} is {brief(getattr(self, field))}: it must be at least 1 and at "
                    f"most {largest}"
                )
        if self.head_size == 0:
            if self.dim % self.heads:
                raise UserError(
                    f"model.heads is {self.heads}, which does not divide model.dim = {self.dim}; "
                    "change one of them or set model.head_size"
                )
            object.__setattr__(self, "head_size", self.dim // self.heads)
        if self.query_scalar == self.head_size:
            object.__setattr__(self, "query_scalar", None)
        weights = tuple(float(weight) for weight in self.mtp_weights) or (1.0,) * self.mtp_heads
        object.__setattr__(self, "mtp_weights", weights)
        for field, (plain, _) in PATTERNS.items():
            object.__setattr__(self, field, shortest(getattr(self, field), self.layers, plain))
        self.check_fields()

    def check_fields(self) -> None:
        """Raise `UserError` for values that are out of range or don't fit together."""
        if self.heads % self.kv_heads:
            raise UserError(
                f"model.kv_heads is {self.kv_heads}, which does not divide model.heads = "
                f"{self.heads}; every key/value head serves equally many query heads"
            )
        if not 2 <= self.head_size <= LARGEST["dim"] or self.head_size % 2:
            raise UserError(
                f"model.head_size is {brief(self.head_size)}: rotary positions turn pairs of "
                f"elements, so it must be even, above 0 and at most {LARGEST['dim']}"
            )
        weights = self.mtp_weights
        if len(weights) != self.mtp_heads or min(weights) < 0 or weights[0] <= 0:
            raise UserError(
                f"model.mtp_weights is {brief(list(weights))}: it needs one weight ≥ 0 for each "
                f"of the {self.mtp_heads} heads, and head 0's above 0"
            )
        for field, words in WORDS.items():
            if getattr(self, field) not in words:
                raise UserError(
                    f"model.{field} is {brief(getattr(self, field))}; there are {', '.join(words)}"
                )
        for field, (_, largest) in PATTERNS.items():
            if not all(0 <= value <= largest for value in getattr(self, field)):
                raise UserError(
                    f"model.{field} is {brief(list(getattr(self, field)))}: it must be numbers "
                    f"from 0 to {largest}, one for each layer, over and over"
                )
        if self.family == "gpt2":
            self.check_gpt2()
        if not (self.norm_epsilon > 0 and self.rope_theta > 1 and self.step_size > 0):
            raise UserError(
                "model.norm_epsilon and model.step_size must be above 0, and model.rope_theta "
                "above 1"
            )
        if not (self.embedding_scale > 0 and (self.window_rope_theta or 2) > 1):
            raise UserError(
                "model.embedding_scale must be above 0, and model.window_rope_theta above 1, or 0"
            )
        for field in ("attention_cap", "logit_cap", "query_scalar"):
            if not (getattr(self, field) is None or getattr(self, field) > 0):
                raise UserError(
                    f"model.{field} is {brief(getattr(self, field))}: it must be above 0; without "
                    "it, leave it out"
                )
        if self.query_scalar is not None and self.rope_layers:
            raise UserError(
                "model.query_scalar: it is a factor of the rotary tables, which layers without "
                "rotary positions don't read; leave out it or model.rope_layers"
            )
        if self.post_norms and (self.step_size != 1 or self.activation == "relu2"):
            raise UserError(
                "model.post_norms: norms behind the blocks go with model.step_size 1 and an MLP "
                "with a gate; leave one of them out"
            )

    def check_gpt2(self) -> None:
        """Raise `UserError` for fields that the GPT-2 family does not have."""
        needed = {
            "kv_heads": self.heads,
            "head_size": self.dim // self.heads,
            "qk_norm": "none",
            "activation": "swiglu",
            "rope_theta": 10_000.0,
        }
        # qkv_bias among them, in the field's words: it has biases everywhere
        later = [each for each in dataclasses.fields(self) if each.name in LATER]
        needed |= {each.name: each.default for each in later if each.name != "lora"}
        for field, value in needed.items():
            if getattr(self, field) != value:
                raise UserError(
                    f"model.{field} is {brief(getattr(self, field))}, but model.family gpt2 has "
                    f"{value} here (kv_heads = heads, head_size = dim / heads, no rotation); "
                    "leave it out, or take model.family llama"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build from the config's `model` section: a preset's fields, overridden by the others.

        Raises `UserError`.
        """
        values = {key: value for key, value in values.items() if value is not None}
        preset = values.pop("preset", None)
        if preset is not None and preset not in list(PRESETS):  # it may be unhashable
            raise UserError(f"model.preset is {brief(preset)}; there are {', '.join(PRESETS)}")
        merged = PRESETS.get(preset, {}) | values
        known = {field.name: field for field in dataclasses.fields(cls)}
        for key in merged:
            if key not in known:
                raise UserError(
                    f"model.{key[:40]} is no field of the model; there are {', '.join(known)}"
                )
        required = [name for name, field in known.items() if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in merged]
        if missing:
            raise UserError(
                f"the model section lacks {', '.join(missing)}; "
                f"give them or a preset ({', '.join(PRESETS)})"
            )
        if "rope_scaling" in merged:
            merged["rope_scaling"] = read_rope_scaling(merged["rope_scaling"])
        if isinstance(merged.get("lora"), dict):  # of a checkpoint
            merged["lora"] = Lora.read(merged["lora"])
        for key, value in merged.items():
            check_type(key, value, known[key].type)
        for key in ("mtp_weights", *PATTERNS):
            if key in merged:
                merged[key] = tuple(merged[key])
        return cls(**merged)

    @property
    def only_ours(self) -> str | None:
        """A field that no other program has as this model has it; None if they compute it."""
        unknown = (key for key, known in ONLY_OURS.items() if getattr(self, key) not in known)
        return next(unknown, None)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON values; the later ones only where they say something, so that folders
        and fingerprints stay what they were."""
        fields = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if field.name in LATER and fields[field.name] == field.default:
                del fields[field.name]
        lists = {key: list(value) for key, value in fields.items() if isinstance(value, tuple)}
        return fields | lists

    def layer_kind(self, layer: int) -> tuple[int, bool]:
        """Window of a layer, 0 where it sees the whole context, and whether it has rotary
        positions."""
        window = self.windows[layer % len(self.windows)] if self.windows else 0
        rotates = self.rope_layers[layer % len(self.rope_layers)] if self.rope_layers else 1
        ends = window < self.context or self.window_rope_theta
        return window if ends else 0, bool(rotates)

    @property
    def ffn_storage(self) -> int:
        """`ffn` rounded up to a multiple of 8, the width of a vector load.

        The padding is zero and stays zero.
        """
        return round_up(self.ffn, 8)

    @property
    def vocab_storage(self) -> int:
        """`vocab_size` rounded up in the same way; as GPT-2's is by custom, to 128."""
        return round_up(self.vocab_size, 128 if self.family == "gpt2" else 8)


def check_type(field: str, value: Any, kind: Any) -> None:
    """Refuse a value of the wrong type, such as a quoted number or a fraction of a layer."""
    words, is_right = TYPES[kind]
    if not is_right(value):
        raise UserError(f"model.{field} is {brief(value)}: it must be {words}")


def is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return (is_whole_number(value) or isinstance(value, float)) and abs(value) <= LARGEST_COUNT


def is_list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(test, value))


TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", is_whole_number),
    **dict.fromkeys((float, float | None), (f"a number of at most {LARGEST_COUNT:g}", is_number)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a word", lambda value: isinstance(value, str)),
    RopeScaling | None: ("a mapping", lambda value: isinstance(value, RopeScaling)),
    Lora | None: ("a mapping", lambda value: isinstance(value, Lora)),
    tuple[int, ...]: ("a list of whole numbers", is_list_of(is_whole_number)),
    tuple[float, ...]: (f"a list of numbers of at most {LARGEST_COUNT:g}", is_list_of(is_number)),
}
"""The type of a field → its name in a sentence, and whether a value has it."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def shortest(pattern: tuple[int, ...], layers: int, plain: int) -> tuple[int, ...]:
    """The shortest pattern that repeats to the same, in so many layers; empty where all are plain.

    So two configurations of one model are equal.
    """
    every = tuple(itertools.islice(itertools.cycle(pattern), layers))
    if set(every) <= {plain}:
        return ()
    lengths = range(1, layers + 1)
    return next(every[:n] for n in lengths if every[n:] == every[: layers - n])


def refined(config: ModelConfig) -> ModelConfig:
    """The model with twice the layers of half the step. Raises `UserError` when it is too deep."""
    return replace(config, layers=2 * config.layers, step_size=config.step_size / 2)


def coarsened(config: ModelConfig, times: int) -> ModelConfig:
    """The model that becomes `config` when it is refined `times` times, if the layers allow it."""
    parts = 2**times
    return replace(config, layers=config.layers // parts, step_size=config.step_size * parts)


def check_growth(config: ModelConfig, grow_at: Sequence[int], steps: int) -> None:
    """Refuse growth that `steps` steps of training cannot bring to `config`."""
    given = f"pretrain.grow_at is {list(grow_at)}"
    kinds = {config.layer_kind(layer) for layer in range(config.layers)}
    if grow_at and len(kinds) > 1:
        raise UserError(
            f"{given}, but model.windows or model.rope_layers make layers of {len(kinds)} kinds, "
            "which would change places as layers double; leave one of them out"
        )
    if config.layers % 2 ** len(grow_at):
        raise UserError(
            f"{given}, but model.layers = {config.layers} is no multiple of {2 ** len(grow_at)}, "
            "by which the layers grow; change one of them"
        )
    if grow_at and max(grow_at) >= steps:
        raise UserError(
            f"{given}, but training has {steps} steps; every growth must come before the last one"
        )
