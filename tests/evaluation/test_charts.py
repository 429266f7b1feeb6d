"""Charts: the numbers that the page's script draws."""

import json
import re

from nanoeuler.evaluation.report.charts import MOST_VALUES, Series, line_chart, thin


def numbers(html: str) -> list[dict]:
    """What each chart and each picture of a page is drawn from."""
    found = re.findall(r'<script type="application/json">(.*?)</script>\n</figure>', html)
    return [json.loads(each, parse_constant=refuse) for each in found]


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON: a browser reads none of the numbers")


def test_long_series_are_thinned_to_the_means_of_equal_stretches():
    points = [(float(x), float(x % 2)) for x in range(10 * MOST_VALUES)]
    thinned = thin(points)
    assert len(thinned) == MOST_VALUES
    assert thinned[0] == (4.5, 0.5)
    assert thin(points[:7]) == points[:7]


def test_a_chart_has_what_was_measured_and_nothing_that_is_no_number():
    series = [
        Series("loss", [(x, 6 / (1 + x)) for x in range(100)], shown="0.060"),
        Series("level", level=2.5, colour=1),
        Series("no level", level=float("nan"), colour=1),
        Series("a <b> & c", [(50, 1.0), (99, float("nan"))], colour=2, dots=True),
    ]
    chart = line_chart("Loss", "nats", "step", series)
    (drawn,) = numbers(chart)
    loss, level, gap = drawn["series"]
    assert (drawn["title"], drawn["x_label"], drawn["x"]) == ("Loss", "step", [0, 99])
    assert (loss["x"][:2], loss["y"][:2], len(loss["x"])) == ([0, 1], [6, 3], 100)
    assert (level["label"], level["level"], level["x"]) == ("level", 2.5, [])
    assert (gap["x"], gap["y"], gap["dots"]) == ([50], [1], True)
    assert "a &lt;b&gt; &amp; c" in chart
    assert "nan" not in chart.lower()


def test_nothing_measured_is_no_chart():
    assert line_chart("Loss", "nats", "step", [Series("loss"), Series("level", level=2.0)]) == ""
