"""A section of the configuration is a frozen dataclass whose fields are its keys.

A field holds all that is known of its key: type, range, default and meaning. `validation.py` has
pydantic turn these classes into a JSON Schema. They are plain dataclasses nevertheless: a stage
only reads its settings, and should not have to import pydantic for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum, auto
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform

from nanoeuler.storage.names import FORM_OF_NAME, is_name

T = TypeVar("T")


class Reruns(Enum):
    """Whether a stage that has run runs again when a key that it reads has changed."""

    ALWAYS = auto()
    NEVER = auto()
    """The key cannot change a result."""
    IF_DECISIVE = auto()
    """The key is about measurements. They change a result only where they decide which model is
    kept or when the stage ends."""


def key(
    meaning: str,
    *,
    default: Any = MISSING,
    form: str | None = None,
    reruns: Reruns = Reruns.ALWAYS,
    names_files: bool = False,
    **limits: Any,
) -> Any:
    """A field of a section.

    A key without `default` must be given, unless it is `optional`. `form` says in words what a
    pattern stands for. With `names_files` the content of the files that it names is a part of its
    value. `limits` are pydantic's: ge, gt, le, lt, pattern, min_length.
    """
    extra: dict[str, Any] = {"x-form": form} if form else {}
    metadata = limits | {
        "description": meaning,
        "reruns": reruns,
        "names_files": names_files,
        "json_schema_extra": extra,
    }
    if isinstance(default, list):
        extra["default"] = default
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def optional(meaning: str, **limits: Any) -> Any:
    """A key that may be left out (the section has None then), but not be null."""
    found = key(meaning, default=None, **limits)
    found.metadata["json_schema_extra"]["x-optional"] = True
    return found


def subsection(
    kind: "type[Section]", meaning: str, reruns: Reruns = Reruns.ALWAYS, **given: Any
) -> Any:
    """A field that is a section. Left out, it counts as written with the keys `given`."""
    metadata = {"description": meaning, "reruns": reruns, "json_schema_extra": {"default": given}}
    return field(default_factory=lambda: kind(**given), metadata=metadata)


@dataclass_transform(
    eq_default=False,
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(key, optional, subsection),
)
def section(kind: type[T]) -> type[T]:
    return dataclass(frozen=True, kw_only=True, eq=False)(kind)


def with_keys(keys: Mapping[str, tuple[Any, Any]]) -> Callable[[type[T]], type[T]]:
    """Decorate a class with keys that others declare: name → type and field."""

    def decorate(kind: type[T]) -> type[T]:
        for name, (type_of_key, declared) in keys.items():
            kind.__annotations__[name] = type_of_key
            setattr(kind, name, declared)
        return kind

    return decorate


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


def required_fields(section: type[Section]) -> list[str]:
    """The keys that a section has no default for."""
    return [item.name for item in fields(section) if is_required(item)]


def is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def section_type(item: Field[Any]) -> type[Section] | None:
    """The class of a field that is a section."""
    return item.type if isinstance(item.type, type) and issubclass(item.type, Section) else None


class Checked:
    """Annotates a type whose values must pass `test`; `schema` says it in words of JSON Schema."""

    def __init__(self, test: Callable[[Any], bool], schema: Mapping[str, Any]):
        self.test, self.schema = test, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.require, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), **self.schema}

    def require(self, value: Any) -> Any:
        if not self.test(value):
            raise ValueError(self.schema)
        return value


EACH_ONCE = Checked(lambda values: len(set(values)) == len(values), {"uniqueItems": True})
"""Annotates a list that holds no value twice."""
Name = Annotated[str, Checked(is_name, {"x-form": FORM_OF_NAME})]
"""A text that is a name."""
