"""A layer that decodes new tokens of each row: an engine beside the reference in float64."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product

import numpy as np

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import CacheSlots
from nanoeuler.model.appending import decode_step, is_fused, norm_of, run_cached
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.checks.comparison import (
    NORM_EPSILON,
    Arrays,
    Comparison,
    Input,
    Output,
    Random,
    compare_op,
)
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.model.spec import head_rows
from nanoeuler.model.transformer import Transformer


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer that decodes."""

    dim: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    family: str = "llama"
    qk_norm: str = "none"
    norm_epsilon: float = NORM_EPSILON
    step_size: float = 0.5


SHAPES = [
    LayerShape(128, 4, 4, 32, 341),
    LayerShape(768, 12, 4, 64, 2048),
    LayerShape(264, 8, 1, 64, 100),
    LayerShape(256, 2, 2, 128, 682),
    LayerShape(96, 3, 1, 32, 341),
]
GPT2_SHAPES = [
    LayerShape(128, 4, 4, 32, 341, "gpt2"),
    LayerShape(768, 12, 12, 64, 3072, "gpt2"),
    LayerShape(96, 3, 3, 32, 100, "gpt2"),
]
QK_NORM_SHAPES = [
    LayerShape(128, 4, 2, 32, 341, qk_norm="rms", step_size=1.5),
    LayerShape(768, 12, 4, 64, 2048, qk_norm="weighted", step_size=1.5),
    LayerShape(256, 2, 1, 128, 682, qk_norm="weighted", step_size=1.5),
    LayerShape(264, 8, 1, 64, 100, qk_norm="rms", step_size=1.5),
]

CACHES = [(1, 1), (1, 512), (2, 300), (3, 70), (4, 33), (5, 129), (8, 512), (9, 200), (70, 40)]
"""Rows and slots, for the op that the engine takes by itself."""

SEVERAL = [(1, 40, 2), (1, 512, 4), (2, 300, 3), (2, 70, 4), (5, 33, 4), (17, 64, 4)]
"""Rows, slots and new tokens of each row, for the same op; the composed one has one new token."""

MANY_ROWS = [
    *[(7, 300, 1), (16, 130, 1), (33, 200, 1), (64, 512, 1)],
    *[(1, 40, 8), (5, 130, 3), (16, 64, 4)],
]
"""Rows, slots and new tokens on a device; a GPU with clusters has kernels for 8, 16, 32 and 64."""

PROMPT_SHAPES = [
    LayerShape(768, 12, 4, 64, 2048),
    LayerShape(256, 2, 1, 128, 640),
    LayerShape(384, 6, 2, 64, 192, qk_norm="weighted", step_size=1.5),
    LayerShape(256, 4, 2, 128, 128, qk_norm="rms", step_size=1.5),
]
PROMPTS = [(1, 40, 9), (1, 512, 512), (3, 150, 70), (2, 700, 300)]
"""Rows, slots and new tokens of prompts, with more tokens of a row than other kernels take."""


def check_decoded_layers(engine: Backend, random: Random) -> Iterator[Comparison]:
    """Layers of several shapes: by the fused op where the engine has one, and composed."""
    for shapes in (SHAPES, GPT2_SHAPES, QK_NORM_SHAPES):
        for (B, S), shape in zip(CACHES, cycle(shapes), strict=False):
            yield from check_decode(engine, random, B, S, shape)
        for (B, S, T), shape in zip(SEVERAL, cycle(shapes), strict=False):
            yield from check_decode(engine, random, B, S, shape, tokens=T)
            yield from check_decode(engine, random, B, S, shape, composed=True)
        for (B, S, T), shape in product(MANY_ROWS if engine.device else (), shapes):
            yield from check_decode(engine, random, B, S, shape, tokens=T)
    for (B, S, T), shape in product(PROMPTS if engine.device else (), PROMPT_SHAPES):
        yield from check_decode(engine, random, B, S, shape, tokens=T)
        yield from check_decode(engine, random, B, S, shape, tokens=T, last=True)


def check_decode(
    engine: Backend,
    random: Random,
    B: int,
    S: int,
    shape: LayerShape,
    *,
    tokens: int = 1,
    last: bool = False,
    composed: bool = False,
) -> Iterator[Comparison]:
    """A layer for new tokens of each row, and the logits behind them.

    By the fused op where the engine takes it by itself, unless `composed`. With `last` the output
    is needed for one token of each row alone, behind which others are padding.

    Rows have all lengths, from none to a cache that the new tokens fill. For the fused op, free
    slots hold NaN. Matrices and norms, which share no element, take theirs from one draw.
    """
    config = ModelConfig(vocab_size=50, layers=1, context=S, **dataclasses.asdict(shape))
    count = FlatBuffer.elements(config)
    G, E = shape.kv_heads, shape.head_size
    T = tokens
    asked = Transformer(config, engine.from_host(np.zeros(count, np.float32)), engine)
    fused = not composed and is_fused(asked, B, T)
    lengths = np.linspace(S - T, 0, B).astype(np.int32)
    slots_BT = (lengths[:, None] + np.arange(T)).astype(np.int32)
    keys, values = random.normal(2, B, S, G, E)
    for b, length in enumerate(lengths):
        keys[b, length:] = values[b, length:] = np.nan if fused else 0
    parameters = random.normal(count)
    inputs: dict[str, Input] = {
        "matrices": (parameters * shape.dim**-0.5, "activation"),
        "norms": (parameters, "statistic"),
        "lengths": (lengths, "index"),
        "positions": (slots_BT.reshape(-1), "index"),
        "x": random.residual(B * T, shape.dim),
        "keys": (keys, "activation"),
        "values": (values, "activation"),
    }
    outputs: dict[str, Output] = {
        "logits": ((B if last else B * T, head_rows(config)), "statistic")
    }
    behind = np.arange(B, dtype=np.int32) % min(T, 3)  # tokens behind the last one
    if last:
        inputs["ends"] = lengths + np.int32(T - 1) - behind, "index"
        outputs["last"] = (B, shape.dim), "residual"

    def step(ops: Backend, a: Arrays) -> None:
        model = Transformer(config, a.norms, ops)
        model.weights = model_weights(config, a.matrices, FlatBuffer(config, a.norms))
        buffers = model.buffers(B, T, training=False)
        for point in (0, 2):  # the residual stream in front of the layer and behind it
            buffers.norms[point] = buffers.norms[point]._replace(x_ND=a.x)
        slots = [CacheSlots(a.keys, a.values), None]
        decode = decode_step(model, slots) if fused else None
        if decode and last:
            decode.last_BD, decode.ends_B = a.last, a.ends
        starts = ops.zeros((B, T), np.int32)
        rows = Rows(a.positions, starts, a.lengths, model.rotary.whole)
        run_cached(model, rows, buffers, slots, decode)
        written = (np.arange(B)[:, None] * S + slots_BT).reshape(-1)
        a.key = ops.gather(a.keys.reshape(B * S, G * E), written)
        a.value = ops.gather(a.values.reshape(B * S, G * E), written)
        norm = buffers.norms[-1]
        if last:
            if not (fused and isinstance(ops, FusingBackend)):
                a.last = ops.gather(norm.x_ND, np.arange(B) * T + T - 1 - behind)
            norm = norm_of(norm, a.last)
        ops.next_logits(norm, model.weights.first_head, a.logits)

    new = f"{B} × {T}" if T > 1 else f"{B}"
    case = (
        f"decode{', composed' * (not fused)}: {new} of {S}{', one needed' * last}, {shape.dim}, "
        f"{shape.heads} / {G} heads of {E}, ffn {shape.ffn}{', GPT-2' * (shape.family == 'gpt2')}"
        f"{f', norms of heads: {shape.qk_norm}' * (shape.qk_norm != 'none')}"
    )
    changed = ("key", "value") if last else ("x", "key", "value")
    yield from compare_op(case, engine, inputs, outputs, step, changed)
