"""Is the backward pass of a whole model the derivative of its forward pass?

Every parameter tensor is compared with finite differences, in models that are small enough to
change each parameter on its own.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Comparison, compare, finite_difference
from nanoeuler.model.checks.op_gradients import check_ops
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.model.transformer import Batch, Transformer

TINY: dict[str, Any] = {
    "vocab_size": 19,
    "dim": 8,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 11,
    "context": 8,
    "mtp_heads": 3,
}
"""Small enough to change every parameter; ffn and vocabulary are odd, so that there is padding."""

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "grouped heads, K = 3, two documents a row": ({}, 7),
    "tied heads, head size apart from dim / heads": (
        {"tied": True, "head_size": 6, "kv_heads": 1},
        5,
    ),
    "K = 1, step size 0.5, full heads": (
        {"mtp_heads": 1, "step_size": 0.5, "kv_heads": 4, "layers": 1},
        3,
    ),
    "K = 4, unequal head weights, a row of one token": (
        {"mtp_heads": 4, "mtp_weights": [1.0, 0.5, 0.25, 0.125], "layers": 1},
        1,
    ),
    "QK-norm without weights": ({"qk_norm": "rms", "mtp_heads": 1, "head_size": 6}, 5),
    "QK-norm with weights, one key/value head": (
        {"qk_norm": "weighted", "mtp_heads": 1, "head_size": 6, "kv_heads": 1},
        5,
    ),
    "one layer, K = 2, step size 0.5, two documents a row": (
        {"mtp_heads": 2, "step_size": 0.5, "layers": 1},
        5,
    ),
}
"""Name → the fields that differ from `TINY`, and the odd length of the rows.

The last case is the quick form: it is cheap, and no op idles in it.
"""


def check_all(quick: bool = False, backend: Backend | None = None) -> Iterator[Comparison]:
    """All ops, and all cases of the model.

    `quick`: of the cases only the last, which takes half a second.
    """
    yield from check_ops(backend)
    for case in list(CASES)[-1:] if quick else CASES:
        yield from check_model(case, backend)


def check_model(case: str, backend: Backend | None = None, seed: int = 1) -> Iterator[Comparison]:
    """Every parameter tensor of the model of `CASES[case]`.

    Some targets are masked, and the heads are weighted as in training.
    """
    ops = backend or ReferenceBackend(np.float64)
    fields, length = CASES[case]
    config = ModelConfig.from_dict(TINY | fields)
    random = np.random.default_rng(seed)
    parameters = random_parameters(config, random)
    model = Transformer(config, parameters, ops)
    batch, targets_BTK = random_rows(config, 2, length, random)
    tokens, targets_R = batch.ids.size, targets_BTK.reshape(-1)
    weights_K = np.asarray(config.mtp_weights) / sum(config.mtp_weights) / tokens
    weights_R = np.tile(weights_K, tokens)
    logprobs_R, lse_R = np.empty(len(targets_R)), np.empty(len(targets_R))

    def loss() -> float:
        buffers = model.forward(batch, training=True)
        logits = model.heads.logits(model.weights.heads, buffers)
        ops.cross_entropy(logits, targets_R, logprobs_R, lse_R)
        return float(-(logprobs_R * weights_R).sum())

    loss()
    buffers = model.buffers(*batch.ids.shape, training=True)
    ops.cross_entropy_backward(model.heads.logit_rows(buffers), targets_R, weights_R, lse_R)
    gradients = np.zeros_like(parameters)
    model.backward(batch, buffers, model_weights(config, gradients))
    found, values = FlatBuffer(config, gradients), FlatBuffer(config, parameters)
    for tensor in values.table:
        expected = finite_difference(loss, values[tensor.name])
        yield compare(case, tensor.name, found[tensor.name], expected)


def random_parameters(config: ModelConfig, random: np.random.Generator) -> np.ndarray:
    """A flat float64 buffer: normal with spread 0.4, norms around 1, padding 0.

    The spread is wider than at the start of training, so that no nonlinearity is close to its
    linear part.
    """
    parameters = np.zeros(FlatBuffer.elements(config))
    buffer = FlatBuffer(config, parameters)
    for tensor in buffer.table:
        center = 1.0 if tensor.initial_std is None else 0.0
        buffer[tensor.name][...] = random.standard_normal(tensor.shape) * 0.4 + center
    return parameters


def random_rows(
    config: ModelConfig, rows: int, length: int, random: np.random.Generator
) -> tuple[Batch, np.ndarray]:
    """A batch, and its targets (rows, length, K) with two of them masked.

    The second row holds two documents, where it is long enough.
    """
    ids = random.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    starts = np.zeros((rows, length), np.int32)
    if length > 3:
        cut = length // 2 + 1
        starts[1, cut:] = cut
        positions[1, cut:] = np.arange(length - cut)
    shape = rows, length, config.mtp_heads
    targets = random.integers(0, config.vocab_size, shape).astype(np.int32)
    targets[0, -1, -1] = -1
    targets[1, 0, 0] = -1
    return Batch(ids, positions, starts), targets
