"""How the kernels of a decoded token are cut up, by the sizes of a model and the number of rows.

Plain values, usable without a device: blocks, parts and shared memory.
"""

import functools
from dataclasses import dataclass

from nanoeuler.backend.cuda.kernels import WARP, blocks

STATIC_SHARED = 48 * 1024
"""Bytes of static shared memory that a block may take."""

BLOCK_SHARED = 227 * 1024
"""Bytes of shared memory that a block of a chip with clusters may take."""

CHIP_BLOCKS = 132
"""Blocks that use all multiprocessors of the largest such chip."""

BINS = 4096
"""Bins into which the tokens that may be chosen are sorted first."""

SORTED_TOKENS = 8192
"""Largest vocabulary whose sort fits into the 99 KB of shared memory that every card has."""

CANDIDATES = 1024
"""Tokens of a bin that are sorted at once in a larger vocabulary."""

MOST_HELD = 128 * 1024
"""Bytes of logits that a block of a cluster keeps in shared memory, which has 227 KB there."""

FEW_ROWS = 4
"""Rows up to which few_rows.cuh is as fast as matrix units, and of a pass over drafts."""

FUSED_TOKENS = 8
"""Most new tokens of a sequence that the kernels of a layer take."""

FEW_ROWS_WARPS = 8
"""Warps of a block of few_rows.cuh."""

MANY_ROWS_WARPS = 8
"""Warps of a block of many_rows.cuh."""

WGMMA_ROWS = 64
"""Rows that wgmma takes of its left factor."""

MOST_MANY_ROWS = WGMMA_ROWS
"""Most rows of many_rows.cuh."""

PANEL = 64
"""Inputs of a row that lie together in shared memory there."""

CLUSTER_BLOCKS, MOST_CLUSTER_BLOCKS = 4, 8
"""Blocks that share the inputs of a product of many_rows.cuh: as many as are worth their exchange
of sums, and as many as a chip promises to run together."""

X_BYTES = 64 * 1024
"""Shared memory for the rows of x there: with it, blocks of two kernels fit side by side."""

ATTEND_THREADS = 256
"""Threads of a block of decode_attention.cu."""

MOSTLY_CACHE, MUCH_SHARED = 0, 44
"""Carve-outs: per cent of a multiprocessor's memory that blocks share. 0: of kernels for few rows,
whose weights come through the cache while they wait for the kernel before. 44: of most of those for
more rows, so that blocks of several kernels fit side by side. Kernels in a row have the same one:
a multiprocessor must be idle to change it."""

BLOCK_OVERHEAD, ATTEND_STATIC = 1024, 2048
"""Bytes of shared memory: those that the chip takes for each block, and those of attention of many
rows beside its tiles (at most, for up to four tokens of a sequence and heads of 64)."""


def choosing_threads(vocab_size: int) -> int:
    """Threads of a block that chooses a token and keeps the vocabulary's logits in registers."""
    return next((threads for threads in (128, 256, 512) if vocab_size <= 4 * threads), 1024)


def choosing_blocks(vocab_size: int, *, clusters: bool) -> int:
    """Blocks that share a row's tokens, on a chip with clusters or without."""
    return MOST_CLUSTER_BLOCKS if clusters and vocab_size > SORTED_TOKENS else 1


def held_bytes(vocab_size: int, *, clusters: bool) -> int:
    """Shared memory in which such a block keeps its share of a large vocabulary's logits; 0 where
    they do not fit."""
    threads = choosing_threads(vocab_size)
    tokens = blocks(vocab_size, choosing_blocks(vocab_size, clusters=clusters) * threads) * threads
    return 4 * tokens if clusters and 4 * tokens <= MOST_HELD else 0


def choosing_bytes(vocab_size: int, *, clusters: bool) -> int:
    """Shared memory in which such a block sorts its tokens, or counts and sorts those of a bin."""
    if vocab_size > SORTED_TOKENS:
        searched = 12 * (BINS + choosing_threads(vocab_size)) + 16 * CANDIDATES
        return searched + held_bytes(vocab_size, clusters=clusters)
    return 8 * (vocab_size + vocab_size // 16) + 4 * (BINS + 4)


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
    def constants(self) -> dict[str, int]:
        """The sizes as kernels know them."""
        return {name.upper(): int(value) for name, value in vars(self).items()}

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


def row_pairs(rows: int, itemsize: int) -> int:
    """Pairs of rows of a wide weight that a warp takes: more meet a row of x at once, fewer leave
    room in its registers."""
    return 2 if rows > 1 and itemsize == 2 else 1


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
        """Warps of a block: few for as many blocks as heads, but enough for its new keys."""
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
        """Blocks of a cluster: enough for the chip, with nearly equal shares, and so many that x
        fits."""
        clusters, panels = blocks(self.pairs, self.tiles), blocks(self.inputs, PANEL)
        # x takes longer of more rows, or where each block reads whole ones as a GPT-2's do
        most = CHIP_BLOCKS if self.gpt2 or self.rows == MOST_MANY_ROWS else CHIP_BLOCKS * 5 // 4
        splits = range(1, CLUSTER_BLOCKS + 1)
        equal = [n for n in splits if n * blocks(panels, n) <= 1.1 * panels]
        filling = max((n for n in equal if n * clusters <= most), default=1)
        return max(filling, blocks(2 * self.inputs * self.rows, X_BYTES))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, see many_rows.cuh."""
        depth = blocks(blocks(self.inputs, PANEL), self.split) * PANEL
        columns = 32 * self.tiles
        sum_row = 4 * (columns + 4)
        factors = 2 * depth * (self.rows + columns)
        sums = MANY_ROWS_WARPS // 4 * self.rows * sum_row
        received = (self.split - 1) * blocks(self.rows, self.split) * sum_row
        norm = 4 * depth * (2 if self.gpt2 else 1)
        written = max(factors, sums) + received + 4 * self.split * self.rows + norm
        outputs_left = self.rows < WGMMA_ROWS
        left, begin = (columns, 2 * depth * self.rows) if outputs_left else (self.rows, 0)
        read = begin + 2 * PANEL * (depth // PANEL - 1) * left + 2 * PANEL * WGMMA_ROWS
        return max(written, read)

    @property
    def fits(self) -> bool:
        return self.split <= MOST_CLUSTER_BLOCKS and self.shared_bytes <= BLOCK_SHARED

    @property
    def blocks(self) -> int:
        return blocks(self.pairs, self.tiles) * self.split

    @property
    def is_huge(self) -> bool:
        """Are there more blocks than a chip runs at once? Then x is read too often."""
        return self.blocks > 2 * CHIP_BLOCKS

    def constants(self, name: str) -> dict[str, int]:
        sizes = {"SPLIT": self.split, "TILES": self.tiles, "BYTES": self.shared_bytes}
        return {f"{name.upper()}_{key}": value for key, value in sizes.items()}


@functools.cache
def many_rows_attention(sizes: DecodingSizes, rows: int) -> ManyRowsAttention:
    """The attention of many_rows_layer.cu."""
    return ManyRowsAttention(sizes.head_size, sizes.heads_together, rows)


@functools.cache
def many_rows_products(sizes: DecodingSizes, rows: int) -> dict[str, ManyRowsProduct]:
    """The products of many_rows_layer.cu by their kernels."""
    s = sizes
    shapes = {
        "project": (s.dim, (s.heads + 2 * s.kv_heads) * s.head_size // 32),
        "output": (s.width, blocks(s.dim, 32)),
        "down": (s.ffn, blocks(s.dim, 32)),
    }
    kernel, columns = ("up", 32) if s.gpt2 else ("gate_up", 16)
    shapes[kernel] = s.dim, blocks(s.ffn, columns)
    return {name: ManyRowsProduct(*shape, rows, s.gpt2) for name, shape in shapes.items()}


@functools.cache
def many_rows_carveout(sizes: DecodingSizes, rows: int) -> int:
    """The carve-out of many_rows_layer.cu: the first with room for what matters most, as measured.

    Of most rows, for a block of attention beside one of the product in front, so that it fetches
    keys ahead; of fewer, for the largest block. `MUCH_SHARED` if there is none.
    """
    products, attend = many_rows_products(sizes, rows), many_rows_attention(sizes, rows)
    if rows == MOST_MANY_ROWS:
        both = products["project"].shared_bytes + attend.shared_bytes
        needed, carveouts = both + ATTEND_STATIC + 2 * BLOCK_OVERHEAD, [MUCH_SHARED, 58]
    else:
        largest = max(product.shared_bytes for product in products.values())
        needed, carveouts = largest + BLOCK_OVERHEAD, [MUCH_SHARED, 72, 100]
    whole = BLOCK_SHARED + BLOCK_OVERHEAD
    return next((each for each in carveouts if needed <= each * whole // 100), MUCH_SHARED)


@functools.cache
def many_rows_fit(sizes: DecodingSizes, rows: int) -> bool:
    """Can many_rows_layer.cu take a layer of these sizes?"""
    return all(product.fits for product in many_rows_products(sizes, rows).values())


@functools.cache
def many_rows_head(dim: int, vocab_size: int, rows: int, *, gpt2: bool = False) -> ManyRowsProduct:
    """The product of many_rows_head.cu."""
    return ManyRowsProduct(dim, blocks(vocab_size, 32), rows, gpt2)


PROMPT_BOX = 64
"""Rows and columns of a box that prompt_layer.cu copies, and columns of x that go together."""


@dataclass(frozen=True)
class PromptProduct:
    """How prompt_layer.cu takes a product: tiles of 64 · `groups` tokens and `columns` results, of
    which `stages` of 64 inputs are on their way at once."""

    groups: int
    columns: int
    stages: int

    @property
    def tokens(self) -> int:
        return PROMPT_BOX * self.groups

    @property
    def threads(self) -> int:
        return 4 * WARP * self.groups + WARP

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: boxes of both factors, and two barriers for each stage."""
        boxes = self.groups + self.columns // PROMPT_BOX
        return self.stages * (boxes * PROMPT_BOX * PROMPT_BOX * 2 + 16)

    def constants(self, kernel: str) -> dict[str, int]:
        sizes = {"STAGES": self.stages, "BYTES": self.shared_bytes}
        return {f"{kernel.upper()}_{key}": value for key, value in sizes.items()}


def prompt_products(sizes: DecodingSizes) -> dict[str, PromptProduct]:
    """By kernel."""
    return {
        "project": PromptProduct(2, sizes.head_size, 6),
        "output": PromptProduct(1, PROMPT_BOX, 8),
        "gate_up": PromptProduct(2, 2 * PROMPT_BOX, 4),
        "down": PromptProduct(1, PROMPT_BOX, 8),
    }
