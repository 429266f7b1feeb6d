"""The kernels' sources and what is compiled into them: plain values, usable without a device.

A source is compiled once for each set of constants: sizes of rows, so that a row fits into registers and divisions are by
constants, and the types of its elements. Their meaning stands in the header comment of each file.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
TYPES = {"float32": "float", "bfloat16": "__nv_bfloat16"}


@dataclass(frozen=True)
class Source:
    """One `.cu` file with its constants, ready for a compiler."""

    name: str
    constants: tuple[tuple[str, str | int], ...]
    exact: bool
    """Divisions, exponentials and roots as IEEE asks; otherwise the faster ones, whose error lies far below that of bfloat16."""

    def __hash__(self) -> int:
        return self.hashed

    @functools.cached_property
    def hashed(self) -> int:  # once: every launch looks its kernel up
        return hash((self.name, self.constants, self.exact))

    @property
    def code(self) -> str:
        """The text of the file with the headers of this folder in their places, so that a cache of compiled code notices their changes."""

        def expand(name: str) -> str:
            return INCLUDE.sub(
                lambda match: expand(match[1]), (FOLDER / name).read_text(encoding="utf-8")
            )

        return expand(f"{self.name}.cu")

    @property
    def options(self) -> tuple[str, ...]:
        """For NVRTC, without the architecture."""
        values = [f"-D{name}={value}" for name, value in self.constants]
        return ("-std=c++17", *values, *([] if self.exact else ["--use_fast_math"]))


def row_warps(dim: int) -> int:
    """Warps of a block that keeps a row of sums for each of them in shared memory, 48 KB at most."""
    return next(
        warps
        for warps in (8, 4, 2, 1)
        if warps * dim <= (6144 if warps == 8 else 10_000) or warps == 1
    )


ADDING_THREADS = 512
"""Of a block that adds the partial sums of 32 columns up, ADDING warps of rms_norm.cu."""


def row_blocks(dim: int) -> int:
    """Such blocks on a multiprocessor, where each warp keeps three rows in registers: of wider rows, as many as do not spill."""
    return max(1, (16 if dim <= 768 else 12 if dim <= 1024 else 8) // row_warps(dim))


def spread_shift(vocab_size: int) -> int:
    """The entries of a vocabulary are dealt to 2^shift blocks, at least 256, each of at most 64 entries."""
    return max(8, (-(-vocab_size // 64) - 1).bit_length())


def loss_threads(vocab_size: int) -> int:
    """Threads of a block that takes a row of logits, in registers up to 16,384 of them."""
    return 256 if vocab_size <= 16384 else 512


def choosing_threads(vocab_size: int) -> int:
    """Threads of a block that chooses one of so many tokens, which it keeps in registers."""
    return next(
        threads for threads in (128, 256, 512, 1024) if vocab_size <= 4 * threads or threads == 1024
    )


def choosing_bytes(vocab_size: int) -> int:
    """Shared memory in which such a block sorts its tokens; 0 for more of them than fit into the 99 KB that every card has."""
    return 8 * (vocab_size + vocab_size // 16) + 4 * 4100 if vocab_size <= 8192 else 0


@dataclass(frozen=True)
class DecodingSizes:
    """What the kernels of a decoded token are compiled for."""

    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    key: int  # first rows of the keys, the values and W_up in the packed weights
    value: int
    up: int

    @property
    def width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_size

    @property
    def widest(self) -> int:
        return max(self.dim, self.width, self.ffn)

    @property
    def heads_together(self) -> int:
        """Query heads that read their keys together."""
        ratio = self.heads // self.kv_heads
        return max(heads for heads in (1, 2, 3, 4) if ratio % heads == 0)


def most_rows(sizes: DecodingSizes, itemsize: int) -> int:
    """Rows up to which a layer goes through decode_layer.cu, a power of two; 0 for a model whose weights' rows do not fit into a warp's registers.

    The rows of x lie in 48 KB of shared memory, and the widest row of a weight takes a lane at most 88 registers.
    """
    if sizes.ffn * itemsize > 88 * 4 * 32 or 4 * sizes.dim * itemsize > 128 * 4 * 32:
        return 0
    return next((rows for rows in (8, 4, 2, 1) if rows * sizes.widest * itemsize <= 48 * 1024), 0)


def parts_of(rows: int) -> int:
    """Most parts that the keys of each of so many rows are split into: every block of the next product reads all of them."""
    return min(8, 16 // rows)


class Sources:
    """The kernels of one pair of element types."""

    def __init__(self, activation: str, residual: str):
        """Types are named as NumPy names them: float32 or bfloat16."""
        self.types = (("ACTIVATION", TYPES[activation]), ("RESIDUAL", TYPES[residual]))
        self.exact = activation == "float32"

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def source(self, name: str, **constants: int) -> Source:
        return Source(name, (*self.types, *constants.items()), self.exact)

    def rms_norm(self, dim: int) -> Source:
        return self.source("rms_norm", DIM=dim, WARPS=row_warps(dim), BLOCKS=row_blocks(dim))

    def embedding(self, dim: int) -> Source:
        return self.source("embedding", DIM=dim, WARPS=row_warps(dim))

    def rope(self, head_size: int) -> Source:
        return self.source("rope", HEAD_SIZE=head_size)

    def swiglu(self, ffn: int) -> Source:
        return self.source("swiglu", FFN=ffn)

    def cross_entropy(self, vocab_size: int) -> Source:
        return self.source("cross_entropy", VOCAB=vocab_size, THREADS=loss_threads(vocab_size))

    def adamw(self) -> Source:
        return Source("adamw", self.types, exact=True)

    def cache(self, wide: int) -> Source:
        return self.source("cache", WIDE=wide)

    def losses(self) -> Source:
        return Source("losses", self.types, exact=True)

    def preference(self) -> Source:
        return Source("preference", self.types, exact=True)

    def decode_layer(self, sizes: DecodingSizes, rows: int) -> Source:
        """`rows`: the most that there may be, a power of two."""
        s = sizes
        heads = {"HEADS": s.heads, "KV_HEADS": s.kv_heads, "HEAD_SIZE": s.head_size}
        return self.source(
            "decode_layer",
            DIM=s.dim,
            FFN=s.ffn,
            **heads,
            KEY=s.key,
            VALUE=s.value,
            UP=s.up,
            ROWS=rows,
            PARTS=parts_of(rows),
        )

    def decode_head(self, dim: int, rows: int) -> Source:
        return self.source("decode_head", DIM=dim, ROWS=rows)

    def decode_attention(self, sizes: DecodingSizes) -> Source:
        s = sizes
        heads = {"HEADS": s.heads, "KV_HEADS": s.kv_heads, "HEAD_SIZE": s.head_size}
        return self.source(
            "decode_attention", **heads, KEY=s.key, VALUE=s.value, TOGETHER=s.heads_together
        )

    def sampling(self, vocab_size: int) -> Source:
        constants = (
            ("VOCAB", vocab_size),
            ("THREADS", choosing_threads(vocab_size)),
            ("SORTED", int(choosing_bytes(vocab_size) > 0)),
        )
        return Source("sampling", (*self.types, *constants), exact=True)

    def all(
        self, dim: int, heads: int, kv_heads: int, head_size: int, ffn: int, vocab_size: int
    ) -> list[Source]:
        """Every source for a model of these sizes."""
        query, key = heads * head_size, kv_heads * head_size
        decoding = DecodingSizes(dim, ffn, heads, kv_heads, head_size, query, query + key, ffn)
        rows = most_rows(decoding, 2 if self.types[0][1] == TYPES["bfloat16"] else 4)
        sizes = [
            self.rms_norm(dim),
            self.embedding(dim),
            self.rope(head_size),
            self.cache(kv_heads * head_size),
            self.swiglu(ffn),
        ]
        for power in range(rows.bit_length()):
            sizes += [self.decode_layer(decoding, 2**power), self.decode_head(dim, 2**power)]
        sizes += [self.decode_attention(decoding), self.sampling(vocab_size)]
        return [
            *sizes,
            self.cross_entropy(vocab_size),
            self.losses(),
            self.preference(),
            self.adamw(),
        ]
