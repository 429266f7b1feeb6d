"""Does an engine move parameters as the optimizer's formula says?

The formula is written here a second time, without the recurrences that the engines share: moments
are sums over all gradients, and a matrix is made orthogonal by its singular values.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.model.checks.comparison import Comparison, compare
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.refining import LAYER
from nanoeuler.training.check_model import in_float64
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import POLYNOMIALS, UPDATE_SCALE, Muon
from nanoeuler.training.optimizer.optimizer import OptimizerSettings
from nanoeuler.training.state import TrainingState

RATES = 0.1, 0.05, 0.1
"""The learning rates of the updates. One from zero moments shows neither momentum nor its decay."""
NORMS = 3.0, 0.5, 2.0
"""Norms of their gradients in units of the clipping norm: one is not clipped."""
MODERATE_NORM = 1e3
"""Where nothing is clipped below it, gradients are about this long."""
SMALL_ELEMENTS = 1e-15, 1e-3
"""Limits for half of a gradient's elements, which are as small as AdamW's ε: there it matters. The
square of a smaller one is no number of float32."""


def check_updates(
    ops: Backend, optimizer: OptimizerSettings, family: str = "llama"
) -> Iterator[Comparison]:
    """The parameters after three updates, and one whose gradient is not finite."""
    adamw = adamw_of(optimizer)
    limit = optimizer.tolerance[ops.precision]
    kv_heads = 2 if family == "gpt2" else 1
    config = ModelConfig(300, 64, 1, 2, kv_heads, ffn=100, context=16, family=family)
    start, *gradients = random_buffers(config, adamw)
    state = TrainingState(config, ops, start.array.copy(), optimizer)
    program = ops.runtime.program(state.update)
    bad = gradients[-1].array.copy()
    bad[0] = np.inf
    for step, values in enumerate([*(gradient.array for gradient in gradients), bad]):
        state.gradients[...] = ops.from_host(values)
        state.schedule.load(np.array([RATES[step % len(RATES)], step]))
        program.run()
    found = FlatBuffer(config, in_float64(ops, state.parameters))
    clipped = [clip(gradient.array, adamw.clip_norm) for gradient in gradients]
    expected = moved(optimizer, config, start, [FlatBuffer(config, each) for each in clipped])
    for tensor in expected.table:
        arrays = found[tensor.name], expected[tensor.name]
        yield compare("three updates", tensor.name, *arrays, limit)


def adamw_of(optimizer: OptimizerSettings) -> AdamW:
    """The settings of what moves the parameters that no other optimizer does."""
    adamw = optimizer.adamw if isinstance(optimizer, Muon) else optimizer
    assert isinstance(adamw, AdamW), "another optimizer needs its formula here"
    return adamw


def random_buffers(config: ModelConfig, adamw: AdamW) -> list[FlatBuffer]:
    """Parameters, and a gradient for each update; all float32, with padding 0."""
    random = np.random.default_rng(4)
    buffers = [
        FlatBuffer(config, np.zeros(FlatBuffer.elements(config), np.float32)) for _ in (0, *RATES)
    ]
    for buffer in buffers:
        for tensor in buffer.table:
            buffer[tensor.name][...] = random.standard_normal(tensor.shape)
    small = np.clip(adamw.epsilon, *SMALL_ELEMENTS)
    norm = min(adamw.clip_norm, MODERATE_NORM)
    for buffer, units in zip(buffers[1:], NORMS, strict=True):
        is_small = random.random(len(buffer.array)) < 0.5
        buffer.array[is_small] *= small
        large = buffer.array[~is_small]
        buffer.array[~is_small] *= units * norm / np.linalg.norm(large)
    return buffers


def clip(gradient: np.ndarray, clip_norm: float) -> np.ndarray:
    """A gradient in float64, of norm `clip_norm` at most."""
    gradient = gradient.astype(np.float64)
    return gradient * min(1.0, clip_norm / (float(np.linalg.norm(gradient)) + 1e-6))


def moved(
    optimizer: OptimizerSettings,
    config: ModelConfig,
    start: FlatBuffer,
    gradients: Sequence[FlatBuffer],
) -> FlatBuffer:
    """The parameters after an update by each of the gradients, in float64."""
    adamw, embedding = adamw_of(optimizer), family_of(config).EMBEDDING
    after = FlatBuffer(config, start.array.astype(np.float64))
    for tensor in after.table:
        is_matrix = len(tensor.shape) > 1
        is_muons = isinstance(optimizer, Muon) and is_matrix and LAYER.match(tensor.name)
        rate = adamw.embedding_rate if tensor.name == embedding else 1.0
        values, each = after[tensor.name], [gradient[tensor.name] for gradient in gradients]
        for step, learning_rate in enumerate(RATES, start=1):
            if isinstance(optimizer, Muon) and is_muons:
                update = muon_update(optimizer.momentum, each[:step], tensor.matrices)
            else:
                update = adamw_update(adamw, each[:step])
            if is_matrix:
                update = update + adamw.weight_decay * values
            values -= rate * learning_rate * update
    return after


def mean(decay: float, values: Sequence[np.ndarray]) -> np.ndarray:
    """(1 − decay) Σ decayᵀ⁻ᵗ valuesₜ, what a moment that begins with zero has become."""
    weights = [(1 - decay) * decay**age for age in reversed(range(len(values)))]
    return np.einsum("t,t...->...", weights, np.array(values))


def adamw_update(adamw: AdamW, gradients: Sequence[np.ndarray]) -> np.ndarray:
    """m̂ / (√v̂ + ε)"""
    steps = len(gradients)
    first = mean(adamw.beta1, gradients) / (1 - adamw.beta1**steps)
    second = mean(adamw.beta2, [values**2 for values in gradients]) / (1 - adamw.beta2**steps)
    return first / (np.sqrt(second) + adamw.epsilon)


def muon_update(momentum: float, gradients: Sequence[np.ndarray], matrices: int) -> np.ndarray:
    """scale · U Vᵀ of each of the matrices, whose direction is Nesterov's."""
    direction = momentum * mean(momentum, gradients) + (1 - momentum) * gradients[-1]
    parts = []
    for part in np.split(direction, matrices):
        left, values, right = np.linalg.svd(part, full_matrices=False)
        values /= np.linalg.norm(values) + 1e-20
        for a, b, c in POLYNOMIALS:
            values = a * values + b * values**3 + c * values**5
        parts.append(UPDATE_SCALE * math.sqrt(max(part.shape)) * (left * values) @ right)
    return np.concatenate(parts)
