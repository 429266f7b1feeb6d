"""What the page's script draws, in a real headless Chromium: round ticks, legible labels, lines
that stay inside, and a path of the measured norms and angles."""

import math

import fabricated
import pytest

from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.depth import plane
from nanoeuler.evaluation.report.rendering import render_page
from tests.chromium import browser, browsers, open_page

__all__ = ["browser", "browsers", "open_page"]

LINES = """() => [...document.querySelectorAll("polyline")].map((line) => {
  const points = line.getAttribute("points").split(" ");
  return [line.getAttribute("class"), points.map((point) => point.split(",").map(Number))];
})"""
CIRCLES = """(kind) => [...document.querySelectorAll(`circle.${kind}`)].map(
  (one) => ["cx", "cy", "r"].map((name) => Number(one.getAttribute(name))))"""
LEFT, TOP, RIGHT, BOTTOM = 52, 10, 448, 210


@pytest.fixture
def drawn(browser, open_page, tmp_path):
    """drawn(figure, …) → a page of these figures, whose scripts have run without an error."""

    def open_(*figures):
        path = tmp_path / "page.html"
        path.write_text(render_page("made up", ["<h1>made up</h1>", *figures]), encoding="utf-8")
        return open_page(browser, f"file://{path}")

    return open_


def test_ticks_are_round_enclose_the_values_and_are_labelled_alike(drawn):
    page = drawn()
    ticks = {
        (0, 5): [0, 1, 2, 3, 4, 5],
        (1.69, 2.94): [1.5, 2.0, 2.5, 3.0],
        (0, 2_048_000): [0, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000],
        (-3, 4): [-4, -2, 0, 2, 4],
    }
    for ends, expected in ticks.items():
        assert page.evaluate("(ends) => ticksAround(...ends)", ends) == pytest.approx(expected)
    for value in (0.0, 7.0, -2.0):  # a single value gets a range around it
        found = page.evaluate("(value) => ticksAround(value, value)", value)
        assert found[0] <= value <= found[-1]
        assert found[0] < found[-1]
    powers = {(1.5, 40): [1, 2, 5, 10, 20, 50], (0.011, 90): [0.01, 0.1, 1, 10, 100]}
    for ends, expected in powers.items():
        assert page.evaluate("(ends) => logTicksAround(...ends)", ends) == pytest.approx(expected)
    labels = [
        ([0.0, 0.5, 1.0, 1.5], ["0", "0.5", "1.0", "1.5"]),
        ([0, 1, 2], ["0", "1", "2"]),
        ([0, 500_000, 1_000_000], ["0", "500\u202fk", "1\u202fM"]),
        ([0, 1e-3, 2e-3, 3e-3], ["0", "1e-3", "2e-3", "3e-3"]),
        ([0, 5e-5, 1e-4, 1.5e-4], ["0", "5e-5", "1e-4", "1.5e-4"]),
    ]
    for among, expected in labels:
        told = page.evaluate("(among) => among.map((tick) => tickLabel(tick, among))", among)
        assert told == expected


def test_lines_stay_inside_and_long_ones_are_averaged(drawn):
    series = [
        Series("loss", [(x, 6 / (1 + x)) for x in range(1000)]),
        Series("level", level=2.5, colour=1),
        Series("a <b> & c", [(50, 1.0), (999, float("nan"))], colour=2),
    ]
    page = drawn(line_chart("Loss", "nats", "step", series, logarithmic=True))
    (name, loss), (_, one) = page.evaluate(LINES)
    assert name == "line s0"
    assert len(loss) == 240
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in loss)
    assert loss[0][1] < loss[-1][1]  # the loss falls: y grows downwards
    assert page.evaluate(CIRCLES, "dot") == [[*one[0], 3]]  # one point is a dot
    assert page.locator("line.level").count() == 1


def test_a_quarter_turn_at_one_norm_is_a_right_angle_on_the_page(drawn):
    trajectory = fabricated.trajectory(layers=1)
    trajectory["norm"] = [{"mean": 2.0, "quartiles": [2.0, 2.0]}] * 3
    trajectory["stream_angle"] = [{"mean": 90.0, "quartiles": [90.0, 90.0]}] * 2
    page = drawn(plane(trajectory))
    (x0, y0, _), (x1, y1, _), (x2, y2, _) = page.evaluate(CIRCLES, "dot")
    ((middle_x, middle_y, _),) = page.evaluate(CIRCLES, "origin")
    assert (x1, y2) == pytest.approx((middle_x, middle_y), abs=0.2)
    assert x0 - middle_x == pytest.approx(middle_y - y1, abs=0.2)
    assert x0 - middle_x == pytest.approx(middle_x - x2, abs=0.2)
    assert y0 == pytest.approx(middle_y, abs=0.2)


def test_norms_far_apart_are_drawn_by_their_logarithm(drawn):
    trajectory = fabricated.trajectory(layers=2)
    trajectory["norm"][4]["mean"] = 90.0
    page = drawn(plane(trajectory))
    ((middle_x, middle_y, _),) = page.evaluate(CIRCLES, "origin")
    rings = [radius for _, _, radius in page.evaluate(CIRCLES, "ring")]
    assert len(rings) == 6  # 1, 2, 5 … 50: 100 lies outside
    assert max(rings) <= max(
        math.hypot(x - middle_x, y - middle_y) for x, y, _ in page.evaluate(CIRCLES, "dot")
    )
