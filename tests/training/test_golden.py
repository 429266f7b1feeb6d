"""Weights after a few steps, to the bit: what trained yesterday has to train the same today.

The hashes were recorded on the machines named here.
"""

import hashlib

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import ODD
from tests.rounding import machine

ODD_HEADS = ODD | {"head_size": 10}
CASES = {
    "small, one thread": ({"preset": "small"}, lambda: CpuBackend(1), False),
    "small, two threads": ({"preset": "small"}, lambda: CpuBackend(2), False),
    "odd, two threads, recomputation": (ODD_HEADS, lambda: CpuBackend(2), True),
    "odd, reference": (ODD_HEADS, ReferenceBackend, False),
    "odd, reference in float64": (ODD_HEADS, lambda: ReferenceBackend(np.float64), True),
}
GOLDEN = {
    "emeraldrapids, 2 cores, NumPy 2.4.6, Numba 0.68.1": {
        "small, one thread": "29bedd23527da85c",
        "small, two threads": "cba9b566cbdba9cc",
        "odd, two threads, recomputation": "16f86ef7de0aeb88",
        "odd, reference": "43b888f9ad63be67",
        "odd, reference in float64": "d0e58e75f3a1ee7d",
    },
}


def weights_after_training(case: str) -> str:
    fields, engine, recompute = CASES[case]
    config = ModelConfig.from_dict(fields)
    tokens = np.random.default_rng(7).integers(1, config.vocab_size, 4000).astype(np.int32)
    tokens[::41] = 0
    length = config.context
    stream = TextStream(tokens, length, 8 * length, config.mtp_weights, 0, True, 5, "golden")
    settings = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    parameters = initial_parameters(config, 3)
    state = TrainingState(config, engine(), parameters, settings, recompute=recompute)
    for step in range(5):
        state.train_step(stream.rows(step), 2, 3e-3)
    return hashlib.sha256(np.asarray(state.parameters, np.float32).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_recorded_code(case):
    recorded = GOLDEN.get(machine(), {})
    if case not in recorded:
        pytest.skip(f"no weights are recorded for {machine()}")
    assert weights_after_training(case) == recorded[case]
