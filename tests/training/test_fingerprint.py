"""A checkpoint is found by its fingerprint."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanoeuler.config import load, write_resolved
from nanoeuler.config.settings import Pretrain, Sft
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.training.job import fingerprint

ROOT = Path(__file__).parents[2]
PRETRAIN = Pretrain(tokens=5000, batch_tokens=500, learning_rate=1e-3)


@pytest.mark.parametrize("stage", BY_SECTION)
@pytest.mark.parametrize("run", ["config", "small", "medium", "base", "large"])
def test_a_stage_that_is_run_by_hand_finds_what_the_workflow_has_trained(
    run, stage, monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    config = load(f"config/{run}.yaml")
    write_resolved(tmp_path / "configuration.json", config)
    handed = load(tmp_path / "configuration.json")
    prints = {
        fingerprint(
            stage, BY_SECTION[stage].settings.read(each[stage]), model=each["model"] | preset
        )
        for each in (config, handed)
        for preset in [{"preset": None}]
    }
    assert len(prints) == 1


def test_a_key_that_is_left_out_counts_as_its_default():
    given = json.loads('{"epochs": 3, "optimizer": "adamw", "beta1": 0.9}')
    one, two = (fingerprint("sft", Sft.read(section)) for section in (given, {"epochs": 3}))
    assert one == two != fingerprint("sft", Sft(epochs=4))


@pytest.mark.parametrize(
    ("key", "section", "counts"),
    [
        ("validate_every", {"keep": "final"}, False),
        ("validate_every", {"keep": "final", "patience": None}, False),
        ("validate_every", {"keep": "final", "patience": 2}, True),
        ("validate_every", {"keep": "best"}, True),
        ("minimum_fit_share", {"keep": "best"}, False),
        ("rewinds", {"keep": "best"}, False),
    ],
)
def test_a_key_counts_where_it_can_change_the_weights(key, section, counts):
    one, two = (fingerprint("sft", Sft(**section, **{key: value})) for value in (0.25, 0.75))
    assert (one != two) == counts


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"grow_at": [5]}, True),
        ({"short_rows_until": 5}, True),
        ({"optimizer": "muon"}, True),
        ({"tokens": 6000}, True),
        ({"init_from": "elsewhere"}, False),  # what is there is hashed
    ],
)
def test_what_a_stage_is_told_counts(change, counts):
    one, two = (fingerprint("pretrain", each) for each in (PRETRAIN, replace(PRETRAIN, **change)))
    assert (one != two) == counts


def test_a_wsd_run_may_become_longer():
    one, two = (replace(PRETRAIN, schedule="wsd", tokens=tokens) for tokens in (5000, 6000))
    assert fingerprint("pretrain", one) == fingerprint("pretrain", two)
