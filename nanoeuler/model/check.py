"""Is the backward pass the derivative of the forward pass? Every op and every parameter tensor against finite differences.

Central differences of 4th order, f′(x) ≈ (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h, in float64 with h = 1e-3.
The error of a tensor is ‖a − b‖₂ / ‖b‖₂ with b the finite difference; where ‖b‖ = 0, a has to be exactly 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AttentionArrays, PreferencePairs, RmsNorm
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.model.spec import storage_elements, tensor_table
from nanoeuler.model.transformer import Batch, Transformer

TOLERANCE = 1e-6
"""Finite differences of this order and step reach about 5e-9 in float64; a wrong term shows at 1e-2 and above."""

STEP = 1e-3


@dataclass(frozen=True)
class Comparison:
    """One tensor's gradient beside its finite difference."""

    case: str
    tensor: str
    elements: int
    error: float  # relative, by norm
    worst: float  # largest difference of one element, relative to the largest element: printed, not judged

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE  # False for NaN too


def compare(case: str, tensor: str, analytic: np.ndarray, numeric: np.ndarray) -> Comparison:
    difference, norm = np.linalg.norm(analytic - numeric), np.linalg.norm(numeric)
    if norm == 0:
        error = 0.0 if not np.any(analytic) else float("inf")
        return Comparison(case, tensor, analytic.size, error, error)
    worst = np.abs(analytic - numeric).max() / np.abs(numeric).max()
    return Comparison(case, tensor, analytic.size, float(difference / norm), float(worst))


def finite_difference(function: Callable[[], float], values: np.ndarray) -> np.ndarray:
    """The derivative of `function()` by every element of `values`, which is moved in place and put back."""
    gradient = np.empty(values.shape)
    for index in np.ndindex(values.shape):
        kept = values[index]
        samples = []
        for multiple in (1, -1, 2, -2):
            values[index] = kept + multiple * STEP
            samples.append(function())
        values[index] = kept
        gradient[index] = (8 * (samples[0] - samples[1]) - (samples[2] - samples[3])) / (12 * STEP)
    return gradient


# ---- the ops, each alone


def check_ops(backend: Backend | None = None) -> Iterator[Comparison]:
    """Every op's gradients at small odd shapes: the loss is the sum of the outputs, each times a fixed random number."""
    ops = backend or ReferenceBackend(np.float64)
    random = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    N, D, F, V = 5, 6, 7, 9

    def case(
        name: str,
        inputs: dict[str, np.ndarray],
        forward: Callable[[], float],
        analytic: dict[str, np.ndarray],
    ) -> Iterator[Comparison]:
        for tensor, values in inputs.items():
            yield compare(name, tensor, analytic[tensor], finite_difference(forward, values))

    # linear
    x, weight, out, dout = normal(N, D), normal(F, D), np.empty((N, F)), normal(N, F)
    dx, dweight = np.empty_like(x), normal(F, D)
    before = dweight.copy()
    ops.linear_backward_input(dout, weight, dx, scale=0.5)
    ops.linear_backward_weight(dout, x, dweight, accumulate=True, scale=0.5)

    def linear() -> float:
        ops.linear(x, weight, out)
        return 0.5 * float((out * dout).sum())

    yield from case(
        "linear", {"input": x, "weight": weight}, linear, {"input": dx, "weight": dweight - before}
    )

    # embedding
    ids, table, out, dout = (
        np.array([3, 0, 3, 8, 3], np.int32),
        normal(V, D),
        np.empty((N, D)),
        normal(N, D),
    )
    dtable = np.empty_like(table)
    ops.embedding_backward(ids, dout, dtable, accumulate=False)

    def embedding() -> float:
        ops.embedding(ids, table, out)
        return float((out * dout).sum())

    yield from case("embedding", {"table": table}, embedding, {"table": dtable})

    # the Euler step with RMSNorm; the sum itself is used as well, as in a residual stream
    x, delta, weight, dout, dsum = normal(N, D), normal(N, D), normal(D), normal(N, D), normal(N, D)
    total, out, inverse_rms, step_size = np.empty((N, D)), np.empty((N, D)), np.empty(N), 0.7

    def add_rms_norm() -> float:
        ops.add_rms_norm(x, delta, step_size, RmsNorm(total, weight, 1e-5, out, inverse_rms))
        return float((out * dout).sum() + (total * dsum).sum())

    add_rms_norm()
    dx, dweight = dsum.copy(), np.empty(D)
    ops.rms_norm_backward(
        dout, total, weight, inverse_rms, dx, dweight, add_to_dx=True, accumulate=False
    )
    yield from case(
        "add_rms_norm",
        {"x": x, "delta": delta, "weight": weight},
        add_rms_norm,
        {"x": dx, "delta": step_size * dx, "weight": dweight},
    )

    # rotary positions
    x, dout = normal(N, 2, 6), normal(N, 2, 6)
    positions, angles = np.array([0, 1, 2, 0, 9], np.int32), ops.rope_table(10, 6, 100.0)
    dx = dout.copy()
    ops.rope(dx, positions, angles, inverse=True)

    def rope() -> float:
        turned = x.copy()
        ops.rope(turned, positions, angles)
        return float((turned * dout).sum())

    yield from case("rope", {"x": x}, rope, {"x": dx})

    # attention: grouped heads, an odd length, two documents in the second row
    B, T, H, G, E = 2, 5, 6, 2, 4
    query, key, value, dout = (
        normal(B, T, H, E),
        normal(B, T, G, E),
        normal(B, T, G, E),
        normal(B, T, H, E),
    )
    starts, offset = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 3, 3]], np.int32), np.zeros(B, np.int32)
    out, lse = np.empty((B, T, H, E)), np.empty((B, H, T))

    def attention() -> float:
        ops.attention(query, key, value, starts, offset, out, lse)
        return float((out * dout).sum())

    attention()
    gradients = AttentionArrays(
        np.empty_like(query), np.empty_like(key), np.empty_like(value), dout
    )
    ops.attention_backward(AttentionArrays(query, key, value, out), gradients, starts, lse)
    inputs, found = (
        {"query": query, "key": key, "value": value},
        {"query": gradients.query, "key": gradients.key, "value": gradients.value},
    )
    yield from case("attention", inputs, attention, found)

    # SwiGLU
    gate, up, out, dout = normal(N, F), normal(N, F), np.empty((N, F)), normal(N, F)
    dgate, dup = np.empty_like(gate), np.empty_like(up)
    ops.swiglu_backward(dout, gate, up, dgate, dup)

    def swiglu() -> float:
        ops.swiglu(gate, up, out)
        return float((out * dout).sum())

    yield from case("swiglu", {"gate": gate, "up": up}, swiglu, {"gate": dgate, "up": dup})

    # cross-entropy with a masked row
    logits, targets, weights = (
        3 * normal(N, V),
        np.array([0, 8, -1, 4, 4], np.int32),
        random.random(N),
    )
    logprobs, lse = np.empty(N), np.empty(N)

    def cross_entropy() -> float:
        ops.cross_entropy(logits, targets, logprobs, lse)
        return float(-(logprobs * weights).sum())

    cross_entropy()
    dlogits = logits.copy()
    ops.cross_entropy_backward(dlogits, targets, weights, lse)
    yield from case("cross_entropy", {"logits": logits}, cross_entropy, {"logits": dlogits})

    # preferences: two pairs in the first row, one and an empty place in the second
    logprobs, spans = (
        -np.abs(normal(2, 9, 2)),
        np.array([[[0, 2, 4], [5, 6, 9]], [[1, 4, 9], [0, 0, 0]]], np.int32),
    )
    references, scales, shares = (
        -np.abs(normal(2, 2, 2)),
        random.random((2, 2, 2)),
        np.array([[0.5, 0.2], [0.3, 0.0]]),
    )
    weights = np.zeros((2, 9, 2))

    def preference() -> float:
        losses = np.zeros(2)
        pairs = PreferencePairs(spans, references, scales, shares)
        ops.preference(logprobs, pairs, 0.3, 0.1, weights, losses)
        return float(losses[0])

    preference()
    yield from case("preference", {"logprobs": logprobs}, preference, {"logprobs": -weights.copy()})


# ---- whole models

TINY = {
    "vocab_size": 19,
    "dim": 8,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 11,
    "context": 8,
    "mtp_heads": 3,
}
"""Small enough to move every parameter, odd enough (ffn, vocabulary) to use the padding."""

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
    "one layer, K = 2, step size 0.5, two documents a row": (
        {"mtp_heads": 2, "step_size": 0.5, "layers": 1},
        5,
    ),
}
"""Name → fields changed from `TINY`, and the (odd) length of the rows. The last is the quick form: cheap, but no op idles in it."""


def check_model(case: str, backend: Backend | None = None, seed: int = 1) -> Iterator[Comparison]:
    """Every parameter tensor of the model of `CASES[case]`, with masked targets and the head weights of training."""
    ops = backend or ReferenceBackend(np.float64)
    fields, length = CASES[case]
    config = ModelConfig.from_dict(TINY | fields)
    random = np.random.default_rng(seed)
    parameters = np.zeros(storage_elements(tensor_table(config)))
    named = FlatBuffer(config, parameters)
    for tensor in (
        named.table
    ):  # wider than at the start of training, so that no nonlinearity is close to its linear part
        named[tensor.name][...] = random.standard_normal(tensor.shape) * 0.4 + (
            1.0 if tensor.initial_std is None else 0.0
        )
    model = Transformer(config, parameters, ops)
    B = 2
    ids = random.integers(0, config.vocab_size, (B, length)).astype(np.int32)
    positions, starts = (
        np.tile(np.arange(length, dtype=np.int32), (B, 1)),
        np.zeros((B, length), np.int32),
    )
    cut = length // 2 + 1
    if length > 3:  # the second row holds two documents
        starts[1, cut:], positions[1, cut:] = cut, np.arange(length - cut)
    batch = Batch(ids, positions, starts)
    targets = random.integers(0, config.vocab_size, (B, length, config.mtp_heads)).astype(np.int32)
    targets[0, -1, -1] = -1
    targets[1, 0, 0] = -1
    weights = np.asarray(config.mtp_weights) / sum(config.mtp_weights) / (B * length)
    rows_targets, rows_weights = targets.reshape(-1), np.tile(weights, B * length)
    logprobs, lse = np.empty(len(rows_targets)), np.empty(len(rows_targets))

    def loss() -> float:
        buffers = model.forward(batch, training=True)
        logits = model.heads.logits(model.weights.heads, buffers)
        ops.cross_entropy(logits, rows_targets, logprobs, lse)
        return float(-(logprobs * rows_weights).sum())

    loss()
    gradients = np.zeros_like(parameters)
    buffers = model.buffers(B, length, training=True)
    ops.cross_entropy_backward(model.heads.logit_rows(buffers), rows_targets, rows_weights, lse)
    model.backward(batch, buffers, model_weights(config, gradients))
    analytic = FlatBuffer(config, gradients)
    for tensor in named.table:
        yield compare(
            case, tensor.name, analytic[tensor.name], finite_difference(loss, named[tensor.name])
        )


def check_all(quick: bool = False, backend: Backend | None = None) -> Iterator[Comparison]:
    """All ops and, of the model's cases, all or (quick) the last, which takes half a second."""
    yield from check_ops(backend)
    for case in list(CASES)[-1:] if quick else CASES:
        yield from check_model(case, backend)
