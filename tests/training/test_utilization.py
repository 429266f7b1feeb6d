"""The share of a device's peak that a stage says it uses."""

import json

import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.model.config import ModelConfig
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.streams import TextStream

PEAK = 1e12
"""Floating-point operations per second of an imaginary device."""


def test_each_line_counts_the_work_of_its_own_steps(trainer, data, monkeypatch):
    monkeypatch.setattr(ReferenceBackend, "peak_flops", PEAK, raising=False)
    trainer.config["pretrain"] |= {"tokens": 7 * 128, "log_every": 2}
    assert main(trainer.command("pretrain")[3:]) == 0
    config = ModelConfig.from_dict(trainer.config["model"])
    tokens = TokenStore.open(data / "tokens" / "manifest.json").tokens("train")
    end_id, seed = Tokenizer.load(data / "tokenizer.json").end_id, trainer.config["seed"]
    stream = TextStream(
        tokens, config.context, 128, config.mtp_weights, end_id, True, seed, "pretrain"
    )
    lines = [entry for entry in trainer.metrics() if "mfu" in entry]
    assert [line["step"] for line in lines] == [2, 4, 6, 7]
    for line, steps in zip(lines, ((0, 1), (2, 3), (4, 5), (6,)), strict=True):
        seconds = 128 * len(steps) / line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(
            sum(stream.rows(step).training_flops(config) for step in steps) / seconds / PEAK
        ), json.dumps(line)
