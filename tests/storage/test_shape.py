"""JSON has the shape that its reader relies on, or the place of the misfit is told."""

from typing import Annotated, NotRequired

import pytest
from annotated_types import Len
from typing_extensions import TypedDict

from nanoeuler.errors import UserError
from nanoeuler.storage.shape import Amount, Count, Measured, Pair, check_shape, read_lines


class Tensor(TypedDict):
    name: str
    ok: bool
    error: Measured
    range: NotRequired[Pair[Count]]


class Check(TypedDict):
    rows: Annotated[list[Tensor], Len(1)]
    seconds: NotRequired[dict[str, Amount | None]]


ROW = {"name": "x", "ok": True, "error": 1}


@pytest.mark.parametrize(
    "value",
    [
        {"rows": [ROW]},
        {"rows": [ROW, ROW | {"error": float("nan"), "further": []}], "version": 3},
        {"rows": [ROW | {"range": [1, 2]}], "seconds": {"a": None, "b": 0.5, "c": 3}},
    ],
)
def test_further_keys_whole_numbers_for_real_ones_and_missing_optional_keys_fit(value):
    check_shape("a.json", value, Check, "go")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], r"\[\]"),
        ({}, "'rows' is missing"),
        ({"rows": []}, r"'rows' cannot be \[\]"),
        ({"rows": [ROW, {"name": "y", "ok": True}]}, r"'rows\.1\.error' is missing"),
        ({"rows": [ROW | {"ok": 1}]}, r"'rows\.0\.ok' cannot be 1"),
        ({"rows": [ROW | {"error": True}]}, r"'rows\.0\.error' cannot be True"),
        ({"rows": [ROW | {"error": 10**400}]}, r"'rows\.0\.error' cannot be 1000"),
        ({"rows": [ROW | {"range": [1]}]}, r"'rows\.0\.range' cannot be \[1\]"),
        ({"rows": [ROW | {"range": [1, -1]}]}, r"'rows\.0\.range\.1' cannot be -1"),
        ({"rows": [ROW], "seconds": {"a": float("nan")}}, r"'seconds\.a' cannot be nan"),
        ({"rows": [ROW | {"name": "\ud800"}]}, "half a character"),
        ({"rows": [ROW], "further": {"\udfff": 1}}, "half a character"),
    ],
)
def test_the_place_of_a_misfit_is_told(value, reason):
    with pytest.raises(UserError, match=rf"^a\.json: not a check \({reason}.*\); go$"):
        check_shape("a.json", value, Check, "go", "a check")


def test_lines_share_their_keys(tmp_path):
    """Of a million lines they would take more memory than the numbers."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"gradient_norm": 1.5}\n{"gradient_norm": 2.5}\n')
    first, second = (value for _, value in read_lines(file, lambda _: dict[str, float], "mend it"))
    assert (first, second) == ({"gradient_norm": 1.5}, {"gradient_norm": 2.5})
    assert next(iter(first)) is next(iter(second))
