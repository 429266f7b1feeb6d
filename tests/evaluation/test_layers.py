"""The graph of the rules: everything below what it needs, nothing on top of another."""

import pytest

from nanoeuler.evaluation.report.layers import lay_out, spread, without_shortcuts

NEEDS = {
    "sample": [],
    "book": ["sample"],
    "clean": ["book"],
    "web": ["sample"],
    "instructions": ["sample"],
    "questions": ["sample"],
    "corpus": ["clean", "web"],
    "bpe": ["corpus"],
    "tokens": ["corpus", "bpe"],
    "pretrain": ["tokens", "bpe"],
    "sft": ["pretrain", "instructions", "bpe"],
    "scratch": ["instructions", "bpe"],
    "evaluate": ["pretrain", "sft", "scratch", "questions", "tokens"],
    "gradients": [],
    "report": ["evaluate", "gradients", "corpus"],
}


def test_a_shortcut_beside_a_longer_path_is_left_out():
    assert without_shortcuts({"a": [], "b": ["a"], "c": ["a", "b"]}) == {
        "a": [],
        "b": ["a"],
        "c": ["b"],
    }
    assert without_shortcuts(NEEDS)["evaluate"] == ["sft", "scratch", "questions"]


def test_every_node_stands_below_what_it_needs_and_beside_its_neighbours():
    layout = lay_out(without_shortcuts(NEEDS), node_width=96, bend_width=0, gap=12)
    assert layout.nodes.keys() == NEEDS.keys()
    for node, needed in NEEDS.items():
        assert all(layout.nodes[other][1] < layout.nodes[node][1] for other in needed), node
    for node, (x, layer) in layout.nodes.items():
        assert 48 <= x <= layout.width - 48
        assert all(
            abs(x - other_x) >= 108 - 1e-6
            for other, (other_x, other_layer) in layout.nodes.items()
            if other != node and other_layer == layer
        )
    assert layout.nodes["report"][1] == layout.layers - 1
    assert layout.nodes["gradients"][1] == layout.layers - 2  # as low as what needs it allows


def test_an_edge_over_several_layers_keeps_clear_of_the_boxes_between():
    layout = lay_out(without_shortcuts(NEEDS), node_width=96, bend_width=0, gap=12)
    path = layout.edges["sample", "questions"]
    assert [layer for _, layer in path] == list(range(path[0][1], path[-1][1] + 1))
    for x, layer in path[1:-1]:
        assert all(
            abs(x - other_x) >= 60 - 1e-6
            for other_x, other_layer in layout.nodes.values()
            if other_layer == layer
        )


def test_positions_are_the_wanted_ones_where_they_fit_and_else_share_the_shift():
    assert spread([0.0, 50.0, 200.0], [10.0, 10.0, 10.0], 2.0) == [0.0, 50.0, 200.0]
    assert spread([0.0, 0.0], [10.0, 10.0], 2.0) == pytest.approx([-6.0, 6.0])
