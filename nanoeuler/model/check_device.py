"""Does an engine compute what the specification says? Every op, and whole models, beside the reference in float64.

The reference gets the very numbers that the engine gets (after rounding to the engine's types), so what differs is the
engine's arithmetic. Errors are ‖a − b‖₂ / ‖b‖₂ per tensor. Outputs are filled with NaN beforehand: an element that was not
written shows.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AttentionArrays, CacheSlots, PreferencePairs, RmsNorm
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.cache import decode_step
from nanoeuler.model.check import Comparison, compare
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import model_weights
from nanoeuler.model.heads import head_rows
from nanoeuler.model.spec import storage_elements, tensor_table
from nanoeuler.model.transformer import Transformer

OP_TOLERANCE = {"fp32": 1e-6, "tf32": 1.5e-3, "bf16": 8e-3}
"""fp32: sums of up to a few hundred rounded products. tf32: operands of 10 bits, 2⁻¹¹ each. bf16: results of 8 bits, 2⁻⁹ each,
and probabilities rounded before they are multiplied."""

Arrays = dict[str, tuple[np.ndarray, str]]
"""Name → values and kind: activation, residual, statistic or index."""


def compare_op(
    case: str,
    engine: Backend,
    inputs: Arrays,
    outputs: dict[str, tuple[tuple[int, ...], str]],
    call: Callable[[Backend, Any], None],
    changed: tuple[str, ...] = (),
) -> Iterator[Comparison]:
    """Run `call(ops, arrays)` on the engine and on the reference; compare `outputs` and the inputs that are `changed` in place."""
    reference = ReferenceBackend(np.float64)
    kinds = {
        "activation": engine.activation,
        "residual": engine.residual,
        "statistic": engine.dtype,
    }
    on_engine, on_reference = SimpleNamespace(), SimpleNamespace()
    for name, (values, kind) in inputs.items():
        array = engine.from_host(values, kinds.get(kind))
        setattr(on_engine, name, array)
        host = engine.to_host(array)
        setattr(
            on_reference, name, host.astype(np.float64) if host.dtype.kind == "f" else host.copy()
        )
    for name, (shape, kind) in outputs.items():
        poison = np.zeros(shape, np.int32) if kind == "index" else np.full(shape, np.nan)
        setattr(on_engine, name, engine.from_host(poison, kinds.get(kind)))
        setattr(on_reference, name, poison.copy())
    call(engine, on_engine)
    call(reference, on_reference)
    for name in (*outputs, *changed):
        yield compare(
            case,
            name,
            np.asarray(engine.to_host(getattr(on_engine, name)), np.float64),
            np.asarray(getattr(on_reference, name), np.float64),
        )


class Draw:
    """Random arrays of each kind."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def activation(self, *shape: int) -> tuple[np.ndarray, str]:
        return self.random.standard_normal(shape), "activation"

    def residual(self, *shape: int) -> tuple[np.ndarray, str]:
        return self.random.standard_normal(shape), "residual"

    def statistic(self, *shape: int) -> tuple[np.ndarray, str]:
        return self.random.standard_normal(shape), "statistic"


def check_linear(
    engine: Backend, draw: "Draw", N: int, D: int, columns: int
) -> Iterator[Comparison]:
    name = f"{N} × {D} × {columns}"
    inputs = {
        "x": draw.activation(N, D),
        "weight": draw.activation(columns, D),
        "dout": draw.activation(N, columns),
        "dweight": draw.statistic(columns, D),
    }
    kept = {
        "out": ((N, columns), "activation"),
        "dx": ((N, D), "activation"),
        "fresh": ((columns, D), "statistic"),
    }

    def linear(ops: Backend, a: Any) -> None:
        ops.linear(a.x, a.weight, a.out)
        ops.linear_backward_input(a.dout, a.weight, a.dx, scale=0.5)
        ops.linear_backward_weight(a.dout, a.x, a.fresh, accumulate=False)
        ops.linear_backward_weight(a.dout, a.x, a.dweight, accumulate=True, scale=0.5)

    yield from compare_op(f"linear {name}", engine, inputs, kept, linear, ("dweight",))


def check_embedding(engine: Backend, draw: "Draw", N: int, D: int, V: int) -> Iterator[Comparison]:
    ids = np.where(draw.random.random(N) < 0.6, 3, draw.random.integers(0, V, N)).astype(
        np.int32
    )  # one id is most of the rows
    inputs = {
        "ids": (ids, "index"),
        "table": draw.activation(V, D),
        "dout": draw.activation(N, D),
        "dtable": draw.statistic(V, D),
    }

    def embedding(ops: Backend, a: Any) -> None:
        ops.embedding(a.ids, a.table, a.out)
        ops.embedding_backward(a.ids, a.dout, a.fresh, accumulate=False)
        ops.embedding_backward(a.ids, a.dout, a.dtable, accumulate=True)

    yield from compare_op(
        f"embedding {N} × {D}",
        engine,
        inputs,
        {"out": ((N, D), "residual"), "fresh": ((V, D), "statistic")},
        embedding,
        ("dtable",),
    )


def check_rms_norm(engine: Backend, draw: "Draw", N: int, D: int) -> Iterator[Comparison]:
    inputs = {
        "x": draw.residual(N, D),
        "delta": draw.activation(N, D),
        "weight": draw.statistic(D),
        "dout": draw.activation(N, D),
        "dx": draw.activation(N, D),
        "dweight": draw.statistic(D),
    }
    kept = {
        name: ((N, D), kind)
        for name, kind in (
            ("sum", "residual"),
            ("out", "activation"),
            ("plain", "activation"),
            ("fresh_dx", "activation"),
        )
    }
    kept |= {
        "inverse": ((N,), "statistic"),
        "plain_inverse": ((N,), "statistic"),
        "fresh_dweight": ((D,), "statistic"),
    }

    def rms_norm(ops: Backend, a: Any) -> None:
        ops.add_rms_norm(a.x, a.delta, 0.5, RmsNorm(a.sum, a.weight, 1e-5, a.out, a.inverse))
        ops.rms_norm(a.x, a.weight, 1e-5, a.plain, a.plain_inverse)
        inputs = a.dout, a.x, a.weight, a.plain_inverse
        fresh, sums = (a.fresh_dx, a.fresh_dweight), (a.dx, a.dweight)
        ops.rms_norm_backward(*inputs, *fresh, add_to_dx=False, accumulate=False)
        ops.rms_norm_backward(*inputs, *sums, add_to_dx=True, accumulate=True, out_ND=a.dout)

    yield from compare_op(
        f"rms_norm {N} × {D}", engine, inputs, kept, rms_norm, ("dx", "dweight", "dout")
    )


def check_rope(engine: Backend, draw: "Draw", N: int, H: int, E: int) -> Iterator[Comparison]:
    inputs = {
        "packed": draw.activation(N, (H + 1) * E),
        "positions": (draw.random.integers(0, 512, N).astype(np.int32), "index"),
    }

    def rope(ops: Backend, a: Any) -> None:
        table = ops.rope_table(512, E, 10_000.0)
        x = a.packed[:, E:].reshape(N, H, E)  # a part of packed rows
        ops.rope(x, a.positions, table)

    def rope_back(ops: Backend, a: Any) -> None:
        ops.rope(
            a.packed[:, E:].reshape(N, H, E),
            a.positions,
            ops.rope_table(512, E, 10_000.0),
            inverse=True,
        )

    yield from compare_op(f"rope {N} × {H} × {E}", engine, inputs, {}, rope, ("packed",))
    yield from compare_op(f"rope back {N} × {H} × {E}", engine, inputs, {}, rope_back, ("packed",))


def check_linear_rope(
    engine: Backend, draw: "Draw", N: int, D: int, H: int, G: int, E: int
) -> Iterator[Comparison]:
    """The product that gives q, k and v, with q and k rotated."""
    inputs = {
        "x": draw.activation(N, D),
        "weight": draw.activation((H + 2 * G) * E, D),
        "positions": (draw.random.integers(0, 512, N).astype(np.int32), "index"),
    }

    def linear_rope(ops: Backend, a: Any) -> None:
        rotated = [a.packed[:, : (H + G) * E].reshape(N, H + G, E)]
        ops.linear_rope(
            a.x, a.weight, a.packed, rotated, a.positions, ops.rope_table(512, E, 10_000.0)
        )

    yield from compare_op(
        f"linear_rope {N} × {D}, {H} / {G} heads of {E}",
        engine,
        inputs,
        {"packed": ((N, (H + 2 * G) * E), "activation")},
        linear_rope,
    )


def check_attention(
    engine: Backend, draw: "Draw", B: int, T: int, H: int, G: int, E: int
) -> Iterator[Comparison]:
    starts = np.zeros((B, T), np.int32)
    if T > 5:  # documents of odd lengths in the last row
        for cut in (T // 3, T // 2 + 1):
            starts[-1, cut:] = cut
    columns = (H + 2 * G) * E
    inputs = {
        "packed": draw.activation(B * T, columns),
        "dout": draw.activation(B, T, H, E),
        "starts": (starts, "index"),
        "offset": (np.zeros(B, np.int32), "index"),
    }
    kept = {
        "out": ((B, T, H, E), "activation"),
        "lse": ((B, H, T), "statistic"),
        "dpacked": ((B * T, columns), "activation"),
    }

    def parts(packed: Any) -> list[Any]:
        split = [packed[:, : H * E], packed[:, H * E : (H + G) * E], packed[:, (H + G) * E :]]
        return [part.reshape(B * T, -1, E).reshape(B, T, -1, E) for part in split]

    def attention(ops: Backend, a: Any) -> None:
        ops.attention(*parts(a.packed), a.starts, a.offset, a.out, a.lse)
        ops.attention_backward(
            AttentionArrays(*parts(a.packed), a.out),
            AttentionArrays(*parts(a.dpacked), a.dout),
            a.starts,
            a.lse,
        )

    yield from compare_op(
        f"attention {B} × {T}, {H} / {G} heads of {E}", engine, inputs, kept, attention
    )
    inputs["positions"] = draw.random.integers(0, 512, B * T).astype(np.int32), "index"

    def attention_rope(ops: Backend, a: Any) -> None:
        ops.attention(*parts(a.packed), a.starts, a.offset, a.out, a.lse)
        saved, gradients = (
            AttentionArrays(*parts(a.packed), a.out),
            AttentionArrays(*parts(a.dpacked), a.dout),
        )
        ops.attention_backward(
            saved, gradients, a.starts, a.lse, (a.positions, ops.rope_table(512, E, 10_000.0))
        )

    yield from compare_op(
        f"attention back to before rope {B} × {T}, {H} / {G} heads of {E}",
        engine,
        inputs,
        kept,
        attention_rope,
    )


def check_decoding(
    engine: Backend, draw: "Draw", B: int, T: int, S: int, H: int, G: int, E: int
) -> Iterator[Comparison]:
    offset = np.array([S - T - 3 * row for row in range(B)], np.int32)
    inputs = {
        "query": draw.activation(B, T, H, E),
        "key": draw.activation(B, S, G, E),
        "value": draw.activation(B, S, G, E),
    }
    inputs |= {"starts": (np.zeros((B, T), np.int32), "index"), "offset": (offset, "index")}
    kept = {"out": ((B, T, H, E), "activation"), "lse": ((B, H, T), "statistic")}

    def decoding(ops: Backend, a: Any) -> None:
        ops.attention(a.query, a.key, a.value, a.starts, a.offset, a.out, a.lse)

    yield from compare_op(
        f"attention {B} × {T} of {S}, {H} / {G} heads of {E}", engine, inputs, kept, decoding
    )


@dataclass(frozen=True)
class DecodeShape:
    """Sizes of a layer that decodes."""

    dim: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int


def check_decode(
    engine: Backend, draw: "Draw", B: int, S: int, shape: DecodeShape, fused: bool
) -> Iterator[Comparison]:
    """A layer for one new token a row, and the logits behind it; composed, or by the fused op.

    Rows have all lengths, from none to a cache that the new token fills. For the fused op, free
    slots hold NaN.
    """
    config = ModelConfig(
        vocab_size=50, layers=1, context=S, step_size=0.5, **dataclasses.asdict(shape)
    )
    count = storage_elements(tensor_table(config))
    G, E = shape.kv_heads, shape.head_size
    lengths = np.linspace(S - 1, 0, B).astype(np.int32)
    keys, values = draw.random.standard_normal((2, B, S, G, E))
    for b, length in enumerate(lengths):
        keys[b, length:] = values[b, length:] = np.nan if fused else 0
    inputs = {
        "matrices": (draw.random.standard_normal(count) * shape.dim**-0.5, "activation"),
        "norms": draw.statistic(count),
        "lengths": (lengths, "index"),
        "x": draw.residual(B, shape.dim),
        "keys": (keys, "activation"),
        "values": (values, "activation"),
    }

    def step(ops: Backend, a: Any) -> None:
        model = Transformer(config, a.norms, ops)
        model.weights = model_weights(config, a.matrices, norms=a.norms)
        buffers = model.buffers(B, 1, training=False)
        for point in (0, 2):  # the stream in front of the layer and behind it
            buffers.norms[point] = buffers.norms[point]._replace(x_ND=a.x)
        slots = [CacheSlots(a.keys, a.values), None]
        decode = decode_step(model, buffers, slots)
        if fused and decode:
            decode.lengths_B = a.lengths
            ops.decode_fused(decode)
        else:
            starts = ops.zeros((B, 1), np.int32)
            rows = Rows(a.lengths, starts, a.lengths, model.rope_table)
            model.run_blocks(rows, buffers, model.weights, slots)
        written = np.arange(B) * S + lengths
        a.key = ops.gather(a.keys.reshape(B * S, G * E), written)
        a.value = ops.gather(a.values.reshape(B * S, G * E), written)
        ops.next_logits(buffers.norms[-1], model.weights.first_head, a.logits)

    yield from compare_op(
        f"decode{', composed' * (not fused)}: {B} of {S}, {shape.dim}, {shape.heads} / {G} heads "
        f"of {E}, ffn {shape.ffn}",
        engine,
        inputs,
        {"logits": ((B, head_rows(config)), "statistic")},
        step,
        ("x", "key", "value"),
    )


def check_swiglu(engine: Backend, draw: "Draw", N: int, F: int) -> Iterator[Comparison]:
    inputs = {
        "packed": (4 * draw.random.standard_normal((N, 2 * F)), "activation"),
        "dout": draw.activation(N, F),
    }
    kept = {"out": ((N, F), "activation"), "dpacked": ((N, 2 * F), "activation")}

    def swiglu(ops: Backend, a: Any) -> None:
        gate, up = a.packed[:, :F], a.packed[:, F:]
        ops.swiglu(gate, up, a.out)
        ops.swiglu_backward(a.dout, gate, up, a.dpacked[:, :F], a.dpacked[:, F:])
        ops.swiglu_backward(a.dout, gate, up, gate, up, a.dout)

    yield from compare_op(f"swiglu {N} × {F}", engine, inputs, kept, swiglu, ("packed", "dout"))


def check_linear_swiglu(
    engine: Backend, draw: "Draw", N: int, D: int, F: int
) -> Iterator[Comparison]:
    """SwiGLU with the products around it. Weights are as wide as a trained model's, so that gates of every size occur."""
    inputs = {
        "x": draw.activation(N, D),
        "weight": (3 / np.sqrt(D) * draw.random.standard_normal((2 * F, D)), "activation"),
        "dx": draw.activation(N, D),
    }
    inputs |= {
        "down": draw.activation(D, F),
        "spent": (3 * draw.random.standard_normal((N, 2 * F)), "activation"),
    }
    kept = {
        "packed": ((N, 2 * F), "activation"),
        "out": ((N, F), "activation"),
        "again": ((N, F), "activation"),
    }

    def linear_swiglu(ops: Backend, a: Any) -> None:
        gate, up = slice(0, F), slice(F, 2 * F)
        ops.linear_swiglu(a.x, a.weight, a.packed, gate, up, a.out)
        ops.linear_swiglu_backward(a.dx, a.down, 0.5, a.spent, gate, up, a.again)

    yield from compare_op(
        f"swiglu and its products {N} × {D} × {F}", engine, inputs, kept, linear_swiglu, ("spent",)
    )


def check_cross_entropy(engine: Backend, draw: "Draw", R: int, V: int) -> Iterator[Comparison]:
    width = -(-V // 8) * 8
    targets = draw.random.integers(0, V, R).astype(np.int32)
    targets[R // 2] = -1
    inputs = {
        "packed": (3 * draw.random.standard_normal((R, width)), "activation"),
        "targets": (targets, "index"),
        "weights": (draw.random.random(R), "statistic"),
    }
    kept = {
        name: ((R,), "statistic") for name in ("logprobs", "lse", "logprobs_at_once", "lse_at_once")
    }

    def cross_entropy(ops: Backend, a: Any) -> None:
        ops.cross_entropy(a.packed[:, :V], a.targets, a.logprobs, a.lse)
        again = a.packed.copy()
        ops.cross_entropy_with_gradient(
            again[:, :V], a.targets, a.weights, a.logprobs_at_once, a.lse_at_once
        )
        ops.cross_entropy_backward(a.packed[:, :V], a.targets, a.weights, a.lse)
        a.gradient, a.gradient_at_once = a.packed[:, :V], again[:, :V]

    yield from compare_op(
        f"cross_entropy {R} × {V}",
        engine,
        inputs,
        kept,
        cross_entropy,
        ("gradient", "gradient_at_once"),
    )


def check_all_masked(engine: Backend, draw: Draw) -> Iterator[Comparison]:
    """No loss, and a gradient that is exactly zero."""
    targets = np.full(5, -1, np.int32)
    inputs = {
        "packed": draw.activation(5, 64),
        "targets": (targets, "index"),
        "weights": (np.ones(5), "statistic"),
    }

    def masked(ops: Backend, a: Any) -> None:
        ops.cross_entropy_with_gradient(a.packed, a.targets, a.weights, a.logprobs, a.lse)

    kept = {"logprobs": ((5,), "statistic"), "lse": ((5,), "statistic")}
    yield from compare_op("cross_entropy, all masked", engine, inputs, kept, masked, ("packed",))


def check_preference(engine: Backend, draw: Draw) -> Iterator[Comparison]:
    """Two rows: two pairs, and one with an empty place."""
    spans = np.array([[[0, 9, 21], [21, 30, 60]], [[0, 30, 57], [0, 0, 0]]], np.int32)
    shares = np.array([[0.3, 0.3], [0.4, 0.0]], np.float32)
    inputs = {
        "logprobs": (-np.abs(draw.random.standard_normal((2, 64, 3))), "statistic"),
        "spans": (spans, "index"),
        "shares": (shares, "statistic"),
    }
    inputs |= {
        "scales": (0.1 + draw.random.random((2, 2, 2)), "statistic"),
        "weights": (np.zeros((2, 64, 3)), "statistic"),
    }
    reference, losses = -20 + draw.random.random((2, 2, 2)), np.zeros(2)

    def preference(ops: Backend, a: Any) -> None:
        a.losses, on_backend = (ops.from_host(values, np.float64) for values in (losses, reference))
        pairs = PreferencePairs(a.spans, on_backend, a.scales, a.shares)
        ops.preference(a.logprobs, pairs, 0.2, 0.1, a.weights, a.losses)

    yield from compare_op("preference", engine, inputs, {}, preference, ("weights", "losses"))


def check_device_ops(engine: Backend) -> Iterator[Comparison]:
    """Every op at sizes that fit no tile: one row, odd lengths, padded rows, masked targets, grouped heads."""
    draw = Draw(3)
    for sizes in ((1, 8, 24), (37, 128, 344), (300, 768, 1280)):
        yield from check_linear(engine, draw, *sizes)
    for sizes in ((1, 8, 16), (2500, 128, 40), (700, 768, 512), (900, 64, 50_257)):
        yield from check_embedding(engine, draw, *sizes)
    for sizes in ((1, 8), (37, 256), (301, 768), (1000, 1024), (5, 2048)):
        yield from check_rms_norm(engine, draw, *sizes)
    for sizes in ((1, 1, 32), (37, 3, 64), (130, 12, 128)):
        yield from check_rope(engine, draw, *sizes)
    for sizes in (
        (37, 128, 3, 1, 32),
        (4_133, 200, 6, 2, 32),
        (4_133, 768, 12, 4, 64),
        (4_400, 256, 4, 1, 128),
    ):  # from 4,096 rows on a GPU fuses them
        yield from check_linear_rope(engine, draw, *sizes)
    for sizes in (
        (1, 1, 1, 1, 32),
        (2, 7, 4, 4, 64),
        (2, 65, 6, 2, 64),
        (1, 130, 8, 2, 128),
        (2, 200, 8, 1, 32),
        (1, 513, 12, 4, 64),
        (2, 512, 12, 4, 64),
    ):
        yield from check_attention(engine, draw, *sizes)
    for sizes in (
        (1, 1, 70, 12, 4, 64),
        (3, 5, 140, 4, 1, 32),
    ):  # decoding: fewer queries than keys
        yield from check_decoding(engine, draw, *sizes)
    shapes = [
        DecodeShape(128, 4, 4, 32, 341),
        DecodeShape(768, 12, 4, 64, 2048),
        DecodeShape(264, 8, 1, 64, 100),
        DecodeShape(256, 2, 2, 128, 682),
        DecodeShape(96, 3, 1, 32, 341),
    ]
    rows = (1, 1), (1, 512), (2, 300), (3, 70), (4, 33), (5, 129), (8, 512), (9, 200), (70, 40)
    for (B, S), shape in zip(rows, 2 * shapes, strict=False):
        yield from check_decode(engine, draw, B, S, shape, fused=engine.fused_rows >= B)
    for (B, S), shape in zip(((1, 33), (3, 70), (9, 40)), shapes, strict=False):
        yield from check_decode(engine, draw, B, S, shape, fused=False)
    for sizes in ((1, 8), (37, 344), (130, 2048)):
        yield from check_swiglu(engine, draw, *sizes)
    for sizes in ((37, 128, 344), (4_133, 200, 512), (4_400, 768, 2048)):
        yield from check_linear_swiglu(engine, draw, *sizes)
    for sizes in ((1, 16), (37, 50), (130, 4096), (9, 50_257)):
        yield from check_cross_entropy(engine, draw, *sizes)
    yield from check_all_masked(engine, draw)
    yield from check_preference(engine, draw)
