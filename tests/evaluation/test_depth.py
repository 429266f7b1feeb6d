"""The depth picture: what is drawn is what was measured."""

import re

import fabricated
import pytest
from test_charts import numbers

from nanoeuler.evaluation.report.depth import depth, plane, polar
from nanoeuler.evaluation.report.gather import gather


def test_the_path_adds_up_the_turns_at_the_measured_norms():
    walked = polar(fabricated.trajectory(layers=3))
    assert [angle for _, angle in walked] == pytest.approx([20 * index for index in range(7)])
    assert [norm for norm, _ in walked] == pytest.approx([1.1**index for index in range(7)])


def test_a_picture_says_how_it_is_to_be_read():
    trajectory = fabricated.trajectory(layers=2)
    drawn = plane(trajectory)
    assert "turned by 80° in all" in drawn
    assert "logarithmic" not in drawn
    assert numbers(drawn)[0]["names"] == [
        *("embedding", "layer 1, attention", "layer 1, MLP"),
        *("layer 2, attention", "layer 2, MLP"),
    ]
    trajectory["norm"][4]["mean"] = 90.0
    assert "norm, logarithmic" in plane(trajectory)


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
    charts = [each for each in numbers(html) if "series" in each]
    assert len([one for each in charts for one in each["series"] if one["low"]]) == 1 + 4 * 2


def test_what_has_no_direction_ends_the_path_and_leaves_gaps(tmp_path):
    trajectory = fabricated.trajectory(layers=2)
    trajectory["stream_angle"][2] = None
    assert len(polar(trajectory)) == 3
    run = gather(*fabricated.fabricate(tmp_path, stages=("pretrain",)))
    run.stages["pretrain"].evaluation["trajectory"] = trajectory
    assert "–" in depth(run)  # no angle in all
    run.stages["pretrain"].evaluation["trajectory"] = None
    assert depth(run) == ""
