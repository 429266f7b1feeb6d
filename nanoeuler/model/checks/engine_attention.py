"""The rotation and attention of an engine beside the reference in float64."""

from collections.abc import Iterator

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, AttentionArrays, RopeTable, Rotation
from nanoeuler.model.checks.comparison import Arrays, Comparison, Input, Output, Random, compare_op

POSITIONS = 512


def rope_table(ops: Backend, E: int) -> RopeTable:
    """The angles of all `POSITIONS`."""
    return ops.rope_table(POSITIONS, E, 10_000.0)


def check_rope(engine: Backend, random: Random, N: int, H: int, E: int) -> Iterator[Comparison]:
    """The rotated heads are a part of packed rows."""
    inputs: dict[str, Input] = {
        "packed": random.activation(N, (H + 1) * E),
        "positions": (random.integers(POSITIONS, N), "index"),
    }

    def rope(ops: Backend, a: Arrays) -> None:
        ops.rope(a.packed[:, E:].reshape(N, H, E), a.positions, rope_table(ops, E))

    def rope_back(ops: Backend, a: Arrays) -> None:
        x = a.packed[:, E:].reshape(N, H, E)
        ops.rope(x, a.positions, rope_table(ops, E), inverse=True)

    yield from compare_op(f"rope {N} × {H} × {E}", engine, inputs, {}, rope, ("packed",))
    yield from compare_op(f"rope back {N} × {H} × {E}", engine, inputs, {}, rope_back, ("packed",))


def check_linear_rope(
    engine: Backend, random: Random, N: int, D: int, H: int, G: int, E: int
) -> Iterator[Comparison]:
    """The product that gives q, k and v, with q and k rotated."""
    inputs: dict[str, Input] = {
        "x": random.activation(N, D),
        "weight": random.activation((H + 2 * G) * E, D),
        "positions": (random.integers(POSITIONS, N), "index"),
    }
    outputs: dict[str, Output] = {"packed": ((N, (H + 2 * G) * E), "activation")}

    def linear_rope(ops: Backend, a: Arrays) -> None:
        rotated = [a.packed[:, : (H + G) * E].reshape(N, H + G, E)]
        ops.linear_rope(a.x, a.weight, a.packed, rotated, Rotation(a.positions, rope_table(ops, E)))

    case = f"linear_rope {N} × {D}, {H} / {G} heads of {E}"
    yield from compare_op(case, engine, inputs, outputs, linear_rope)


def check_attention(
    engine: Backend, random: Random, B: int, T: int, H: int, G: int, E: int, cap: float = 0.0
) -> Iterator[Comparison]:
    """Forward and backward pass; q, k and v are packed, and so are their gradients.

    The gradients are taken with respect to q, k and v as they are, and before their rotation.
    """
    starts = np.zeros((B, T), np.int32)
    if T > 5:  # documents of odd lengths in the last row
        for cut in (T // 3, T // 2 + 1):
            starts[-1, cut:] = cut
    columns = (H + 2 * G) * E
    inputs: dict[str, Input] = {
        "packed": random.activation(B * T, columns),
        "dout": random.activation(B, T, H, E),
        "starts": (starts, "index"),
        "offset": (np.zeros(B, np.int32), "index"),
        "positions": (random.integers(POSITIONS, B * T), "index"),
    }
    outputs: dict[str, Output] = {
        "out": ((B, T, H, E), "activation"),
        "lse": ((B, H, T), "statistic"),
        "dpacked": ((B * T, columns), "activation"),
    }

    def parts(packed: Array) -> tuple[Array, Array, Array]:
        """Query, key and value, each (B, T, heads, E)."""
        heads = packed.reshape(B, T, H + 2 * G, E)
        return heads[:, :, :H], heads[:, :, H : H + G], heads[:, :, H + G :]

    def both_passes(ops: Backend, a: Arrays, rotation: Rotation | None) -> None:
        saved = AttentionArrays(*parts(a.packed), a.out, cap)
        ops.attention(saved, a.starts, a.offset, a.lse)
        gradients = AttentionArrays(*parts(a.dpacked), a.dout)
        ops.attention_backward(saved, gradients, a.starts, a.lse, rotation)

    def attention(ops: Backend, a: Arrays) -> None:
        both_passes(ops, a, None)

    def attention_rope(ops: Backend, a: Arrays) -> None:
        both_passes(ops, a, Rotation(a.positions, rope_table(ops, E)))

    size = f"{B} × {T}, {H} / {G} heads of {E}" + f", cap {cap}" * (cap > 0)
    yield from compare_op(f"attention {size}", engine, inputs, outputs, attention)
    before_rope = f"attention back to before rope {size}"
    yield from compare_op(before_rope, engine, inputs, outputs, attention_rope)


def check_cached_attention(
    engine: Backend,
    random: Random,
    B: int,
    T: int,
    S: int,
    H: int,
    G: int,
    E: int,
    cap: float = 0.0,
) -> Iterator[Comparison]:
    """Fewer queries than keys, as in decoding; rows have unequal lengths."""
    inputs: dict[str, Input] = {
        "query": random.activation(B, T, H, E),
        "key": random.activation(B, S, G, E),
        "value": random.activation(B, S, G, E),
        "starts": (np.zeros((B, T), np.int32), "index"),
        "offset": (np.array([S - T - 3 * row for row in range(B)], np.int32), "index"),
    }
    outputs: dict[str, Output] = {
        "out": ((B, T, H, E), "activation"),
        "lse": ((B, H, T), "statistic"),
    }

    def attention(ops: Backend, a: Arrays) -> None:
        heads = AttentionArrays(a.query, a.key, a.value, a.out, cap)
        ops.attention(heads, a.starts, a.offset, a.lse)

    case = f"attention {B} × {T} of {S}, {H} / {G} heads of {E}" + f", cap {cap}" * (cap > 0)
    yield from compare_op(case, engine, inputs, outputs, attention)
