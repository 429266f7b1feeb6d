"""Does an engine compute what the specification says? Every op beside the reference in float64.

The sizes fit no tile: one row, odd lengths, padded rows, masked targets, grouped heads.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import methodcaller

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import (
    EulerStep,
    GateUp,
    LayerNorm,
    LogitRows,
    Norm,
    NormGradients,
    PreferencePairs,
    RmsNorm,
)
from nanoeuler.model.checks.comparison import (
    ELEMENTWISE,
    NORM_EPSILON,
    Arrays,
    Comparison,
    Input,
    Output,
    Random,
    compare_op,
)
from nanoeuler.model.checks.decoded_layer import check_decoded_layers
from nanoeuler.model.checks.engine_attention import (
    check_attention,
    check_cached_attention,
    check_linear_rope,
    check_rope,
)
from nanoeuler.model.config import round_up

OP_TOLERANCE = {
    "fp64": 1e-12,
    "fp32": 1e-6,
    "tf32": 1.5e-3,
    "fp16": 1e-3,
    "bf16": 8e-3,
    "fp8": 8e-3,
}
"""fp64 (the reference alone): the same sums in another order. fp32: sums of up to a few hundred
rounded products. tf32: operands of 10 bits, 2⁻¹¹ each. fp16: such results. bf16: results of 8 bits,
2⁻⁹ each, and probabilities rounded before they are multiplied. fp8: bf16, as ops outside of
training are."""


def check_device_ops(engine: Backend) -> Iterator[Comparison]:
    """Every op of `engine`."""
    random = Random(3)

    def each(
        check: Callable[..., Iterator[Comparison]], sizes: Iterable[tuple[int, ...]]
    ) -> Iterator[Comparison]:
        for size in sizes:
            yield from check(engine, random, *size)

    yield from each(check_linear, [(1, 8, 24), (37, 128, 344), (300, 768, 1280)])
    tables = [(1, 8, 16), (2500, 128, 40), (700, 768, 512), (900, 64, 50_257)]
    yield from each(check_embedding, tables)
    rows = [(1, 8), (37, 256), (301, 768), (1000, 1024), (5, 2048)]
    yield from each(partial(check_norm, "rms_norm"), rows)
    yield from each(check_rope, [(1, 1, 32), (37, 3, 64), (130, 12, 128)])
    many = [(4_133, 200, 6, 2, 32), (4_133, 768, 12, 4, 64), (4_400, 256, 4, 1, 128)]
    # from 4,096 rows on, a GPU fuses them
    yield from each(check_linear_rope, [(37, 128, 3, 1, 32), *(many if engine.device else [])])
    short = [(1, 1, 1, 1, 32), (2, 7, 4, 4, 64), (2, 65, 6, 2, 64)]
    long = [(1, 130, 8, 2, 128), (2, 200, 8, 1, 32), (1, 513, 12, 4, 64), (2, 512, 12, 4, 64)]
    yield from each(check_attention, short + long)
    yield from each(check_cached_attention, [(1, 1, 70, 12, 4, 64), (3, 5, 140, 4, 1, 32)])
    capped = partial(check_attention, cap=0.9)
    yield from each(capped, [(2, 7, 4, 4, 64), (2, 200, 8, 1, 32), (1, 70, 4, 2, 256)])
    yield from check_cached_attention(engine, random, 3, 5, 140, 4, 1, 32, cap=0.9)
    yield from each(check_swiglu, [(1, 8), (37, 344), (130, 2048)])
    fused = [(4_133, 200, 512), (4_400, 768, 2048)] if engine.device else []
    yield from each(check_linear_swiglu, [(37, 128, 344), *fused])
    yield from each(check_cross_entropy, [(1, 16), (37, 50), (130, 4096), (9, 50_257)])
    yield from each(partial(check_norm, "layer_norm"), rows)
    yield from each(check_linear_gelu, [(1, 8, 24), (37, 128, 344), (300, 768, 1280)])
    yield from each(check_embedding_at, [(1, 8, 16, 3), (2500, 128, 40, 512)])
    for op in ELEMENTWISE:
        yield from each(partial(check_elementwise, op), [(1, 8), (37, 344), (130, 2048)])
    yield from each(check_geglu, [(1, 8), (37, 344)])
    yield from each(check_soft_cap, [(1, 8), (37, 344)])
    yield from each(check_dropout, [(1, 8), (37, 344)])
    yield from check_all_masked(engine, random)
    yield from check_preference(engine, random)
    # made of the ops above, which are to be named first where they are wrong
    yield from check_decoded_layers(engine, random)


def check_linear(
    engine: Backend, random: Random, N: int, D: int, columns: int
) -> Iterator[Comparison]:
    inputs = {
        "x": random.activation(N, D),
        "weight": random.activation(columns, D),
        "dout": random.activation(N, columns),
        "dweight": random.statistic(columns, D),
        "sum": random.activation(N, D + 8),
    }
    outputs: dict[str, Output] = {
        "out": ((N, columns), "activation"),
        "dx": ((N, D), "activation"),
        "fresh": ((columns, D), "statistic"),
    }

    def linear(ops: Backend, a: Arrays) -> None:
        ops.linear(a.x, a.weight, a.out)
        ops.linear_backward_input(a.dout, a.weight, a.dx, scale=0.5)
        ops.linear_backward_weight(a.dout, a.x, a.fresh, accumulate=False)
        ops.linear_backward_weight(a.dout, a.x, a.dweight, accumulate=True, scale=0.5)
        ops.add_product(a.dout, a.weight, a.sum[:, 8:], scale=0.5)

    case = f"linear {N} × {D} × {columns}"
    yield from compare_op(case, engine, inputs, outputs, linear, ("dweight", "sum"))


def check_embedding(
    engine: Backend, random: Random, N: int, D: int, V: int
) -> Iterator[Comparison]:
    """More than half of the rows have the same id."""
    is_common = random.generator.random(N) < 0.6
    inputs = {
        "ids": (np.where(is_common, 3, random.integers(V, N)).astype(np.int32), "index"),
        "table": random.activation(V, D),
        "dout": random.activation(N, D),
        "dtable": random.statistic(V, D),
    }
    outputs: dict[str, Output] = {
        "out": ((N, D), "residual"),
        "fresh": ((V, D), "statistic"),
    }

    def embedding(ops: Backend, a: Arrays) -> None:
        ops.embedding(a.ids, a.table, a.out)
        ops.embedding_backward(a.ids, a.dout, a.fresh, accumulate=False)
        ops.embedding_backward(a.ids, a.dout, a.dtable, accumulate=True)

    case = f"embedding {N} × {D}"
    yield from compare_op(case, engine, inputs, outputs, embedding, ("dtable",))


def check_norm(op: str, engine: Backend, random: Random, N: int, D: int) -> Iterator[Comparison]:
    """`rms_norm`; or `layer_norm`, on rows whose mean is no smaller than what varies around it."""
    biased = op == "layer_norm"
    vectors = ("weight", "bias") if biased else ("weight",)
    inputs: dict[str, Input] = {
        "x": (random.normal(N, D) + biased, "residual"),
        "delta": random.activation(N, D),
        **({"step_bias": random.activation(D)} if biased else {}),
        **{name: random.statistic(D) for name in vectors},
        "dout": random.activation(N, D),
        "dx": random.activation(N, D),
        **{f"d{name}": random.statistic(D) for name in vectors},
    }
    outputs: dict[str, Output] = {
        "sum": ((N, D), "residual"),
        **{name: ((N, D), "activation") for name in ("out", "plain", "fresh_dx", "frozen_dx")},
        **{name: ((N,), "statistic") for name in ("inverse", "plain_inverse")},
        **{f"fresh_d{name}": ((D,), "statistic") for name in vectors},
    }

    def norms(ops: Backend, a: Arrays) -> None:
        norm: Norm
        if biased:
            norm = LayerNorm(a.sum, a.weight, a.bias, NORM_EPSILON, a.out, a.inverse)
            ops.add_layer_norm(a.x, a.delta, a.step_bias, 0.5, norm)
        else:
            norm = RmsNorm(a.sum, a.weight, NORM_EPSILON, a.out, a.inverse)
            ops.add_rms_norm(a.x, a.delta, 0.5, norm)
        plain = norm._replace(x_ND=a.x, out_ND=a.plain, inverse_rms_N=a.plain_inverse)
        ops.norm(plain)
        fresh = NormGradients(a.fresh_dx, a.fresh_dweight, getattr(a, "fresh_dbias", None))
        ops.norm_backward(a.dout, plain, fresh)
        ops.norm_backward(a.dout, plain, NormGradients(a.frozen_dx, None, None))
        sums = NormGradients(a.dx, a.dweight, getattr(a, "dbias", None), True, True, a.dout)
        ops.norm_backward(a.dout, plain, sums)

    changed = ("dx", *(f"d{name}" for name in vectors), "dout")
    yield from compare_op(f"{op} {N} × {D}", engine, inputs, outputs, norms, changed)


def check_linear_gelu(
    engine: Backend, random: Random, N: int, D: int, F: int
) -> Iterator[Comparison]:
    """GELU with the products around it, biases, and the Euler step behind."""
    inputs: dict[str, Input] = {
        "x": random.activation(N, D),
        "weight": (2 / np.sqrt(D) * random.normal(F, D), "activation"),
        "bias": random.activation(F),
        "dx": random.activation(N, D),
        "down": (random.normal(D, F) / np.sqrt(F), "activation"),
        "down_bias": random.activation(D),
        "spent": (3 * random.normal(N, F), "activation"),
        "point": random.residual(N, D),
        "norm_weight": random.statistic(D),
        "norm_bias": random.statistic(D),
        "dbias": random.statistic(F),
        "dweight": random.statistic(F, D),
        "delta": (np.zeros((N, D)), "activation"),  # scratch
    }
    hidden: Output = (N, F), "activation"
    outputs: dict[str, Output] = {
        **dict.fromkeys(("linear", "up", "out", "alone", "dalone", "again"), hidden),
        "sum": ((N, D), "residual"),
        "normed": ((N, D), "activation"),
        "inverse": ((N,), "statistic"),
        "fresh_dbias": ((F,), "statistic"),
        "fresh_dweight": ((F, D), "statistic"),
    }

    def linear_gelu(ops: Backend, a: Arrays) -> None:
        ops.linear_bias(a.x, a.weight, a.bias, a.linear)
        ops.linear_gelu(a.x, a.weight, a.bias, a.up, a.out)
        norm = LayerNorm(a.sum, a.norm_weight, a.norm_bias, NORM_EPSILON, a.normed, a.inverse)
        ops.euler_step(a.out, a.down, EulerStep(a.point, a.delta, 0.5, norm, a.down_bias))
        ops.gelu(a.spent, a.alone)
        ops.gelu_backward(a.out, a.spent, a.dalone)
        ops.linear_gelu_backward(a.dx, a.down, 0.5, a.spent, a.again)
        weights = a.fresh_dweight, a.fresh_dbias
        ops.linear_bias_backward(a.spent, a.x, *weights, accumulate=False)
        ops.linear_bias_backward(a.spent, a.x, a.dweight, a.dbias, accumulate=True, scale=0.5)

    case, changed = f"gelu and its products {N} × {D} × {F}", ("spent", "dweight", "dbias")
    yield from compare_op(case, engine, inputs, outputs, linear_gelu, changed)


def check_embedding_at(
    engine: Backend, random: Random, N: int, D: int, V: int, P: int
) -> Iterator[Comparison]:
    """Some positions lie beyond their table."""
    inputs: dict[str, Input] = {
        "ids": (random.integers(V, N), "index"),
        "table": random.activation(V, D),
        "positions": (random.integers(P + 5, N), "index"),
        "position_table": random.activation(P, D),
    }

    def embedding_at(ops: Backend, a: Arrays) -> None:
        ops.embedding_at(a.ids, a.table, a.positions, a.position_table, a.out)

    outputs: dict[str, Output] = {"out": ((N, D), "residual")}
    yield from compare_op(f"embedding_at {N} × {D}", engine, inputs, outputs, embedding_at)


def check_elementwise(
    op: str, engine: Backend, random: Random, N: int, F: int
) -> Iterator[Comparison]:
    """An op of `ELEMENTWISE`; its backward pass also in the place of its inputs."""
    inputs: dict[str, Input] = {
        "x": (4 * random.normal(N, F), "activation"),
        "dout": random.activation(N, F),
    }
    outputs: dict[str, Output] = {name: ((N, F), "activation") for name in ("out", "dx")}

    def both_passes(ops: Backend, a: Arrays) -> None:
        methodcaller(op, a.x, a.out)(ops)
        for to in ((a.dx,), (a.x, a.dout)):
            methodcaller(f"{op}_backward", a.dout, a.x, *to)(ops)

    yield from compare_op(f"{op} {N} × {F}", engine, inputs, outputs, both_passes, ("x", "dout"))


def check_swiglu(engine: Backend, random: Random, N: int, F: int) -> Iterator[Comparison]:
    inputs: dict[str, Input] = {
        "packed": (4 * random.normal(N, 2 * F), "activation"),
        "dout": random.activation(N, F),
    }
    outputs: dict[str, Output] = {
        "out": ((N, F), "activation"),
        "dpacked": ((N, 2 * F), "activation"),
    }

    def swiglu(ops: Backend, a: Arrays) -> None:
        gate, up = a.packed[:, :F], a.packed[:, F:]
        ops.swiglu(gate, up, a.out)
        ops.swiglu_backward(a.dout, gate, up, a.dpacked[:, :F], a.dpacked[:, F:])
        ops.swiglu_backward(a.dout, gate, up, gate, up, a.dout)

    case = f"swiglu {N} × {F}"
    yield from compare_op(case, engine, inputs, outputs, swiglu, ("packed", "dout"))


def check_geglu(engine: Backend, random: Random, N: int, F: int) -> Iterator[Comparison]:
    inputs: dict[str, Input] = {
        "packed": (4 * random.normal(N, 2 * F), "activation"),
        "dout": random.activation(N, F),
    }
    outputs: dict[str, Output] = {"out": ((N, F), "activation")}

    def geglu(ops: Backend, a: Arrays) -> None:
        gate, up = a.packed[:, :F], a.packed[:, F:]
        ops.geglu(gate, up, a.out)
        ops.geglu_backward(a.dout, gate, up, gate, up)

    yield from compare_op(f"geglu {N} × {F}", engine, inputs, outputs, geglu, ("packed", "dout"))


def check_soft_cap(engine: Backend, random: Random, N: int, V: int) -> Iterator[Comparison]:
    """Logits in the types of training and of sampling; some are tiny, some beyond the cap."""
    values = random.normal(N, V) * 10.0 ** random.integers(4, N * V).reshape(N, V)
    inputs: dict[str, Input] = {
        "x": (values / 100, "activation"),
        "logits": (values / 100, "statistic"),
        "dx": random.activation(N, V),
    }
    outputs: dict[str, Output] = {"slope": ((N, V), "activation")}

    def soft_cap(ops: Backend, a: Arrays) -> None:
        ops.soft_cap(a.x, 1.7, a.slope)
        ops.soft_cap(a.logits, 1.7)
        ops.soft_cap_backward(a.dx, a.slope)

    names = "x", "logits", "dx"
    yield from compare_op(f"soft_cap {N} × {V}", engine, inputs, outputs, soft_cap, names)


def check_dropout(engine: Backend, random: Random, N: int, F: int) -> Iterator[Comparison]:
    """Beside another array and in place: a mask that differs in one element is seen."""
    inputs = {
        "x": random.activation(N, F),
        "wide": random.activation(N, F + 8),
        "seeds": (random.generator.integers(-(2**31), 2**31, N).astype(np.int32), "index"),
    }
    outputs: dict[str, Output] = {"out": ((N, F), "activation")}

    def dropout(ops: Backend, a: Arrays) -> None:
        ops.dropout(a.x, a.seeds, 7, 0.3, a.out)
        ops.dropout(a.x, a.seeds, 23, 0.6, a.x)
        ops.dropout(a.wide[:, 8:], a.seeds, 0, 0.1, a.wide[:, 8:])

    yield from compare_op(f"dropout {N} × {F}", engine, inputs, outputs, dropout, ("x", "wide"))


def check_linear_swiglu(
    engine: Backend, random: Random, N: int, D: int, F: int
) -> Iterator[Comparison]:
    """SwiGLU with the products around it.

    Weights are as wide as a trained model's, so that gates of every size occur.
    """
    inputs: dict[str, Input] = {
        "x": random.activation(N, D),
        "weight": (3 / np.sqrt(D) * random.normal(2 * F, D), "activation"),
        "dx": random.activation(N, D),
        "down": random.activation(D, F),
        "spent": (3 * random.normal(N, 2 * F), "activation"),
    }
    outputs: dict[str, Output] = {
        "packed": ((N, 2 * F), "activation"),
        "out": ((N, F), "activation"),
        "again": ((N, F), "activation"),
    }

    def linear_swiglu(ops: Backend, a: Arrays) -> None:
        parts = slice(0, F), slice(F, 2 * F)
        ops.linear_swiglu(a.x, a.weight, GateUp(a.packed, *parts), a.out)
        ops.linear_swiglu_backward(a.dx, a.down, 0.5, GateUp(a.spent, *parts), a.again)

    case = f"swiglu and its products {N} × {D} × {F}"
    yield from compare_op(case, engine, inputs, outputs, linear_swiglu, ("spent",))


def check_cross_entropy(engine: Backend, random: Random, R: int, V: int) -> Iterator[Comparison]:
    """Forward and backward pass, separately and in one; rows are padded, and a target is masked."""
    targets = random.integers(V, R)
    targets[R // 2] = -1
    inputs: dict[str, Input] = {
        "packed": (3 * random.normal(R, round_up(V, 8)), "activation"),
        "targets": (targets, "index"),
        "weights": (random.generator.random(R), "statistic"),
    }
    names = "logprobs", "lse", "logprobs_at_once", "lse_at_once"
    outputs: dict[str, Output] = {name: ((R,), "statistic") for name in names}

    def cross_entropy(ops: Backend, a: Arrays) -> None:
        weights = a.weights if ops is engine else engine.loss_scale * a.weights
        rows = LogitRows(a.packed[:, :V], a.targets, a.logprobs, a.lse, weights)
        ops.cross_entropy(rows)
        again, found = a.packed.copy(), (a.logprobs_at_once, a.lse_at_once)
        ops.cross_entropy_with_gradient(LogitRows(again[:, :V], a.targets, *found, weights))
        ops.cross_entropy_backward(rows)
        a.gradient, a.gradient_at_once = a.packed[:, :V], again[:, :V]

    case, changed = f"cross_entropy {R} × {V}", ("gradient", "gradient_at_once")
    yield from compare_op(case, engine, inputs, outputs, cross_entropy, changed)


def check_all_masked(engine: Backend, random: Random) -> Iterator[Comparison]:
    """No loss, and a gradient that is exactly zero."""
    inputs: dict[str, Input] = {
        "packed": random.activation(5, 64),
        "targets": (np.full(5, -1, np.int32), "index"),
        "weights": (np.ones(5), "statistic"),
    }
    outputs: dict[str, Output] = {"logprobs": ((5,), "statistic"), "lse": ((5,), "statistic")}

    def masked(ops: Backend, a: Arrays) -> None:
        rows = LogitRows(a.packed, a.targets, a.logprobs, a.lse, a.weights)
        ops.cross_entropy_with_gradient(rows)

    case = "cross_entropy, all masked"
    yield from compare_op(case, engine, inputs, outputs, masked, ("packed",))


def check_preference(engine: Backend, random: Random) -> Iterator[Comparison]:
    """Two rows: one with two pairs, and one with a pair and an empty slot."""
    spans = np.array([[[0, 9, 21], [21, 30, 60]], [[0, 30, 57], [0, 0, 0]]], np.int32)
    shares = np.array([[0.3, 0.3], [0.4, 0.0]], np.float32)
    inputs: dict[str, Input] = {
        "logprobs": (-np.abs(random.normal(2, 64, 3)), "statistic"),
        "spans": (spans, "index"),
        "shares": (shares, "statistic"),
        "scales": (0.1 + random.generator.random((2, 2, 2)), "statistic"),
        "weights": (np.zeros((2, 64, 3)), "statistic"),
    }
    reference = -20 + random.generator.random((2, 2, 2))

    def preference(ops: Backend, a: Arrays) -> None:
        a.losses = ops.zeros((2,), np.float64)
        pairs = PreferencePairs(a.spans, ops.from_host(reference, np.float64), a.scales, a.shares)
        ops.preference(a.logprobs, pairs, 0.2, 0.1, a.weights, a.losses)

    yield from compare_op("preference", engine, inputs, {}, preference, ("weights", "losses"))
