"""Scaled rotary positions: how a model reads texts longer than those it was first trained on.

Each type is a record whose fields are the keys of `model.rope_scaling`; `rotary.py` computes it.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanoeuler.errors import UserError, brief

LARGEST = 2**24
"""Largest value of any number here, and the longest context."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """What all types have. Raises `UserError` for values that are out of range."""

    type: str
    factor: float  # by which the longest wavelengths grow

    def __post_init__(self) -> None:
        for key, value in dataclasses.asdict(self).items():
            match key:
                case "type":
                    continue
                case "truncate":
                    right, words = isinstance(value, bool), "true or false"
                case "original_context":
                    right = is_number(value) and isinstance(value, int)
                    words = f"a whole number from 1 to {LARGEST}"
                case "factor":
                    right, words = is_number(value) and value >= 1, f"a number from 1 to {LARGEST}"
                case _:
                    right, words = is_number(value), f"a number above 0 and at most {LARGEST}"
            if not right:
                raise UserError(f"model.rope_scaling.{key} is {brief(value)}: it must be {words}")

    def require_order(self, low: str, high: str) -> None:
        if getattr(self, low) >= getattr(self, high):
            raise UserError(
                f"model.rope_scaling.{low} is {getattr(self, low)}: it must be below {high}, "
                f"which is {getattr(self, high)}"
            )


@dataclass(frozen=True, kw_only=True)
class Linear(RopeScaling):
    """Positions divided by `factor` (Chen et al. 2023)."""


@dataclass(frozen=True, kw_only=True)
class Llama3(RopeScaling):
    """Llama 3.1's: wavelengths above original_context / low_freq_factor grow by `factor`, those
    below original_context / high_freq_factor not at all."""

    original_context: int
    low_freq_factor: float
    high_freq_factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_order("low_freq_factor", "high_freq_factor")


@dataclass(frozen=True, kw_only=True)
class Yarn(RopeScaling):
    """YaRN (Peng et al. 2023): pairs that turn less than `beta_slow` times in the original context
    are slowed down by `factor`, those that turn more than `beta_fast` times not at all."""

    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # of cosines and sines; None: 0.1 · ln(factor) + 1
    truncate: bool = True  # the ends of the ramp are whole pairs

    def __post_init__(self) -> None:
        if self.attention_factor is None and is_number(self.factor):
            object.__setattr__(self, "attention_factor", usual_attention_factor(self.factor))
        super().__post_init__()
        self.require_order("beta_slow", "beta_fast")


TYPES: dict[str, type[RopeScaling]] = {"linear": Linear, "llama3": Llama3, "yarn": Yarn}

REFUSED = {
    "dynamic": "its frequencies change with the length of a text, and with them all keys in a "
    "cache",
    "longrope": "it has one set of frequencies for short texts and another one for long ones, and "
    "all keys in a cache change between them",
}
"""Type that other programs have → why it is not here."""


def usual_attention_factor(factor: float) -> float:
    """Peng et al. 2023, eq. 22: on queries and keys each, so that scores have its square."""
    return 0.1 * math.log(factor) + 1.0


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= LARGEST


def read_rope_scaling(values: Any) -> RopeScaling:
    """The record of the mapping `values`. Raises `UserError`."""
    if isinstance(values, RopeScaling):
        return values
    if not isinstance(values, Mapping):
        raise UserError(
            f"model.rope_scaling is {brief(values)}: it must be a mapping with a type, which is "
            f"{', '.join(TYPES)}"
        )
    values = {key: value for key, value in values.items() if value is not None}
    kind = values.get("type")
    if kind not in list(TYPES):  # it may be unhashable
        reason = f", because {REFUSED[kind]}" if kind in list(REFUSED) else ""
        raise UserError(
            f"model.rope_scaling.type is {brief(kind)}, which a nanoeuler model does not have"
            f"{reason}; there are {', '.join(TYPES)}"
        )
    known = {field.name: field for field in dataclasses.fields(TYPES[kind])}
    for key in values:
        if key not in known:
            raise UserError(
                f"model.rope_scaling.{str(key)[:60]} is no key of the type {kind}; it has "
                f"{', '.join(known)}"
            )
    required = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise UserError(f"model.rope_scaling lacks {', '.join(missing)}, which {kind} needs")
    return TYPES[kind](**values)
