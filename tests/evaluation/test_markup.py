"""HTML from values: escaped, and numbers as people read them."""

import pytest

from nanoeuler.evaluation.report.markup import (
    NARROW,
    Bar,
    Markup,
    bars,
    duration,
    element,
    enumeration,
    join,
    percent,
    scientific,
    section,
    short_count,
    size,
    table,
)


def test_text_is_escaped_and_markup_is_not():
    assert (
        element("p", "a < b", element("b", "&"), class_="note", title='"x"')
        == '<p class="note" title="&quot;x&quot;">a &lt; b<b>&amp;</b></p>'
    )
    assert element("p", 0) == "<p>0</p>"
    assert join(["a", None, "", Markup("<i>"), 0], " ") == "a <i> 0"


def test_names_are_enumerated():
    assert [enumeration(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_a_section_without_content_is_left_out():
    assert section("Title", "", Markup()) == ""
    assert table(["a"], []) == ""
    assert bars("Title", "note", []) == ""


def test_a_table_marks_row_headings_and_numbers():
    made = table(["", "score"], [["sft", 0]])
    assert '<th scope="row">sft</th><td class="number">0</td>' in made


def test_bars_are_in_proportion_and_stay_in_their_track():
    made = bars(
        "Scores",
        "share",
        [Bar("a", 0.5, "50 %", 0, error=0.1), Bar("b", 1.2, "120 %")],
        maximum=1.0,
    )
    assert "width:50.00%" in made
    assert "left:40.00%;width:20.00%" in made
    assert "width:100.00%" in made


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
