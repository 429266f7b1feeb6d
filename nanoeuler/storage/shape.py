"""Check that JSON has the shape that its reader relies on, given as a type.

    class Line(TypedDict):
        step: Count
        rate: NotRequired[Number | None]

    check_shape(path, json.loads(text), Line, "delete it and run the stage again")

A type names only the keys that its reader uses; further keys are passed over. pydantic checks, as
it checks the configuration (config/validation.py).
"""

import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Interval, Len, Predicate

from nanoeuler.errors import UserError, brief
from nanoeuler.storage.files import MOST_LINES, parse_json, read_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LARGEST_COUNT = 1e15
"""No count, no number of bytes and no seconds is above it."""
LARGEST_FLOAT = 1e38
"""Largest fractional setting: the end of float32."""
LARGEST_NUMBER = 1e30
"""Largest other number of a result, so that sums and products of them stay finite."""
ENCODER = json.JSONEncoder(ensure_ascii=False)

Place = tuple[str | int, ...]
"""Keys and indices that lead to a value."""
T = TypeVar("T")


def is_huge(value: int | float) -> bool:
    """Whether a number is too large to compute with."""
    return abs(value) > (LARGEST_FLOAT if isinstance(value, float) else LARGEST_COUNT)


def sane(value: float) -> bool:
    """Whether a measured value is of sane size; training that diverges also yields NaN and ∞."""
    return abs(value) <= LARGEST_NUMBER or value != value or abs(value) == math.inf


Count = Annotated[int, Interval(ge=0, le=LARGEST_COUNT)]
Amount = Annotated[float, Interval(ge=0, le=LARGEST_COUNT)]
Number = Annotated[float, Interval(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Measured = Annotated[float, Predicate(sane)]
Pair = Annotated[list[T], Len(2, 2)]


def check_shape(where: str | Path, value: Any, kind: Any, mend: str, what: str = "") -> None:
    """Raise `UserError` unless `value`, read from `where`, is what the type `kind` says.

    `mend` says what to do, and `what` what it should have been: "an evaluation".
    """
    wrong = misfit(value, kind)
    if wrong is None and is_text(value):
        return
    reason = "half a character" if wrong is None else describe(value, wrong)
    raise UserError(f"{where}: not {what or 'what its stage wrote'} ({reason}); {mend}")


@functools.cache
def adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # takes long to import, and most stages check nothing

    return TypeAdapter(kind)


def misfit(value: Any, kind: Any) -> Place | None:
    """The place of the first value that is wrong or missing; None where all is well."""
    from pydantic import ValidationError

    try:
        adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    return None


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
        if misfit(value, kind) is not None or "\\u" in line:  # half a character is always escaped
            check_shape(f"{path}, line {number}", value, kind, mend)
        # one key for all lines: half of the memory of a million
        yield number, {sys.intern(key): each for key, each in value.items()}


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
