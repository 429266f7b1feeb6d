"""The kernels' sources and the constants compiled into them: plain values, usable without a device.

A source is compiled once for each set of constants: row sizes, so that a row fits into registers
and divisions are by constants; element types; block and tile sizes. Every number that both the
launching code and a kernel need is stated here, or beside the launch, and reaches the kernel as a
-D definition: the kernel has no value of its own that could differ. The header comment of each
file says what its constants mean.
"""

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

from nanoeuler.backend.capabilities import LEAST_REPEATED, MOST_REPEATED

FOLDER = Path(__file__).parent
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
TYPES = {"float32": "float", "bfloat16": "bfloat16"}

EXACT = ("adamw", "fp8", "losses", "preference", "sampling")
"""Kernels whose arithmetic is exact in every precision of the engine."""

WITHOUT = {
    "ACTIVATION": ("adamw", "drafts", "losses", "preference", "sampling"),
    "RESIDUAL": (
        *("adamw", "cache", "cross_entropy", "decode_attention", "fp8", "gelu", "losses", "muon"),
        *("preference", "rope", "sampling", "swiglu"),
    ),
}
"""Kernels that no element type is compiled into, so that precisions share their machine code."""

WARP = 32
WIDTH = 8
"""Elements of one memory access: 16 bytes of bfloat16, twice 16 of float32."""

ELEMENTWISE_THREADS = 256
"""Threads of a block of an elementwise kernel; each thread takes `WIDTH` elements."""

NORM_THREADS = 512
"""Threads of a block that sums squares of gradients."""

HEAD_NORM_BLOCKS = 8
"""Blocks of a multiprocessor in the backward pass of the norms of heads."""

RATE_BLOCK = 128
"""Elements that share a rate of AdamW: tensors start on multiples of it."""

STEP_SCALARS = 5
"""Scalars of an optimizer step that stay on the device between two kernels of adamw.cu."""

MUON_PARTS = 64
"""Blocks that share a matrix of Muon."""

SUM_THREADS = 1024
"""Threads of the one block that adds a step's losses up."""

PAIR_THREADS = 128
"""Threads of a block that takes one preference pair."""

ADDING_WARPS = 16
"""Warps of a block that adds up the partial sums of 32 columns of a norm's weight gradient."""

BLOCK_ENTRIES = 64
"""Most vocabulary entries of one block in the backward pass of the embedding."""

HELD_LOGITS = 16_384
"""Longest row of logits that a block keeps in registers."""

BINS = 4096
"""Bins into which the tokens that may be chosen are sorted first."""

SORTED_TOKENS = 8192
"""Largest vocabulary whose sort fits into the 99 KB of shared memory that every card has."""

CANDIDATES = 1024
"""Tokens of a bin that are sorted at once in a larger vocabulary."""

FEW_ROWS = 4
"""Rows up to which few_rows.cuh is as fast as matrix units, and of a pass over drafts."""

FEW_ROWS_WARPS = 8
"""Warps of a block of few_rows.cuh."""

MANY_ROWS_WARPS = 8
"""Warps of a block of many_rows.cuh."""

MOST_MANY_ROWS = 64
"""Most rows of many_rows.cuh: each rereads what it needs of a weight from registers."""

CLUSTER_BLOCKS, MOST_CLUSTER_BLOCKS = 4, 8
"""Blocks that share the inputs of a product of many_rows.cuh: as many as are worth their exchange
of sums, and as many as a chip promises to run together."""

X_BYTES = 64 * 1024
"""Shared memory for the rows of x there: with it, blocks of two kernels fit side by side."""

BLOCK_SHARED = 227 * 1024
"""Bytes of shared memory that a block of a chip with clusters may take."""

CHIP_BLOCKS = 132
"""Blocks that use all multiprocessors of the largest such chip."""

ATTEND_THREADS = 256
"""Threads of a block of decode_attention.cu."""

HISTORY, HEADROOM = 16, 2
"""Steps whose magnitudes a scale of fp8 is made from, and by how much the next may exceed them."""

TURNED_MULTIPLE = 128
"""Columns of a copy that a block turns are a multiple of it."""

QUANTIZED_TILE = 64
"""Rows and columns of a weight that a block transposes at a time."""

MOSTLY_CACHE, MUCH_SHARED = 0, 44
"""Carve-outs. 0: of kernels for few rows, whose weights come through the cache while they wait for
the kernel before. 44: of those for more rows, so that blocks of several kernels fit side by side.
Kernels in a row have the same one: a multiprocessor must be idle to change it."""

STATIC_SHARED = 48 * 1024
"""Bytes of static shared memory that a block may take."""


@dataclass(frozen=True)
class Source:
    """One `.cu` file with its constants, ready for a compiler."""

    name: str
    constants: tuple[tuple[str, str | int], ...]
    exact: bool
    """Divisions, exponentials and roots are rounded as IEEE 754 asks. Otherwise the faster ones
    are taken, whose error lies far below that of bfloat16."""
    sm_90a: bool = False
    """Uses instructions that only compute capability 9.0 has: compile for sm_90a."""
    carveout: int | None = None
    """Percent of a multiprocessor's fast memory that is shared memory and not cache, at least; None
    leaves it to the driver."""

    def __hash__(self) -> int:
        return self.hashed

    @functools.cached_property
    def hashed(self) -> int:  # computed once: every launch looks its kernel up
        return hash((self.name, self.constants, self.exact))

    @property
    def code(self) -> str:
        """The text of the file with this folder's headers pasted in.

        A cache of compiled code, which knows kernels by their text, so sees changes of a header.
        """

        def expand(name: str) -> str:
            text = (FOLDER / name).read_text(encoding="utf-8")
            return INCLUDE.sub(lambda match: expand(match[1]), text)

        return expand(f"{self.name}.cu")

    @property
    def options(self) -> tuple[str, ...]:
        """For NVRTC, without the architecture.

        CuPy gives equal sources one function, which can have one carve-out only.
        """
        values = [f"-D{name}={value}" for name, value in self.constants]
        if self.carveout is not None:
            values.append(f"-DCARVEOUT={self.carveout}")
        return ("-std=c++17", *values, *([] if self.exact else ["--use_fast_math"]))


def row_warps(dim: int) -> int:
    """Warps of a block that keeps a row of sums for each warp in shared memory, 48 KB at most."""
    if 8 * dim <= 6144:
        return 8
    return next((warps for warps in (4, 2) if warps * dim <= 10_000), 1)


def row_blocks(dim: int) -> int:
    """Blocks of `row_warps` warps on a multiprocessor, where each warp keeps three rows in
    registers: of wider rows, as many as do not spill."""
    return max(1, (16 if dim <= 768 else 12 if dim <= 1024 else 8) // row_warps(dim))


def turned_tokens(dim: int) -> int:
    """Tokens whose e4m3 copies a block turns together: as many as leave room for a second block."""
    return 64 if dim <= 1024 else 32


def spread_shift(vocab_size: int) -> int:
    """Vocabulary entries are dealt to 2^shift blocks: at least 256 blocks of `BLOCK_ENTRIES`."""
    return max(8, (-(-vocab_size // BLOCK_ENTRIES) - 1).bit_length())


def loss_threads(vocab_size: int) -> int:
    """Threads of a block that takes a row of logits."""
    return 256 if vocab_size <= HELD_LOGITS else 512


def choosing_threads(vocab_size: int) -> int:
    """Threads of a block that chooses a token and keeps the vocabulary's logits in registers."""
    return next((threads for threads in (128, 256, 512) if vocab_size <= 4 * threads), 1024)


def choosing_bytes(vocab_size: int) -> int:
    """Shared memory in which such a block sorts its tokens, or counts and sorts those of a bin."""
    if vocab_size > SORTED_TOKENS:
        return 12 * (BINS + choosing_threads(vocab_size)) + 16 * CANDIDATES
    return 8 * (vocab_size + vocab_size // 16) + 4 * (BINS + 4)


def choosing_blocks(vocab_size: int, *, clusters: bool) -> int:
    """Blocks that share a row's tokens, on a chip with clusters or without."""
    return MOST_CLUSTER_BLOCKS if clusters and vocab_size > SORTED_TOKENS else 1


@dataclass(frozen=True)
class DecodingSizes:
    """The sizes that the kernels of a decoded token are compiled for."""

    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    key: int  # first rows of the keys, the values and W_up in the packed weights
    value: int
    up: int
    qk_norm: bool = False
    gpt2: bool = False

    @property
    def width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_size

    @property
    def query_width(self) -> int:
        """Columns of `query`, see slots.cuh."""
        return (self.heads + self.kv_heads * self.qk_norm) * self.head_size

    @property
    def widest(self) -> int:
        return max(self.dim, self.width, self.ffn)

    @property
    def heads_together(self) -> int:
        """Query heads that read their keys together."""
        ratio = self.heads // self.kv_heads
        return max(heads for heads in (1, 2, 3, 4) if ratio % heads == 0)


def most_rows(sizes: DecodingSizes, itemsize: int) -> int:
    """Rows up to which a layer goes through decode_layer.cu, a power of two.

    The rows of x lie in 48 KB of shared memory, and the widest row of a weight takes a lane at
    most 88 registers. 0 for a model whose weight rows do not fit into a warp's registers.
    """
    if sizes.ffn * itemsize > 88 * 4 * WARP or 4 * sizes.dim * itemsize > 128 * 4 * WARP:
        return 0
    return next((r for r in (8, 4, 2, 1) if r * sizes.widest * itemsize <= STATIC_SHARED), 0)


def head_fits(rows: int, dim: int, itemsize: int) -> bool:
    """Can decode_head.cu take this many rows?"""
    row = dim * itemsize
    return rows <= 8 and rows * row <= STATIC_SHARED and 2 * row <= 64 * 4 * WARP


def parts_of(rows: int) -> int:
    """Most parts that the keys of each row are split into, given how many rows there are.

    Every block of the next product reads all parts of all rows. A few rows have as many as one, so
    that drafts are checked with the bits of plain decoding.
    """
    return 8 if rows <= FEW_ROWS else 2


@dataclass(frozen=True)
class ManyRowsAttention:
    """How many_rows_attention.cuh takes the keys of up to `rows` rows."""

    head_size: int
    heads_together: int
    rows: int

    @property
    def parts(self) -> int:
        """Most parts of the keys of a row, which the product behind puts together."""
        return 1 if self.rows > 16 else 64 // self.rows

    @property
    def warps(self) -> int:
        """Of a block: few where there are as many blocks as heads, but enough for its new keys."""
        return 8 if self.heads_together > 1 or self.head_size > 64 else 4

    @property
    def stages(self) -> int:
        """Tiles of keys that a warp has on their way: more are worth their memory only where a
        part is long."""
        return 2 if self.heads_together > 1 and self.parts == 1 and self.head_size <= 64 else 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: tiles of 16 keys and their values."""
        return self.warps * self.stages * 2 * 16 * self.head_size * 2

    @property
    def constants(self) -> dict[str, int]:
        constants = {"PARTS": self.parts, "TOGETHER": self.heads_together}
        tiles = {"WARPS": self.warps, "STAGES": self.stages, "BYTES": self.shared_bytes}
        return constants | {f"ATTEND_{key}": value for key, value in tiles.items()}


@dataclass(frozen=True)
class ManyRowsProduct:
    """How many_rows.cuh takes a product of this many inputs with up to `rows` rows."""

    inputs: int
    pairs: int  # of 16 outputs
    rows: int
    gpt2: bool = False

    @property
    def tiles(self) -> int:
        """Pairs of a cluster: two where there are many, so that they share their rows of x."""
        return 1 if self.pairs < CHIP_BLOCKS / 2 else 2

    @property
    def split(self) -> int:
        """Blocks of a cluster: enough for the whole chip, and so many that x fits."""
        filling = min(CHIP_BLOCKS * self.tiles // self.pairs, CLUSTER_BLOCKS)
        return max(1, filling, ceiling(2 * self.inputs * self.rows, X_BYTES))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, see many_rows.cuh."""
        units = ceiling(ceiling(self.inputs, WARP), self.split)
        input_warps = MANY_ROWS_WARPS // (self.tiles * (2 if self.rows >= 16 else 1))
        x_row = ceiling(2 * WARP * units, 128) * 128 + 64
        sum_row = 4 * (32 * self.tiles + 4)
        factors = self.rows * x_row + self.tiles * units * 4 * 512
        sums = input_warps * self.rows * sum_row
        received = (self.split - 1) * ceiling(self.rows, self.split) * sum_row
        norm = 4 * WARP * units * (2 if self.gpt2 else 1)
        return max(factors, sums) + received + 4 * self.split * self.rows + norm

    @property
    def fits(self) -> bool:
        return self.split <= MOST_CLUSTER_BLOCKS and self.shared_bytes <= BLOCK_SHARED

    @property
    def blocks(self) -> int:
        return ceiling(self.pairs, self.tiles) * self.split

    @property
    def is_huge(self) -> bool:
        """Are there more blocks than a chip runs at once? Then x is read too often."""
        return self.blocks > 2 * CHIP_BLOCKS

    def constants(self, name: str) -> dict[str, int]:
        sizes = {"SPLIT": self.split, "TILES": self.tiles, "BYTES": self.shared_bytes}
        return {f"{name.upper()}_{key}": value for key, value in sizes.items()}


@functools.cache
def many_rows_attention(sizes: DecodingSizes, rows: int) -> ManyRowsAttention:
    return ManyRowsAttention(sizes.head_size, sizes.heads_together, rows)


@functools.cache
def many_rows_products(sizes: DecodingSizes, rows: int) -> dict[str, ManyRowsProduct]:
    """The products of many_rows_layer.cu by their kernels."""
    s = sizes
    shapes = {
        "project": (s.dim, (s.heads + 2 * s.kv_heads) * s.head_size // 32),
        "output": (s.width, ceiling(s.dim, 32)),
        "down": (s.ffn, ceiling(s.dim, 32)),
    }
    kernel, columns = ("up", 32) if s.gpt2 else ("gate_up", 16)
    shapes[kernel] = s.dim, ceiling(s.ffn, columns)
    return {name: ManyRowsProduct(*shape, rows, s.gpt2) for name, shape in shapes.items()}


@functools.cache
def many_rows_head(dim: int, vocab_size: int, rows: int, *, gpt2: bool = False) -> ManyRowsProduct:
    """The product of many_rows_head.cu."""
    return ManyRowsProduct(dim, ceiling(vocab_size, 32), rows, gpt2)


def ceiling(work: int, per: int) -> int:
    return -(-work // per)


def row_pairs(rows: int, itemsize: int) -> int:
    """Pairs of rows of a wide weight that a warp takes: more meet a row of x at once, fewer leave
    room in its registers."""
    return 2 if rows > 1 and itemsize == 2 else 1


class KernelSources:
    """The kernels of one pair of element types."""

    def __init__(self, activation: str, residual: str):
        """Types are named as NumPy names them: float32 or bfloat16."""
        self.common: tuple[tuple[str, str | int], ...] = (
            ("ACTIVATION", TYPES[activation]),
            ("RESIDUAL", TYPES[residual]),
            ("WIDTH", WIDTH),
        )
        self.exact = activation == "float32"
        self.itemsize = 4 if activation == "float32" else 2

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def source(self, name: str, carveout: int | None = None, /, **constants: int) -> Source:
        common = [pair for pair in self.common if name not in WITHOUT.get(pair[0], ())]
        exact = self.exact or name in EXACT
        return Source(name, (*common, *constants.items()), exact, carveout=carveout)

    def rms_norm(self, dim: int, *, fp8: bool = False) -> Source:
        sizes = {"DIM": dim, "WARPS": row_warps(dim), "BLOCKS": row_blocks(dim)}
        turned = {"FP8": int(fp8), "TOKENS": turned_tokens(dim)}
        return self.source("rms_norm", ADDING_WARPS=ADDING_WARPS, **sizes, **turned)

    def layer_norm_blocks(self, dim: int) -> int:
        """Blocks of a multiprocessor in the backward pass of LayerNorm: more would spill."""
        return max(1, row_blocks(dim) - (self.exact or dim > 768))

    def layer_norm(self, dim: int, *, fp8: bool = False) -> Source:
        sizes = {"DIM": dim, "WARPS": row_warps(dim), "BLOCKS": self.layer_norm_blocks(dim)}
        turned = {"FP8": int(fp8), "TOKENS": turned_tokens(dim)}
        return self.source("layer_norm", ADDING_WARPS=ADDING_WARPS, **sizes, **turned)

    def gelu(self, ffn: int) -> Source:
        return self.source("gelu", THREADS=ELEMENTWISE_THREADS, FFN=ffn)

    def gpt2(self, dim: int, heads: int, ffn: int) -> list[Source]:
        """The kernels that a GPT-2 of these sizes has beside those of `all`."""
        copying = not self.exact and dim % TURNED_MULTIPLE == 0
        starts = dim, 2 * dim, 0
        decoding = DecodingSizes(dim, ffn, heads, heads, dim // heads, *starts, gpt2=True)
        row_counts = [rows for rows in (1, 4) if rows <= most_rows(decoding, self.itemsize)]
        return [
            *(self.layer_norm(dim, fp8=fp8) for fp8 in (False, True)[: 1 + copying]),
            *map(self.gelu, (dim, 3 * dim, ffn)),
            *(self.decode_layer(decoding, rows) for rows in row_counts),
            *(self.decode_head(dim, rows, gpt2=True) for rows in row_counts),
            self.decode_attention(decoding),
        ]

    def embedding(self, dim: int) -> Source:
        sizes = {"DIM": dim, "WARPS": row_warps(dim), "BLOCK_ENTRIES": BLOCK_ENTRIES}
        return self.source("embedding", THREADS=ELEMENTWISE_THREADS, **sizes)

    def rope(self, head_size: int) -> Source:
        return self.source("rope", THREADS=ELEMENTWISE_THREADS, HEAD_SIZE=head_size)

    def head_norm(self, head_size: int) -> Source:
        return self.source("head_norm", THREADS=ELEMENTWISE_THREADS, HEAD_SIZE=head_size)

    def swiglu(self, ffn: int) -> Source:
        return self.source("swiglu", THREADS=ELEMENTWISE_THREADS, FFN=ffn)

    def cross_entropy(self, vocab_size: int, *, fp8: bool = False) -> Source:
        sizes = {"VOCAB": vocab_size, "HELD": int(vocab_size <= HELD_LOGITS)}
        threads = loss_threads(vocab_size)
        return self.source("cross_entropy", THREADS=threads, FP8=int(fp8), **sizes)

    def quantizing(self, dim: int, vocab_size: int) -> list[Source]:
        """The kernels that write copies in e4m3, of which `all` lists the others."""
        norm = [self.rms_norm(dim, fp8=True)] if dim % TURNED_MULTIPLE == 0 else []
        return [*norm, self.cross_entropy(vocab_size, fp8=True)]

    def fp8(self) -> Source:
        sizes = {"HISTORY": HISTORY, "HEADROOM": HEADROOM, "TILE": QUANTIZED_TILE}
        return self.source("fp8", THREADS=ELEMENTWISE_THREADS, **sizes)

    def adamw(self) -> Source:
        sizes = {"RATE_BLOCK": RATE_BLOCK, "STEP_SCALARS": STEP_SCALARS}
        threads = {"THREADS": ELEMENTWISE_THREADS, "NORM_THREADS": NORM_THREADS}
        return self.source("adamw", **threads, **sizes)

    def muon(self) -> Source:
        sizes = {"PARTS": MUON_PARTS, "STEP_SCALARS": STEP_SCALARS}
        return self.source("muon", THREADS=ELEMENTWISE_THREADS, **sizes)

    def cache(self, wide: int) -> Source:
        return self.source("cache", THREADS=ELEMENTWISE_THREADS, WIDE=wide)

    def drafts(self, tokens: int) -> Source:
        looked_for = {"LEAST": LEAST_REPEATED, "MOST": MOST_REPEATED}
        return self.source("drafts", THREADS=ELEMENTWISE_THREADS, TOKENS=tokens, **looked_for)

    def losses(self) -> Source:
        return self.source("losses", THREADS=SUM_THREADS)

    def preference(self) -> Source:
        return self.source("preference", THREADS=PAIR_THREADS)

    def decode_layer(self, sizes: DecodingSizes, rows: int, tokens: int = 1) -> Source:
        """`rows`: the most that there may be, a power of two; `tokens` of them are a sequence's."""
        s = sizes
        return self.source(
            "decode_layer",
            MOSTLY_CACHE,
            DIM=s.dim,
            FFN=s.ffn,
            HEADS=s.heads,
            KV_HEADS=s.kv_heads,
            HEAD_SIZE=s.head_size,
            KEY=s.key,
            VALUE=s.value,
            UP=s.up,
            PARTS=parts_of(rows),
            TOKENS=tokens,
            QK_NORM=int(s.qk_norm),
            GPT2=int(s.gpt2),
            **self.few_rows(rows),
        )

    def decode_head(self, dim: int, rows: int, *, gpt2: bool = False) -> Source:
        constants = {"DIM": dim, "GPT2": int(gpt2), **self.few_rows(rows)}
        return self.source("decode_head", MOSTLY_CACHE, **constants)

    def few_rows(self, rows: int) -> dict[str, int]:
        """The constants of few_rows.cuh."""
        pairs = row_pairs(rows, self.itemsize)
        return {"ROWS": rows, "PAIRS": pairs, "WARPS": FEW_ROWS_WARPS}

    def many_rows_layer(self, sizes: DecodingSizes, rows: int, tokens: int = 1) -> Source:
        """`rows`: the most that there may be, from 8 to 64; `tokens` of them are a sequence's."""
        s = sizes
        constants = {"DIM": s.dim, "FFN": s.ffn, "HEADS": s.heads, "KV_HEADS": s.kv_heads}
        constants |= {"HEAD_SIZE": s.head_size, "KEY": s.key, "VALUE": s.value, "UP": s.up}
        for name, product in many_rows_products(s, rows).items():
            constants |= product.constants(name)
        constants |= many_rows_attention(s, rows).constants | {"TOKENS": tokens}
        constants |= {"QK_NORM": int(s.qk_norm), "GPT2": int(s.gpt2)}
        return self.many_rows("many_rows_layer", rows, **constants)

    def many_rows_head(self, dim: int, vocab_size: int, rows: int, *, gpt2: bool = False) -> Source:
        product = many_rows_head(dim, vocab_size, rows, gpt2=gpt2).constants("head")
        return self.many_rows("many_rows_head", rows, DIM=dim, GPT2=int(gpt2), **product)

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def many_rows(self, name: str, rows: int, **constants: int) -> Source:
        sizes = {"ROWS": rows, "WARPS": MANY_ROWS_WARPS, **constants}
        every = (*self.common, *sizes.items())
        return Source(name, every, exact=False, sm_90a=True, carveout=MUCH_SHARED)

    def decode_attention(
        self, sizes: DecodingSizes, tokens: int = 1, carveout: int | None = None
    ) -> Source:
        """`carveout`: of the kernels before and behind it."""
        s = sizes
        return self.source(
            "decode_attention",
            carveout,
            THREADS=ATTEND_THREADS,
            HEADS=s.heads,
            KV_HEADS=s.kv_heads,
            HEAD_SIZE=s.head_size,
            KEY=s.key,
            VALUE=s.value,
            TOGETHER=s.heads_together,
            TOKENS=tokens,
            QK_NORM=int(s.qk_norm),
            GPT2=int(s.gpt2),
        )

    def drafted(self, sizes: DecodingSizes, tokens: int) -> list[Source]:
        """The kernels of a layer for one sequence with that many new tokens."""
        attention = self.decode_attention(sizes, tokens)
        return [self.decode_layer(sizes, tokens, tokens), attention]

    def sampling(self, vocab_size: int, *, clusters: bool = False) -> Source:
        return self.source(
            "sampling",
            THREADS=choosing_threads(vocab_size),
            VOCAB=vocab_size,
            BINS=BINS,
            SHARED_BYTES=choosing_bytes(vocab_size),
            CANDIDATES=CANDIDATES if vocab_size > SORTED_TOKENS else 0,
            CLUSTER=choosing_blocks(vocab_size, clusters=clusters),
        )

    def all(
        self, dim: int, heads: int, kv_heads: int, head_size: int, ffn: int, vocab_size: int
    ) -> list[Source]:
        """Every source for a model of these sizes."""
        query, key = heads * head_size, kv_heads * head_size
        decoding = DecodingSizes(dim, ffn, heads, kv_heads, head_size, query, query + key, ffn)
        row_counts = [2**power for power in range(most_rows(decoding, self.itemsize).bit_length())]
        both = decoding, replace(decoding, qk_norm=True)
        return [
            self.rms_norm(dim),
            self.embedding(dim),
            self.rope(head_size),
            self.head_norm(head_size),
            self.cache(key),
            self.swiglu(ffn),
            *(self.decode_layer(decoding, rows) for rows in row_counts),
            *(self.decode_head(dim, rows) for rows in row_counts),
            self.decode_attention(decoding),
            *(source for rows in row_counts[2:3] for s in both for source in self.drafted(s, rows)),
            self.drafts(4),
            self.sampling(vocab_size),
            self.cross_entropy(vocab_size),
            *([] if self.exact else self.quantizing(dim, vocab_size)),
            self.fp8(),
            self.losses(),
            self.preference(),
            self.adamw(),
            self.muon(),
        ]
