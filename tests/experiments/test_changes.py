"""What an experiment changes: on the command line, and in a sweep's file."""

import pytest

from nanoeuler.errors import UserError
from nanoeuler.experiments.changes import read_change, read_sweep, title


def test_a_change_sets_one_key_or_several():
    assert read_change("pretrain.learning_rate=2e-3") == {"pretrain": {"learning_rate": "2e-3"}}
    both = {"pretrain": {"beta1": "0.8"}, "model": {"dim": "96"}}
    assert read_change("pretrain.beta1=0.8,model.dim=96") == both
    lists = read_change("pretrain.grow_at=[20, 40],model.dim=96")
    assert lists == {"pretrain": {"grow_at": [20, 40]}, "model": {"dim": "96"}}
    section = read_change("pretrain.beta1=0.8,pretrain={weight_decay: 2e-1}")
    assert title(section) == "pretrain.beta1=0.8,pretrain.weight_decay=2e-1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed=3", "--seeds sets seed"),
        ("pretrain.tokens=3", "--minutes or --tokens sets pretrain.tokens"),
        ("tokenizer.vocab_size=600", "on the same data; change keys of model and pretrain"),
        ("pretrain=3", "pretrain is a section; name a key in it"),
        ("pretrain", "is no override"),
        ("model.dim=96,model={dim: 64}", "model.dim is given twice; keep one of them"),
    ],
)
def test_what_is_no_change_of_training_is_refused(text, sentence):
    with pytest.raises(UserError, match=sentence):
        read_change(text)


def sweep(tmp_path, text):
    (tmp_path / "sweep.yaml").write_text(text)
    number, changes = read_sweep(tmp_path / "sweep.yaml")
    return number, list(changes)


def test_a_grid_is_every_combination(tmp_path):
    number, changes = sweep(
        tmp_path, "values: {pretrain.beta1: [0.8, 0.9], model.layers: [1, 2, 3]}"
    )
    assert number == len(changes) == 6
    assert {(each["pretrain"]["beta1"], each["model"]["layers"]) for each in changes} == {
        (beta, layers) for beta in (0.8, 0.9) for layers in (1, 2, 3)
    }


def test_draws_are_of_ranges_and_the_same_again(tmp_path):
    text = (
        "draws: 200\nseed: 3\nvalues:\n"
        "  pretrain.learning_rate: {low: 1e-4, high: 1e-2, log: true}\n"
        "  pretrain.weight_decay: [0.1, 0.3]\n"
    )
    number, changes = sweep(tmp_path, text)
    rates = [each["pretrain"]["learning_rate"] for each in changes]
    assert number == len(changes) == 200
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert 70 < sum(rate < 1e-3 for rate in rates) < 130  # half of the logarithm's range
    assert {each["pretrain"]["weight_decay"] for each in changes} == {0.1, 0.3}
    assert sweep(tmp_path, text) == (number, changes)
    assert sweep(tmp_path, text.replace("seed: 3", "seed: 4")) != (number, changes)
    _, changes = sweep(tmp_path, text.replace(", log: true", ""))
    rates = [each["pretrain"]["learning_rate"] for each in changes]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert sum(rate < 1e-3 for rate in rates) < 40  # a tenth of the range


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("values: {pretrain.beta1: {low: 0.8, high: 0.9}}", "is a range.*; give draws"),
        ("draws: 2\nvalues: {pretrain.beta1: {low: 0.9, high: 0.8}}", "is not below"),
        ("draws: 2\nvalues: {pretrain.beta1: {low: 0, high: 1, log: true}}", "a logarithm wants"),
        ("values: {pretrain.beta1: []}", "is an empty list"),
        ("values: {seed: [1, 2]}", "--seeds sets seed"),
        ("values: {}", "values is empty"),
        ("draw: 2\nvalues: {}", "did you mean draws"),
    ],
)
def test_a_mistake_in_a_sweep_is_told(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        sweep(tmp_path, text)
