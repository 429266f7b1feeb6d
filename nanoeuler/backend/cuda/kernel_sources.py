"""The kernels' sources and the constants compiled into them: plain values, usable without a device.

A source is compiled once for each set of constants: row sizes, so that a row fits into registers
and divisions are by constants; element types; block and tile sizes. Every number that both the
launching code and a kernel need is stated here, in decoding_sizes.py or beside the launch, and
reaches the kernel as a -D definition: the kernel has no value of its own that could differ. The
header comment of each file says what its constants mean.
"""

import functools
from dataclasses import replace

from nanoeuler.backend.capabilities import LEAST_REPEATED, MOST_REPEATED
from nanoeuler.backend.cuda.decoding_sizes import (
    ATTEND_THREADS,
    BINS,
    CANDIDATES,
    FEW_ROWS_WARPS,
    MANY_ROWS_WARPS,
    MOSTLY_CACHE,
    MUCH_SHARED,
    SORTED_TOKENS,
    DecodingSizes,
    choosing_blocks,
    choosing_bytes,
    choosing_threads,
    held_bytes,
    many_rows_attention,
    many_rows_carveout,
    many_rows_head,
    many_rows_products,
    most_rows,
    parts_of,
    prompt_products,
    row_pairs,
)
from nanoeuler.backend.cuda.kernels import Source

TYPES = {"float32": "float", "bfloat16": "bfloat16"}

EXACT = ("update", "fp8", "losses", "preference", "sampling", "score", "to_host")
"""Kernels whose arithmetic is exact in every precision of the engine."""

WITHOUT = {
    "ACTIVATION": (
        *("update", "drafts", "lanes", "losses", "preference", "sampling", "score", "to_host"),
    ),
    "WIDTH": ("to_host",),
    "RESIDUAL": (
        *("update", "cache", "cross_entropy", "decode_attention", "fp8", "lanes", "losses"),
        *("muon", "plain_attention", "preference", "rope", "sampling", "score", "to_host"),
    ),
}
"""Kernels that this is not compiled into, so that precisions share their machine code."""

WIDTH = 8
"""Elements of one memory access: 16 bytes of bfloat16, twice 16 of float32."""

ELEMENTWISE_THREADS = 256
"""Threads of a block of an elementwise kernel; each thread takes `WIDTH` elements."""

NORM_THREADS = 512
"""Threads of a block that sums squares of gradients."""

KEYS_AHEAD = 4
"""Rows that a warp of plain_attention.cu reads together."""

HEAD_NORM_BLOCKS = 8
"""Blocks of a multiprocessor in the backward pass of the norms of heads."""

RATE_BLOCK = 128
"""Elements that share a rate of AdamW: tensors start on multiples of it."""

STEP_SCALARS = 4
"""Scalars of an optimizer step that stay on the device between two kernels of update.cu."""

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


HISTORY, HEADROOM = 16, 2
"""Steps whose magnitudes a scale of fp8 is made from, and by how much the next may exceed them."""

TRANSPOSED_MULTIPLE = 128
"""Columns of a copy that a block turns are a multiple of it."""

QUANTIZED_TILE = 64
"""Rows and columns of a weight that a block transposes at a time."""


def row_warps(dim: int) -> int:
    """Warps of a block that keeps a row of sums for each warp in shared memory, 48 KB at most."""
    if 8 * dim <= 6144:
        return 8
    return next((warps for warps in (4, 2) if warps * dim <= 10_000), 1)


def row_blocks(dim: int) -> int:
    """Blocks of `row_warps` warps on a multiprocessor, where each warp keeps three rows in
    registers: of wider rows, as many as do not spill."""
    return max(1, (16 if dim <= 768 else 12 if dim <= 1024 else 8) // row_warps(dim))


def transposed_tokens(dim: int) -> int:
    """Tokens whose e4m3 copies a block turns together: as many as leave room for a second block."""
    return 64 if dim <= 1024 else 32


def spread_shift(vocab_size: int) -> int:
    """Vocabulary entries are dealt to 2^shift blocks: at least 256 blocks of `BLOCK_ENTRIES`."""
    return max(8, (-(-vocab_size // BLOCK_ENTRIES) - 1).bit_length())


def is_wide(head_size: int) -> bool:
    """Does a norm of a head take a block, as no power of two of a warp's threads holds it?"""
    return 32 % (head_size // WIDTH) != 0


def loss_threads(vocab_size: int) -> int:
    """Threads of a block that takes a row of logits."""
    return 256 if vocab_size <= HELD_LOGITS else 512


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
        transposed = {"FP8": int(fp8), "TOKENS": transposed_tokens(dim)}
        return self.source("rms_norm", ADDING_WARPS=ADDING_WARPS, **sizes, **transposed)

    def layer_norm_blocks(self, dim: int) -> int:
        """Blocks of a multiprocessor in the backward pass of LayerNorm: more would spill."""
        return max(1, row_blocks(dim) - (self.exact or dim > 768))

    def layer_norm(self, dim: int, *, fp8: bool = False) -> Source:
        sizes = {"DIM": dim, "WARPS": row_warps(dim), "BLOCKS": self.layer_norm_blocks(dim)}
        transposed = {"FP8": int(fp8), "TOKENS": transposed_tokens(dim)}
        return self.source("layer_norm", ADDING_WARPS=ADDING_WARPS, **sizes, **transposed)

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def elementwise(self, name: str, ffn: int) -> Source:
        """The file of an op on rows of so many activations, a thread for `WIDTH` of them."""
        common = [pair for pair in self.common if pair[0] != "RESIDUAL"]
        constants = *common, ("THREADS", ELEMENTWISE_THREADS), ("FFN", ffn)
        return Source(name, constants, self.exact)

    def gpt2(self, dim: int, heads: int, ffn: int) -> list[Source]:
        """The kernels that a GPT-2 of these sizes has beside those of `all`."""
        copying = not self.exact and dim % TRANSPOSED_MULTIPLE == 0
        starts = dim, 2 * dim, 0
        decoding = DecodingSizes(dim, ffn, heads, heads, dim // heads, *starts, gpt2=True)
        row_counts = [rows for rows in (1, 4) if rows <= most_rows(decoding, self.itemsize)]
        return [
            *(self.layer_norm(dim, fp8=fp8) for fp8 in (False, True)[: 1 + copying]),
            *(self.elementwise("gelu", width) for width in (dim, 3 * dim, ffn)),
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
        name = "wide_head_norm" if is_wide(head_size) else "head_norm"
        return self.source(name, THREADS=ELEMENTWISE_THREADS, HEAD_SIZE=head_size)

    def plain_attention(self, head_size: int) -> Source:
        constants = {"HEAD_SIZE": head_size, "AHEAD": KEYS_AHEAD}
        return self.source("plain_attention", THREADS=ELEMENTWISE_THREADS, **constants)

    def cross_entropy(self, vocab_size: int, *, fp8: bool = False) -> Source:
        sizes = {"VOCAB": vocab_size, "HELD": int(vocab_size <= HELD_LOGITS)}
        threads = loss_threads(vocab_size)
        return self.source("cross_entropy", THREADS=threads, FP8=int(fp8), **sizes)

    def quantizing(self, dim: int, vocab_size: int) -> list[Source]:
        """The kernels that write copies in e4m3, of which `all` lists the others."""
        norm = [self.rms_norm(dim, fp8=True)] if dim % TRANSPOSED_MULTIPLE == 0 else []
        return [*norm, self.cross_entropy(vocab_size, fp8=True)]

    def fp8(self) -> Source:
        sizes = {"HISTORY": HISTORY, "HEADROOM": HEADROOM, "TILE": QUANTIZED_TILE}
        return self.source("fp8", THREADS=ELEMENTWISE_THREADS, **sizes)

    def update(self) -> Source:
        sizes = {"RATE_BLOCK": RATE_BLOCK, "STEP_SCALARS": STEP_SCALARS}
        threads = {"THREADS": ELEMENTWISE_THREADS, "NORM_THREADS": NORM_THREADS}
        return self.source("update", **threads, **sizes)

    def lanes(self, lanes: int) -> Source:
        threads = {"THREADS": ELEMENTWISE_THREADS, "NORM_THREADS": NORM_THREADS}
        return self.source("lanes", LANES=lanes, **threads)

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

    def to_host(self) -> Source:
        return self.source("to_host", THREADS=ELEMENTWISE_THREADS)

    def preference(self) -> Source:
        return self.source("preference", THREADS=PAIR_THREADS)

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def decode_layer(self, sizes: DecodingSizes, rows: int, tokens: int = 1) -> Source:
        """`rows`: the most that there may be, a power of two; `tokens` of them are a sequence's."""
        own = {"PARTS": parts_of(rows), "TOKENS": tokens, **self.few_rows(rows)}
        return self.source("decode_layer", MOSTLY_CACHE, **sizes.constants, **own)

    def decode_head(self, dim: int, rows: int, *, gpt2: bool = False) -> Source:
        constants = {"DIM": dim, "GPT2": int(gpt2), **self.few_rows(rows)}
        return self.source("decode_head", MOSTLY_CACHE, **constants)

    def few_rows(self, rows: int) -> dict[str, int]:
        """The constants of few_rows.cuh."""
        pairs = row_pairs(rows, self.itemsize)
        return {"ROWS": rows, "PAIRS": pairs, "WARPS": FEW_ROWS_WARPS}

    def many_rows_layer(self, sizes: DecodingSizes, rows: int, tokens: int = 1) -> Source:
        """`rows`: the most that there may be, from 8 to 64; `tokens` of them are a sequence's."""
        constants = sizes.constants | many_rows_attention(sizes, rows).constants
        for name, product in many_rows_products(sizes, rows).items():
            constants |= product.constants(name)
        carveout = many_rows_carveout(sizes, rows)
        return self.many_rows("many_rows_layer", rows, carveout, TOKENS=tokens, **constants)

    def many_rows_head(self, dim: int, vocab_size: int, rows: int, *, gpt2: bool = False) -> Source:
        product = many_rows_head(dim, vocab_size, rows, gpt2=gpt2).constants("head")
        kind = {"DIM": dim, "GPT2": int(gpt2)}
        return self.many_rows("many_rows_head", rows, MUCH_SHARED, **kind, **product)

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def prompt_layer(self, sizes: DecodingSizes) -> Source:
        constants = sizes.constants | {"ROWS_IN_REGISTERS": 0}
        del constants["GPT2"]
        for kernel, product in prompt_products(sizes).items():
            constants |= product.constants(kernel)
        residual = next(pair for pair in self.common if pair[0] == "RESIDUAL")
        every = (residual, ("UNIT", "WGMMA"), *constants.items())
        return Source("prompt_layer", every, exact=False, sm_90a=True)

    @functools.cache  # noqa: B019 (an engine's own, and few)
    def many_rows(self, name: str, rows: int, carveout: int, **constants: int) -> Source:
        sizes = {"ROWS": rows, "WARPS": MANY_ROWS_WARPS, **constants}
        every = (*self.common, *sizes.items())
        return Source(name, every, exact=False, sm_90a=True, carveout=carveout)

    @functools.cache  # noqa: B019 (an engine's own, and few)
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

    def sampling(self, vocab_size: int, *, clusters: bool = False, masked: bool = False) -> Source:
        return self.source(
            "sampling",
            THREADS=choosing_threads(vocab_size),
            VOCAB=vocab_size,
            BINS=BINS,
            SHARED_BYTES=choosing_bytes(vocab_size, clusters=clusters),
            HELD=int(held_bytes(vocab_size, clusters=clusters) > 0),
            CANDIDATES=CANDIDATES if vocab_size > SORTED_TOKENS else 0,
            CLUSTER=choosing_blocks(vocab_size, clusters=clusters),
            MASKED=int(masked),
        )

    def score(self, vocab_size: int) -> Source:
        return self.source("score", THREADS=loss_threads(vocab_size), VOCAB=vocab_size)

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
            self.cache(WIDTH),
            self.elementwise("swiglu", ffn),
            *(self.decode_layer(decoding, rows) for rows in row_counts),
            *(self.decode_head(dim, rows) for rows in row_counts),
            self.decode_attention(decoding),
            *(source for rows in row_counts[2:3] for s in both for source in self.drafted(s, rows)),
            self.drafts(4),
            self.sampling(vocab_size),
            self.score(vocab_size),
            self.cross_entropy(vocab_size),
            *([] if self.exact else self.quantizing(dim, vocab_size)),
            self.fp8(),
            self.losses(),
            self.to_host(),
            self.preference(),
            self.update(),
            self.muon(),
            self.lanes(8),
        ]
