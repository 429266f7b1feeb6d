"""examples/train.py: short, on its own, and the same to the bit as the trainer."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows

PATH = Path(__file__).resolve().parents[1] / "examples/train.py"
MAY_IMPORT = re.compile(
    r"nanoeuler\.(backend\.(reference|records|runtime)|model\.(blocks\.\w+|config|flat)"
    r"|training\.optimizer\.adamw)"
)
"""Ops, blocks and the optimizer, with the records that those take and the weights' names."""


def load():
    spec = importlib.util.spec_from_file_location("train_example", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_imports_ops_blocks_and_the_optimizer_alone():
    text = PATH.read_text()
    assert len(text.splitlines()) <= 400
    imported = re.findall(r"^(?:from|import) (\S+)", text, re.MULTILINE)
    ours = {name for name in imported if name.startswith("nanoeuler")}
    assert all(MAY_IMPORT.fullmatch(name) for name in ours)
    assert {name.partition(".")[0] for name in set(imported) - ours} - sys.stdlib_module_names == {
        "numpy"
    }


def test_its_steps_have_the_bits_of_the_trainer():
    example = load()
    B, T = 4, 16
    config = ModelConfig(example.VOCABULARY, 32, 2, 4, 2, 40, T, mtp_heads=1)
    model = example.Model(config, initial_parameters(config, 1), B, T)
    plain = example.Trainer(model)
    state = TrainingState(
        config, ReferenceBackend(np.float32), initial_parameters(config, 1), example.ADAMW
    )
    random = np.random.default_rng(3)
    for rate in (1e-2, 3e-3, 1e-3):
        ids, targets = example.windows(np.arange(200, dtype=np.uint8), B, T, random)
        positions, starts = np.tile(np.arange(T, dtype=np.int32), (B, 1)), np.zeros_like(ids)
        weights = np.full((B, T, 1), 1 / ids.size, np.float32)
        result = state.train_step(
            StepRows(ids, positions, starts, targets[..., None], weights), B, rate
        )
        loss = plain.step(ids, targets, rate)
        assert np.isclose(loss, result.first_head_loss, rtol=1e-6)
        assert np.array_equal(model.parameters_P, state.parameters)


def test_it_learns_a_text(capsys):
    text = b"the cat sat on the mat. the dog ate the cake. " * 60
    _, bits = load().train(text, steps=200, dim=32, layers=1, T=32, peak=1e-2)
    assert bits < 1
    said = capsys.readouterr().out
    assert "held-out" in said
    assert "the " in said.splitlines()[-1]
