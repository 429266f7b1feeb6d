"""The kernels' sources and what is compiled into them: plain values, usable without a device.

A source is compiled once for each set of constants: sizes of rows, so that a row fits into registers and divisions are by
constants, and the types of its elements. Their meaning stands in the header comment of each file.
"""

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

    @property
    def code(self) -> str:
        """The text of the file with the headers of this folder in their places, so that a cache of compiled code notices their changes."""

        def expand(name: str) -> str:
            return INCLUDE.sub(lambda match: expand(match[1]), (FOLDER / name).read_text(encoding="utf-8"))

        return expand(f"{self.name}.cu")

    @property
    def options(self) -> tuple[str, ...]:
        """For NVRTC, without the architecture."""
        values = [f"-D{name}={value}" for name, value in self.constants]
        return ("-std=c++17", *values, *([] if self.exact else ["--use_fast_math"]))


def row_warps(dim: int) -> int:
    """Warps of a block that keeps a row of sums for each of them in shared memory, 48 KB at most."""
    return next(warps for warps in (8, 4, 2, 1) if warps * dim * 4 <= 40_000 or warps == 1)


def loss_threads(vocab_size: int) -> int:
    """Threads of a block that keeps a row of logits in registers."""
    return 256 if vocab_size <= 16384 else 512


class Sources:
    """The kernels of one pair of element types."""

    def __init__(self, activation: str, residual: str):
        """Types are named as NumPy names them: float32 or bfloat16."""
        self.types = (("ACTIVATION", TYPES[activation]), ("RESIDUAL", TYPES[residual]))
        self.exact = activation == "float32"

    def source(self, name: str, **constants: int) -> Source:
        return Source(name, (*self.types, *constants.items()), self.exact)

    def rms_norm(self, dim: int) -> Source:
        return self.source("rms_norm", DIM=dim, WARPS=row_warps(dim))

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

    def all(self, dim: int, kv_heads: int, head_size: int, ffn: int, vocab_size: int) -> list[Source]:
        """Every source for a model of these sizes."""
        sizes = [
            self.rms_norm(dim),
            self.embedding(dim),
            self.rope(head_size),
            self.cache(kv_heads * head_size),
            self.swiglu(ffn),
        ]
        return [*sizes, self.cross_entropy(vocab_size), self.losses(), self.preference(), self.adamw()]
