"""Is the backward pass of every op the derivative of its forward pass?

Each op is compared with finite differences at small odd shapes. The loss is the sum of the op's
outputs, each multiplied by a fixed random number.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller

import numpy as np
from numpy.random import Generator

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import (
    AttentionArrays,
    LayerNorm,
    LogitRows,
    NormGradients,
    PreferencePairs,
    RmsNorm,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import ELEMENTWISE, Comparison, compare, finite_difference

N, D, F, V = 5, 6, 7, 9
"""Tokens, dim, ffn and vocabulary."""
GATED = "gate", "up"


def check_ops(backend: Backend | None = None) -> Iterator[Comparison]:
    """The gradients of every op of `backend` (default: the reference in float64)."""
    ops = backend or ReferenceBackend(np.float64)
    random = np.random.default_rng(1)
    for check in CHECKS.values():
        yield from check(ops, random)


def check_derivatives(
    case: str, loss: Callable[[], float], tensors: dict[str, tuple[np.ndarray, np.ndarray]]
) -> Iterator[Comparison]:
    """Compare the gradients of `loss` with finite differences.

    `tensors`: name → values that the loss depends on, and its gradient with respect to them.
    """
    for name, (values, gradient) in tensors.items():
        yield compare(case, name, gradient, finite_difference(loss, values))


def check_linear(ops: Backend, random: Generator) -> Iterator[Comparison]:
    x = random.standard_normal((N, D))
    weight = random.standard_normal((F, D))
    out = np.empty((N, F))
    dout = random.standard_normal((N, F))
    dx = np.empty_like(x)
    dweight = random.standard_normal((F, D))
    before = dweight.copy()
    ops.linear_backward_input(dout, weight, dx, scale=0.5)
    ops.linear_backward_weight(dout, x, dweight, accumulate=True, scale=0.5)

    def loss() -> float:
        ops.linear(x, weight, out)
        return 0.5 * float((out * dout).sum())

    tensors = {"input": (x, dx), "weight": (weight, dweight - before)}
    yield from check_derivatives("linear", loss, tensors)


def check_embedding(ops: Backend, random: Generator) -> Iterator[Comparison]:
    ids = np.array([3, 0, 3, 8, 3], np.int32)
    table = random.standard_normal((V, D))
    out = np.empty((N, D))
    dout = random.standard_normal((N, D))
    dtable = np.empty_like(table)
    ops.embedding_backward(ids, dout, dtable, accumulate=False)

    def loss() -> float:
        ops.embedding(ids, table, out)
        return float((out * dout).sum())

    yield from check_derivatives("embedding", loss, {"table": (table, dtable)})


def check_add_norm(op: str, ops: Backend, random: Generator) -> Iterator[Comparison]:
    """The Euler step with the norm behind it. The sum is used as well, as in a residual stream."""
    x, delta, dout, dsum = random.standard_normal((4, N, D))
    step_bias, weight, bias = random.standard_normal((3, D))
    (total, out), inverse_rms, h = np.empty((2, N, D)), np.empty(N), 0.7
    biased = op == "add_layer_norm"
    layer_norm = LayerNorm(total, weight, bias, 1e-5, out, inverse_rms)
    rms_norm = RmsNorm(total, weight, 1e-5, out, inverse_rms)

    def loss() -> float:
        if biased:
            ops.add_layer_norm(x, delta, step_bias, h, layer_norm)
        else:
            ops.add_rms_norm(x, delta, h, rms_norm)
        return float((out * dout).sum() + (total * dsum).sum())

    loss()
    dx, (dweight, dbias) = dsum.copy(), np.empty((2, D))
    into = NormGradients(dx, dweight, dbias, add_to_dx=True)
    ops.norm_backward(dout, layer_norm if biased else rms_norm, into)
    tensors = {"x": (x, dx), "delta": (delta, h * dx), "weight": (weight, dweight)}
    if biased:
        tensors |= {"step's bias": (step_bias, h * dx.sum(axis=0)), "bias": (bias, dbias)}
    yield from check_derivatives(op, loss, tensors)


def check_rope(ops: Backend, random: Generator) -> Iterator[Comparison]:
    x, dout = random.standard_normal((N, 2, 6)), random.standard_normal((N, 2, 6))
    positions = np.array([0, 1, 2, 0, 9], np.int32)
    table = ops.rope_table(10, 6, 100.0)
    dx = dout.copy()
    ops.rope(dx, positions, table, inverse=True)

    def loss() -> float:
        rotated = x.copy()
        ops.rope(rotated, positions, table)
        return float((rotated * dout).sum())

    yield from check_derivatives("rope", loss, {"x": (x, dx)})


def check_attention(ops: Backend, random: Generator, cap: float = 0.0) -> Iterator[Comparison]:
    """Grouped heads, an odd length, and two documents in the second row."""
    B, T, H, G, E = 2, 5, 6, 2, 4
    query = random.standard_normal((B, T, H, E))
    key = random.standard_normal((B, T, G, E))
    value = random.standard_normal((B, T, G, E))
    dout = random.standard_normal((B, T, H, E))
    starts = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 3, 3]], np.int32)
    offset = np.zeros(B, np.int32)
    out, lse = np.empty((B, T, H, E)), np.empty((B, H, T))

    saved = AttentionArrays(query, key, value, out, cap)

    def loss() -> float:
        ops.attention(saved, starts, offset, lse)
        return float((out * dout).sum())

    loss()
    dquery, dkey, dvalue = np.empty_like(query), np.empty_like(key), np.empty_like(value)
    ops.attention_backward(saved, AttentionArrays(dquery, dkey, dvalue, dout), starts, lse)
    tensors = {"query": (query, dquery), "key": (key, dkey), "value": (value, dvalue)}
    case = "attention" + " with a cap" * (cap > 0)
    yield from check_derivatives(case, loss, tensors)


def check_soft_cap(ops: Backend, random: Generator) -> Iterator[Comparison]:
    x, dout, slope = random.standard_normal((3, N, F))
    ops.soft_cap(x.copy(), 2.0, slope)
    dx = dout.copy()
    ops.soft_cap_backward(dx, slope)

    def loss() -> float:
        out = x.copy()
        ops.soft_cap(out, 2.0)
        return float((out * dout).sum())

    yield from check_derivatives("soft_cap", loss, {"x": (x, dx)})


def check_cross_entropy(ops: Backend, random: Generator) -> Iterator[Comparison]:
    """One of the rows has no target."""
    logits = 3 * random.standard_normal((N, V))
    targets = np.array([0, 8, -1, 4, 4], np.int32)
    weights = random.random(N)
    logprobs, lse = np.empty(N), np.empty(N)

    def loss() -> float:
        ops.cross_entropy(LogitRows(logits, targets, logprobs, lse))
        return float(-(logprobs * weights).sum())

    loss()
    dlogits = logits.copy()
    ops.cross_entropy_backward(LogitRows(dlogits, targets, logprobs, lse, weights))
    yield from check_derivatives("cross_entropy", loss, {"logits": (logits, dlogits)})


def check_preference(ops: Backend, random: Generator) -> Iterator[Comparison]:
    """Two pairs in the first row; one and an empty slot in the second."""
    logprobs = -np.abs(random.standard_normal((2, 9, 2)))
    pairs = PreferencePairs(
        spans_RP3=np.array([[[0, 2, 4], [5, 6, 9]], [[1, 4, 9], [0, 0, 0]]], np.int32),
        reference_RP2=-np.abs(random.standard_normal((2, 2, 2))),
        scales_RP2=random.random((2, 2, 2)),
        shares_RP=np.array([[0.5, 0.2], [0.3, 0.0]]),
    )
    weights = np.zeros((2, 9, 2))

    def loss() -> float:
        losses = np.zeros(2)
        ops.preference(logprobs, pairs, 0.3, 0.1, weights, losses)
        return float(losses[0])

    loss()
    yield from check_derivatives("preference", loss, {"logprobs": (logprobs, -weights.copy())})


def check_bias(ops: Backend, random: Generator) -> Iterator[Comparison]:
    x, dout = random.standard_normal((2, N, F))
    bias, dbias = random.standard_normal((2, F))
    before, fresh = dbias.copy(), np.empty(F)
    ops.bias_backward(dout, fresh, accumulate=False, scale=0.5)
    ops.bias_backward(dout, dbias, accumulate=True, scale=0.5)

    def loss() -> float:
        out = x.copy()
        ops.add_bias(out, bias)
        return 0.5 * float((out * dout).sum())

    tensors = {"bias": (bias, dbias - before), "fresh bias": (bias, fresh)}
    yield from check_derivatives("bias", loss, tensors)


def check_embedding_at(ops: Backend, random: Generator) -> Iterator[Comparison]:
    """Its backward pass is that of two embeddings; here their gradients are plain sums."""
    ids, positions = np.array([3, 0, 3, 8, 3], np.int32), np.array([0, 1, 2, 0, 1], np.int32)
    table, position_table = random.standard_normal((V, D)), random.standard_normal((3, D))
    out, dout = np.empty((N, D)), random.standard_normal((N, D))
    dtable, dposition_table = np.zeros_like(table), np.zeros_like(position_table)
    np.add.at(dtable, ids, dout)
    np.add.at(dposition_table, positions, dout)

    def loss() -> float:
        ops.embedding_at(ids, table, positions, position_table, out)
        return float((out * dout).sum())

    tensors = {"table": (table, dtable), "positions": (position_table, dposition_table)}
    yield from check_derivatives("embedding_at", loss, tensors)


def check_elementwise(
    op: str, names: Sequence[str], ops: Backend, random: Generator
) -> Iterator[Comparison]:
    """An op of an array, or of a gate and what it lets through."""
    inputs, gradients = random.standard_normal((2, len(names), N, F))
    out, dout = random.standard_normal((2, N, F))
    methodcaller(f"{op}_backward", dout.copy(), *inputs, *gradients)(ops)

    def loss() -> float:
        methodcaller(op, *inputs, out)(ops)
        return float((out * dout).sum())

    pairs = zip(inputs, gradients, strict=True)
    yield from check_derivatives(op, loss, dict(zip(names, pairs, strict=True)))


CHECKS: dict[str, Callable[[Backend, Generator], Iterator[Comparison]]] = {
    "linear": check_linear,
    "embedding": check_embedding,
    "rms_norm": partial(check_add_norm, "add_rms_norm"),
    "rope": check_rope,
    "attention": check_attention,
    "attention with a cap": partial(check_attention, cap=2.0),
    "swiglu": partial(check_elementwise, "swiglu", GATED),
    "cross_entropy": check_cross_entropy,
    "preference": check_preference,
    "bias": check_bias,
    "embedding_at": check_embedding_at,
    "layer_norm": partial(check_add_norm, "add_layer_norm"),
    **{op: partial(check_elementwise, op, ["x"]) for op in ELEMENTWISE},
    "geglu": partial(check_elementwise, "geglu", GATED),
    "soft_cap": check_soft_cap,
}
"""The ops, and what checks the gradients of each."""
