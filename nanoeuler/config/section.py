"""A section of the configuration is a frozen dataclass whose fields are its keys.

A field holds all that is known of its key: type, range, default and meaning. `validation.py` has
pydantic turn these classes into a JSON Schema. They are plain dataclasses nevertheless: a stage
only reads its settings, and should not have to import pydantic for that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from nanoeuler.model.config import LARGEST_FLOAT, LARGEST_NUMBER

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""A file system takes 255 bytes, and temporary names are a little longer."""
FORM_OF_NAME = "a name of at most 200 letters, digits, dots, dashes and underscores"

T = TypeVar("T")


def key(
    meaning: str,
    *,
    default: Any = MISSING,
    optional: bool = False,
    form: str | None = None,
    reruns: bool | Literal["measured", "default", "new"] = True,
    **limits: Any,
) -> Any:
    """A field of a section.

    A key without `default` must be given, unless it is `optional`. `form` says in words what a
    pattern stands for. `reruns` is False for a key that cannot change a result, so that a change
    of it makes no stage run again; "measured" says the same of stages whose measurements decide
    neither which model is kept nor when they end; "default" says the same of a key that was hashed
    once, so that its default still is; "new" is for a key that earlier versions do not know, so
    that its default makes nothing run again. `limits` are pydantic's: ge, gt, le, lt, pattern,
    min_length.
    """
    extra: dict[str, Any] = {"x-form": form} if form else {}
    if optional:
        extra["x-optional"], default = True, None
    metadata = limits | {
        "description": meaning,
        "reruns": reruns,
        "json_schema_extra": extra,
    }
    if isinstance(default, list):
        extra["default"] = default
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def subsection(kind: "type[Section]", meaning: str, reruns: bool = True, **given: Any) -> Any:
    """A field that is a section. Left out, it counts as written with the keys `given`."""
    metadata = {"description": meaning, "reruns": reruns, "json_schema_extra": {"default": given}}
    return field(default_factory=lambda: kind(**given), metadata=metadata)


@dataclass_transform(
    eq_default=False,
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(key, subsection),
)
def section(kind: type[T]) -> type[T]:
    """Decorate a class as a section."""
    return dataclass(frozen=True, kw_only=True, eq=False)(kind)


@section
class Section:
    """Base of all sections."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Build the section from that part of a configuration which has been checked.

        Missing keys take their defaults, and unknown keys are passed over.
        """
        given = {}
        for item in fields(cls):
            if item.name in values or is_required(item):
                value = values[item.name]  # inline JSON raises `UserError` for a missing key
                kind = section_type(item)
                given[item.name] = kind.read(value) if kind else value
        return cls(**given)


def misfit(value: Any, kind: Any) -> tuple[str | int, ...] | None:
    """Where in `value` something is of another type than `kind`, the annotation of a field, says.

    This checks types alone, without the time that pydantic takes to import.
    """
    options = get_args(kind)
    if kind is Any or (kind is None and value is None):
        return None
    if get_origin(kind) is Annotated:
        return misfit(value, options[0])
    if get_origin(kind) is Literal:
        return None if value in list(options) else ()
    if get_origin(kind) in (Union, UnionType):
        return None if any(misfit(value, option) is None for option in options) else ()
    if get_origin(kind) in (list, dict):
        if not isinstance(value, get_origin(kind)):
            return ()
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return first_misfit((key, item, options[-1]) for key, item in entries)
    if isinstance(kind, type) and issubclass(kind, Section):
        if not isinstance(value, Mapping):
            return ()
        known = (item for item in fields(kind) if item.name in value)
        return first_misfit(
            (item.name, value[item.name], item.type)
            for item in known
            if value[item.name] is not None or item.default is not None
        )
    if kind in (int, float):
        right = isinstance(value, int | kind) and not isinstance(value, bool)
        return None if right and not is_huge(value) else ()
    return None if isinstance(value, kind) else ()


def is_huge(value: int | float) -> bool:
    """Whether a number is too large to compute with."""
    return abs(value) > (LARGEST_FLOAT if isinstance(value, float) else LARGEST_NUMBER)


def first_misfit(entries: Iterable[tuple[str | int, Any, Any]]) -> tuple[str | int, ...] | None:
    for key, value, kind in entries:
        if (found := misfit(value, kind)) is not None:
            return key, *found
    return None


def is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def default_of(item: Field[Any]) -> Any:
    """The default of a field that has one."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def section_type(item: Field[Any]) -> type[Section] | None:
    """The class of a field that is a section."""
    return item.type if isinstance(item.type, type) and issubclass(item.type, Section) else None


class EachOnce:
    """Annotates a list that holds no value twice."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(refuse_repetition, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "uniqueItems": True}


def refuse_repetition(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("a value is repeated")
    return values
