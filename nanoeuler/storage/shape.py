"""Check that JSON has the shape that its reader relies on, given as a type.

    class Line(TypedDict):
        step: Count
        rate: NotRequired[Number | None]

    check_shape(path, json.loads(text), Line, "delete it and run the stage again")

A type names only the keys that its reader uses; further keys are passed over. The sections of the
configuration (config/section.py) are such types, too, whose ranges pydantic checks when the file is
read. A check takes some microseconds an object, without the time that pydantic takes to import.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from nanoeuler.errors import UserError, brief
from nanoeuler.storage.files import MOST_LINES, parse_json, read_text

LARGEST_COUNT = 1e15
"""No count, no number of bytes and no seconds is above it."""
LARGEST_FLOAT = 1e38
"""Largest fractional setting: the end of float32."""
LARGEST_NUMBER = 1e30
"""Largest other number of a result, so that sums and products of them stay finite."""
ENCODER = json.JSONEncoder(ensure_ascii=False)

Place = tuple[str | int, ...]
"""Keys and indices that lead to a value."""
Checker = Callable[[Any], Place | None]
"""Returns the place of the first value that is wrong or missing; None where all is well."""
T = TypeVar("T")


def between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


def is_huge(value: int | float) -> bool:
    """Whether a number is too large to compute with."""
    return abs(value) > (LARGEST_FLOAT if isinstance(value, float) else LARGEST_COUNT)


def sane(value: float) -> bool:
    """Whether a measured value is of sane size; training that diverges also yields NaN and ∞."""
    return abs(value) <= LARGEST_NUMBER or value != value or abs(value) == math.inf


Count = Annotated[int, between(0, LARGEST_COUNT)]
Positive = Annotated[int, between(1, LARGEST_COUNT)]
Amount = Annotated[float, between(0, LARGEST_COUNT)]
Number = Annotated[float, between(-LARGEST_NUMBER, LARGEST_NUMBER)]
Measured = Annotated[float, sane]
Pair = Annotated[list[T], lambda items: len(items) == 2]


def check_shape(where: str | Path, value: Any, kind: Any, mend: str, what: str = "") -> None:
    """Raise `UserError` unless `value`, read from `where`, is what the type `kind` says.

    `mend` says what to do, and `what` what it should have been: "an evaluation".
    """
    wrong = checker(kind)(value)
    if wrong is None and is_text(value):
        return
    reason = "half a character" if wrong is None else describe(value, wrong)
    raise UserError(f"{where}: not {what or 'what its stage wrote'} ({reason}); {mend}")


def read_lines(
    path: Path, kind_of: Callable[[Any], Any], mend: str
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The number and the value of each line of a file of JSON lines.

    `kind_of` gives the type of a value. The value is None where the line is not JSON, as when its
    writer was killed; it is for the caller to say whether that may be. Raises `UserError` for what
    no writer leaves.
    """
    try:
        lines = read_text(path, MOST_LINES).splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start:,}); delete it, or run the stage again"
        ) from error
    for number, line in enumerate(lines, 1):
        try:
            value = parse_json(line)
        except json.JSONDecodeError:
            yield number, None
            continue
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON ({error}); {mend}") from error
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: not a JSON object; {mend}")
        kind = kind_of(value)
        if checker(kind)(value) is not None or "\\u" in line:  # half a character is always escaped
            check_shape(f"{path}, line {number}", value, kind, mend)
        yield number, value


def is_text(value: Any) -> bool:
    """Whether UTF-8 has a spelling for all texts in `value`: "\\ud800" alone has none."""
    try:
        ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def describe(value: Any, place: Place) -> str:
    """The mistake at `place`, a key, or empty where `value` itself is wrong."""
    name = brief(".".join(map(str, place)))
    for key in place:
        if isinstance(value, dict) and key not in value:
            return f"{name} is missing"
        value = value[key]
    return f"{name} cannot be {brief(value)}" if place else brief(value)


@functools.cache
def checker(kind: Any) -> Checker:
    """A function that checks values against the type `kind`."""
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Required, NotRequired):
        return checker(options[0])
    if kind is Any:
        return lambda value: None
    if origin is Annotated:  # pydantic's ranges cannot be called
        return restricted(*options) if callable(options[1]) else checker(options[0])
    if origin is Literal:
        return lambda value: None if value in options else ()
    if origin in (Union, types.UnionType):
        kinds = [option for option in options if option is not types.NoneType]
        return one_of([checker(each) for each in kinds], or_null=len(kinds) < len(options))
    if origin is list:
        return list_of(checker(options[0]))
    if origin is dict:
        return dict_of(checker(options[1]))
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return fields_of({key: checker(hints[key]) for key in hints}, kind.__required_keys__)
    if dataclasses.is_dataclass(kind):
        return fields_of({field.name: field_checker(field) for field in dataclasses.fields(kind)})
    if kind in (int, float):
        return restricted(kind, lambda value: not is_huge(value))
    return lambda value: None if type(value) is kind else ()


def field_checker(field: dataclasses.Field[Any]) -> Checker:
    """Null stands for a default that is null, whatever the type."""
    kind: Any = field.type
    return one_of([checker(kind)], or_null=True) if field.default is None else checker(kind)


def one_of(kinds: list[Checker], or_null: bool) -> Checker:
    """The mistake of a value that fits no type: where it does not fit the last one."""

    def check(value: Any) -> Place | None:
        if value is None and or_null:
            return None
        for inner in kinds:
            if (place := inner(value)) is None:
                break
        return place

    return check


def restricted(kind: Any, holds: Callable[[Any], bool]) -> Checker:
    if kind in (int, float):  # the many numbers of metrics.jsonl: in one call
        accepted = (int, float) if kind is float else (int,)
        return lambda value: None if type(value) in accepted and holds(value) else ()
    inner = checker(kind)

    def check(value: Any) -> Place | None:
        place = inner(value)
        return place if place is not None or holds(value) else ()

    return check


def list_of(inner: Checker) -> Checker:
    return lambda value: first(inner, enumerate(value)) if type(value) is list else ()


def dict_of(inner: Checker) -> Checker:
    return lambda value: first(inner, value.items()) if isinstance(value, dict) else ()


def first(inner: Checker, items: Any) -> Place | None:
    for key, item in items:
        if (place := inner(item)) is not None:
            return (key, *place)
    return None


def fields_of(fields: dict[str, Checker], required: Collection[str] = ()) -> Checker:
    def check(value: Any) -> Place | None:
        if not isinstance(value, dict):
            return ()
        for key, inner in fields.items():
            if key not in value:
                if key in required:
                    return (key,)
            elif (place := inner(value[key])) is not None:
                return (key, *place)
        return None

    return check
