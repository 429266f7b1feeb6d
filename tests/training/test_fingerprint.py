"""A checkpoint is found by its fingerprint, so code that computes another one loses it."""

from pathlib import Path

import pytest

from nanoeuler.config import load
from nanoeuler.training.fingerprint import earlier_fingerprint, fingerprint

ROOT = Path(__file__).parents[2]
RECORDED = {
    ("config", "pretrain"): "d2ea87356294c928c10e30ea0a766cee69fbd1fc03280c113a67d0b425fd1876",
    ("config", "sft"): "88fe428301c864e8a6b12749a5a3f83d8a64b90912d068d4598c045d58d6716d",
    ("config", "dpo"): "6e4c195b2b5bba354a7ec13d12576980d41d6e6685559e30374d7712b3f7b259",
    ("small", "pretrain"): "dfc20c7bbf6f049851cda755527625da83d3a26463fbcb2a21fd1acc2b71707f",
    ("small", "sft"): "c6807a6fe7da7e2dc47cfa7a40a6ddffac552786b4b49c94d6c4efb6318fa78c",
    ("small", "dpo"): "24496099d0310b98fa5b717507353c5c4d2acf638d0eeb6e7ec44a1e32ebb37c",
    ("medium", "pretrain"): "186241c75b778a39d7bffd5072ca9aa39853d4fd4839d6603846eb09ae0d18b3",
    ("medium", "sft"): "6a9a331694feaa93ffdaf73110ad9153867e5450d1dee82ab6d363166fea305a",
    ("medium", "dpo"): "53933a22c7b4cb61b6dbedbc1948efe47b382137c3ae1c820afa26d5555d0843",
    ("base", "pretrain"): "e0f6eb1d48c5ed7836a9602e78da90c1536e96f796aa9e102f71db8b08ef6a8a",
    ("base", "sft"): "ccbde56b44927b7b45bc8dab147b0a4d62926ebc9bc2ed762a5e9293be71aa56",
    ("base", "dpo"): "740247002cdab5fb39e22bee23aa5f36fd5247e874d979c269f2fe6a676b19c8",
    ("large", "pretrain"): "3ad4f5f793fd0937e46302b12185b11328878b9150802781697326903afa0676",
    ("large", "sft"): "94a01cb0207395a579276d7c013b19218da0989cb0fadfd226506c65448993d6",
    ("large", "dpo"): "528de7535c27f21999727eb027f994b8ffd1c87e5833c09eab2ab5f471f039fe",
}
"""They may change with these files and with a stage's revision, and with nothing else."""


@pytest.mark.parametrize(("run", "stage"), RECORDED)
def test_checkpoints_of_earlier_code_are_found(run, stage, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load(f"config/{run}.yaml")
    inputs = {"model": config["model"], "seed": config["seed"]}
    assert fingerprint(stage, config[stage], **inputs) == RECORDED[run, stage]


def test_a_section_that_lacks_keys_keeps_its_fingerprint():
    """A stage that a person started with part of a section hashes that part, without defaults."""
    assert fingerprint("sft", {"epochs": 3, "keep": "best"}, seed=1) == (
        "690e4490426f4e1d53d3f72a19e0425f402f62879246a5898750f799c096b67e"
    )


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
    one, two = (fingerprint("sft", section | {key: value}, seed=1) for value in (0.25, 0.75))
    assert (one != two) == counts


def test_a_list_that_earlier_code_did_not_know_counts_once_it_is_given():
    without, empty, given = (
        fingerprint("pretrain", section, seed=1)
        for section in ({}, {"grow_at": []}, {"grow_at": [5]})
    )
    assert without == empty != given


def test_the_fingerprint_of_earlier_code_has_what_that_code_hashed():
    """Recorded with that code."""
    section = {"keep": "final", "patience": 2, "validate_every": 7, "minimum_fit_share": 0.25}
    assert earlier_fingerprint("sft", section, seed=1) == (
        "a81776ade3daddf8f27aeebd8d1c43f2b597a3d4652b12b30caee8aace16f4b6"
    )
