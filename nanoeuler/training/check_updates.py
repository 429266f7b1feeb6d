"""Does an engine move parameters as the optimizer's formula says?

The formula is that of `OptimizerSettings.expected`, without the recurrences that the engines share:
moments are sums over all gradients, and a matrix is made orthogonal by its singular values.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.model.checks.comparison import Comparison, compare, in_float64
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import block_matrices
from nanoeuler.training.optimizer.adamw import AdamW
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
    adamw = optimizer.adamw
    limit = optimizer.tolerance[ops.precision]
    kv_heads = 2 if family == "gpt2" else 1
    config = ModelConfig(300, 64, 1, 2, kv_heads, ffn=100, context=16, family=family)
    start, *gradients = random_buffers(config, adamw)
    state = TrainingState(config, ops, start.array.copy(), optimizer)
    program = ops.runtime.program(state.update)
    bad = gradients[-1].array.copy()
    bad[0] = np.inf
    for step, values in enumerate([*(gradient.array for gradient in gradients), bad]):
        state.gradients[...] = ops.from_host(ops.loss_scale * values)
        state.schedule.load(np.array([RATES[step % len(RATES)], step]))
        program.run()
    found = FlatBuffer(config, in_float64(ops, state.parameters))
    clipped = [clip(gradient.array, adamw.clip_norm) for gradient in gradients]
    expected = moved(optimizer, config, start, [FlatBuffer(config, each) for each in clipped])
    for tensor in expected.table:
        arrays = found[tensor.name], expected[tensor.name]
        yield compare("three updates", tensor.name, *arrays, limit)


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
    adamw, embedding = optimizer.adamw, family_of(config).embedding
    matrices = {matrix.name for matrix in block_matrices(config)}
    after = FlatBuffer(config, start.array.astype(np.float64))
    for tensor in after.table:
        rate = adamw.embedding_rate if tensor.name == embedding else 1.0
        values, each = after[tensor.name], [gradient[tensor.name] for gradient in gradients]
        count = tensor.matrices if tensor.name in matrices else 0
        for step, learning_rate in enumerate(RATES, start=1):
            update = optimizer.expected(each[:step], count)
            if tensor.decay:
                update = update + adamw.weight_decay * values
            values -= rate * learning_rate * update
    return after
