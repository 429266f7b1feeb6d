"""The depth picture: what is drawn is what was measured."""

import math
import re

import fabricated
import pytest

from nanoeuler.evaluation.report.depth import depth, plane, polar
from nanoeuler.evaluation.report.gather import gather


def points(svg: str) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<circle class="dot [^"]*" cx="([-\d.]+)" cy="([-\d.]+)"', svg)
    ]


def test_the_path_adds_up_the_turns_at_the_measured_norms():
    walked = polar(fabricated.trajectory(layers=3))
    assert [angle for _, angle in walked] == pytest.approx([20 * index for index in range(7)])
    assert [norm for norm, _ in walked] == pytest.approx([1.1**index for index in range(7)])


def test_a_quarter_turn_at_one_norm_is_a_right_angle_on_the_page():
    trajectory = fabricated.trajectory(layers=1)
    trajectory["norm"] = [{"mean": 2.0, "quartiles": [2.0, 2.0]}] * 3
    trajectory["stream_angle"] = [{"mean": 90.0, "quartiles": [90.0, 90.0]}] * 2
    drawn = plane(trajectory)
    (x0, y0), (x1, y1), (x2, y2) = points(drawn)
    middle_x, middle_y = (
        float(value)
        for value in re.search(r'class="origin" cx="([\d.]+)" cy="([\d.]+)"', drawn).groups()
    )
    assert (x1, y2) == pytest.approx((middle_x, middle_y), abs=0.2)
    assert x0 - middle_x == pytest.approx(middle_y - y1, abs=0.2)
    assert x0 - middle_x == pytest.approx(middle_x - x2, abs=0.2)
    assert y0 == pytest.approx(middle_y, abs=0.2)
    assert "turned by 180° in all" in drawn


def test_norms_far_apart_are_drawn_by_their_logarithm():
    trajectory = fabricated.trajectory(layers=2)
    assert "logarithmic" not in plane(trajectory)
    trajectory["norm"][4]["mean"] = 90.0
    drawn = plane(trajectory)
    assert "norm, logarithmic" in drawn
    middle_x, middle_y = (
        float(value)
        for value in re.search(r'class="origin" cx="([\d.]+)" cy="([\d.]+)"', drawn).groups()
    )
    rings = [
        float(radius) for radius in re.findall(r'class="gridline ring".*? r="([\d.]+)"', drawn)
    ]
    assert len(rings) == 6  # 1, 2, 5 … 50: 100 lies outside
    assert max(rings) <= max(math.hypot(x - middle_x, y - middle_y) for x, y in points(drawn))


def test_every_layer_of_every_stage_is_told(tmp_path):
    run = gather(*fabricated.fabricate(tmp_path))
    html = depth(run)
    assert "4 layers take every token through 9 points" in html
    assert "2,048 held-out tokens in the pretrained model" in html
    assert html.count("<figure") == 6
    assert re.findall(r'scope="row">([^<]+)<', html) == [
        "pretrained",
        "fine-tuned",
        "tuned from scratch",
    ]
    assert "160°" in html  # 8 half-steps of 20°
    assert html.count('class="band') == 1 + 4 * 2


def test_what_has_no_direction_ends_the_path_and_leaves_gaps(tmp_path):
    trajectory = fabricated.trajectory(layers=2)
    trajectory["stream_angle"][2] = None
    assert len(polar(trajectory)) == 3
    run = gather(*fabricated.fabricate(tmp_path, stages=("pretrain",)))
    run.stages["pretrain"].evaluation["trajectory"] = trajectory
    assert "–" in depth(run)  # no angle in all
    run.stages["pretrain"].evaluation["trajectory"] = None
    assert depth(run) == ""
