"""Values as people read them."""

import pytest

from nanoeuler.evaluation.formats import (
    NARROW,
    duration,
    enumeration,
    markdown_cell,
    percent,
    scientific,
    short_count,
    size,
)
from nanoeuler.evaluation.scores import remarked


def test_names_are_enumerated():
    assert [enumeration(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_a_cell_in_markdown_is_the_text_of_one_in_html():
    assert markdown_cell("a | b\nc") == "a \\| b c"
    assert markdown_cell(remarked("1 & 2", "<always>")) == "1 & 2 <always>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (950, "950"),
        (999.9, "1 k"),
        (1_049_216, "1.05 M"),
        (267_428_864, "267 M"),
        (15_273, "15.3 k"),
        (1e9, "1 G"),
    ],
)
def test_short_counts(value, shown):
    assert short_count(value).replace(NARROW, " ") == shown


def test_sizes_durations_shares_and_powers():
    assert [size(value) for value in (12, 2_310_000, 999_600)] == [
        "12\u202fB",
        "2.31\u202fMB",
        "1\u202fMB",
    ]
    assert [duration(value) for value in (8.2, 125, 11_400)] == ["8 s", "2 min 05 s", "3 h 10 min"]
    assert [percent(0.7833), percent(0.5, 0), percent(None)] == ["78.3\u202f%", "50\u202f%", "–"]
    assert [scientific(value) for value in (4.53e-9, 1e-6, 0.0, None)] == [
        "4.5 × 10⁻⁹",
        "10⁻⁶",
        "0",
        "not a number",
    ]
