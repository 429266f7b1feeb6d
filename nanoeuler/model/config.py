"""The configuration of a model: its fields, presets, and what makes sense together."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanoeuler.errors import UserError

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


QK_NORMS = ("none", "rms", "weighted")

VARIANTS: dict[str, Any] = {"qk_norm": "none"}
"""Fields that were added later, and their defaults. A configuration that leaves them alone writes
the same `to_dict` as before, so that fingerprints of earlier runs hold."""


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
    qk_norm: str = "none"  # RMSNorm of each head of q and k: none, rms (no weight), weighted

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
        if self.qk_norm not in QK_NORMS:
            raise UserError(f"model.qk_norm is {self.qk_norm!r}; there are {', '.join(QK_NORMS)}")
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
        """All fields, but for variants that are not used: see `VARIANTS`."""
        values = dataclasses.asdict(self) | {"mtp_weights": list(self.mtp_weights)}
        return {key: value for key, value in values.items() if VARIANTS.get(key) != value}

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
        str: ("a word", isinstance(value, str)),
    }.get(kind, ("a list of numbers", isinstance(value, list | tuple) and all(map(number, value))))
    if not right:
        raise UserError(f"model.{field} is {value!r}: it must be {words}")


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
