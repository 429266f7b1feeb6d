"""The file of chosen algorithms, which needs no GPU: a damaged one costs only time."""

import json

import pytest

from nanoeuler.backend.cuda.algorithms import check_algorithms, read_algorithms, write_algorithms
from nanoeuler.errors import UserError

CHOSEN = {"768x512/768b": "0f" * 64, "768x768/768b": "a0" * 64}


def test_what_was_chosen_is_read_again_and_added_to(tmp_path):
    path = tmp_path / "cache" / "products.json"
    assert read_algorithms(path) == {}
    write_algorithms(path, dict(list(CHOSEN.items())[:1]))
    write_algorithms(path, dict(list(CHOSEN.items())[1:]))
    assert read_algorithms(path) == CHOSEN


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("0f0f", "0f0e", 1),
        lambda text: text.replace("0f0f", "0fxf", 1),
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: json.dumps(CHOSEN),  # without a seal
        lambda text: json.dumps({"768x512/768b": "not hexadecimal"}),
        lambda text: json.dumps({"768x512/768b": "0f" * 63}),
        lambda text: json.dumps({"768x512/768b": 5}),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_and_not_used(tmp_path, capsys, damage):
    path = tmp_path / "products.json"
    write_algorithms(path, CHOSEN)
    path.write_text(damage(path.read_text()))
    assert read_algorithms(path) == {}


def test_a_damaged_algorithm_of_a_checkpoint_is_a_sentence():
    with pytest.raises(UserError, match=r"state\.json: the algorithm of the product 1x1 is not"):
        check_algorithms({"1x1": "zz"}, "state.json")
