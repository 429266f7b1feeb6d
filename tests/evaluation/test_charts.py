"""Charts: round ticks, legible labels, lines that stay inside."""

import re
from xml.etree import ElementTree

import pytest

from nanoeuler.evaluation.report.charts import (
    HEIGHT,
    LEFT,
    MOST_POINTS,
    WIDTH,
    Series,
    line_chart,
    thin,
    tick_label,
    ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 5, [0, 1, 2, 3, 4, 5]),
        (1.69, 2.94, [1.5, 2.0, 2.5, 3.0]),
        (0, 2_048_000, [0, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000]),
        (-3, 4, [-4, -2, 0, 2, 4]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low, high, expected):
    assert ticks(low, high, 5) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 7.0, -2.0])
def test_a_single_value_gets_a_range_around_it(value):
    found = ticks(value, value, 5)
    assert found[0] <= value <= found[-1]
    assert found[0] < found[-1]


@pytest.mark.parametrize(
    ("among", "labels"),
    [
        ([0.0, 0.5, 1.0, 1.5], ["0", "0.5", "1.0", "1.5"]),
        ([0, 1, 2], ["0", "1", "2"]),
        ([0, 500_000, 1_000_000], ["0", "500\u202fk", "1\u202fM"]),
        ([0, 1e-3, 2e-3, 3e-3], ["0", "1e-3", "2e-3", "3e-3"]),
        ([0, 5e-5, 1e-4, 1.5e-4], ["0", "5e-5", "1e-4", "1.5e-4"]),
    ],
)
def test_tick_labels(among, labels):
    assert [tick_label(value, among) for value in among] == labels


def test_long_series_are_thinned_to_the_means_of_equal_stretches():
    points = [(float(x), float(x % 2)) for x in range(10 * MOST_POINTS)]
    thinned = thin(points)
    assert len(thinned) == MOST_POINTS
    assert thinned[0] == (4.5, 0.5)
    assert thin(points[:7]) == points[:7]


def test_a_chart_is_well_formed_svg_and_its_lines_stay_inside():
    series = [
        Series("loss", [(x, 6 / (1 + x)) for x in range(100)], shown="0.060"),
        Series("level", level=2.5, colour=1),
        Series("a <b> & c", [(50, 1.0), (99, float("nan"))], colour=2, dots=True),
    ]
    chart = line_chart("Loss", "nats", "step", series)
    ElementTree.fromstring(chart.replace("&nbsp;", " "))
    (points,) = re.findall(r'<polyline class="line s0" points="([^"]*)"', chart)
    placed = [tuple(map(float, point.split(","))) for point in points.split()]
    assert all(LEFT <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in placed)
    assert placed[0][1] < placed[-1][1]  # the loss falls: y grows downwards
    assert "a &lt;b&gt; &amp; c" in chart
    assert "nan" not in chart


def test_nothing_measured_is_no_chart():
    assert line_chart("Loss", "nats", "step", [Series("loss"), Series("level", level=2.0)]) == ""


def test_one_point_is_a_dot():
    assert "<circle" in line_chart("Loss", "nats", "step", [Series("loss", [(3, 2.0)])])
