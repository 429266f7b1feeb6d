"""Causal grouped-query attention on CUDA: the form of attention.cu that a device and a precision
take, its launches, its scratch memory.

The maths is in attention.cu, the products of tiles in matrix_units.cuh, and the specification in
`nanoeuler.backend.reference`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.backend.cuda.fp8 import NOT_QUANTIZED, Quantized
from nanoeuler.backend.cuda.kernels import WARP, Argument, Kernels, PreparedLaunch, Source, blocks
from nanoeuler.backend.records import AttentionArrays

if TYPE_CHECKING:
    from cupy import ndarray as Array

UNITS = ("ffma", "tf32", "bf16", "wgmma")
UNIT_OF = {"fp32": "ffma", "tf32": "tf32", "bf16": "bf16"}
HEAD_SIZES = (32, 64, 128)
SHARED_LIMIT = 99 * 1024  # bytes per block that every card from compute capability 8.6 on has
CACHE = slice(4, 9)  # of the arguments of the forward pass: keys with their strides, and values
DECODE_QUERIES = 8  # up to this many new tokens per row, a block per token beats tiles of them
DECODE_WARPS = 16  # of such a block


@dataclass(frozen=True)
class Tiles:
    """The sizes that attention.cu is compiled for; its header says what each is."""

    heads: int
    positions: int
    keys: int
    gradient_heads: int
    gradient_positions: int
    gradient_keys: int
    held_keys: int
    streamed_queries: int
    forward_blocks: int = 1
    dquery_blocks: int = 1
    dkey_blocks: int = 1
    rows_in_registers: int = 1
    key_groups: int = 1

    @property
    def queries(self) -> int:
        return self.heads * self.positions

    @property
    def gradient_queries(self) -> int:
        return self.gradient_heads * self.gradient_positions

    @property
    def threads(self) -> dict[str, int]:
        """Threads of a block of each kernel: a warp owns 16 rows."""
        return {
            "attention_forward": 2 * self.queries * self.key_groups,
            "attention_dquery": 2 * self.gradient_queries,
            "attention_dkey": 2 * self.held_keys,
            "attention_decode": DECODE_WARPS * WARP,
        }

    def shared_bytes(self, row_bytes: int) -> dict[str, int]:
        """Dynamic shared memory of a block of each kernel: the tiles that it holds, and two tiles
        of each tensor that it streams."""
        forward = self.queries + 4 * self.keys * self.key_groups
        dquery = 2 * self.gradient_queries + 4 * self.gradient_keys
        dkey = 2 * self.held_keys + 4 * self.streamed_queries
        statistics = 6 * self.streamed_queries * 4  # two float32 and a start per query, two tiles
        return {
            "attention_forward": forward * row_bytes,
            "attention_dquery": dquery * row_bytes,
            "attention_dkey": dkey * row_bytes + statistics,
        }


def itemsize(unit: str) -> int:
    """Bytes of an element in shared memory."""
    return 4 if unit in ("ffma", "tf32") else 2


def tiles_for(unit: str, head_size: int, ratio: int) -> Tiles:
    """Sizes for `ratio` query heads per key/value head."""
    row_bytes = head_size * itemsize(unit)
    if unit == "wgmma":
        # single groups of four warps, each at its own pace, did better than several at a barrier
        if head_size == 128:
            return Tiles(1, 64, 64, 1, 64, 32, 64, 32, 2, 2, 2, rows_in_registers=0)
        return Tiles(1, 64, 64, 1, 64, 64, 64, 64, 4, 4, 3, rows_in_registers=0)
    if unit == "bf16" and head_size == 64:
        return Tiles(1, 64, 64, 1, 64, 64, 64, 64, 4, 3, 2)
    rows = 128 if row_bytes <= 128 else 64
    heads = max(h for h in (1, 2, 4) if ratio % h == 0)
    # plain arithmetic needs more registers, and time to compile, the wider a tile is
    widest = 32 if unit == "ffma" else 64
    keys = min(widest, {64: 64, 128: 64, 256: 64, 512: 32}[row_bytes])
    gradient_keys = min(widest, {64: 64, 128: 64, 256: 32, 512: 16}[row_bytes])
    return Tiles(
        heads,
        rows // heads,
        keys,
        heads,
        rows // heads,
        gradient_keys,
        held_keys=rows,
        streamed_queries=gradient_keys if head_size < 128 else 16,
        rows_in_registers=int(unit == "bf16" and head_size < 128),
    )


def prompt_tiles(head_size: int) -> Tiles:
    """Sizes for prompts on Hopper, which are few blocks: groups of warps share a block's keys."""
    groups = 4 if head_size <= 64 else 2  # what shared memory holds
    return replace(tiles_for("wgmma", head_size, 1), forward_blocks=1, key_groups=groups)


def source(
    unit: str, head_size: int, ratio: int, tiles: Tiles | None = None, *, fp8: bool = False
) -> Source:
    """The program for `ratio` query heads per key/value head."""
    tiles = tiles or tiles_for(unit, head_size, ratio)
    constants: dict[str, str | int] = {
        "UNIT": unit.upper(),
        "HEAD_SIZE": head_size,
        "FP8": int(fp8),
    }
    constants |= {name.upper(): value for name, value in asdict(tiles).items()}
    sizes = {"THREADS": tiles.threads, "BYTES": tiles.shared_bytes(head_size * itemsize(unit))}
    for name, by_kernel in sizes.items():
        for kernel, size in by_kernel.items():
            constants[f"{kernel.removeprefix('attention_').upper()}_{name}"] = size
    return Source("attention", tuple(constants.items()), exact=True, sm_90a=unit == "wgmma")


class Attention:
    """Attention of one shape of heads.

    Arrays are (B, T, H, E) views whose last dimension is contiguous and whose rows start on
    16-byte borders. No call allocates or reads device memory on the host, so each can be captured
    in a graph.
    """

    def __init__(
        self,
        kernels: Kernels,
        heads: int,
        kv_heads: int,
        head_size: int,
        precision: str,
        unit: str | None = None,
        tiles: Tiles | None = None,
    ):
        """`precision`: fp32 (exact float32 products), tf32 or bf16. `unit` overrides what
        multiplies tiles, to run on this device what another device would."""
        if head_size not in HEAD_SIZES:
            raise ValueError(
                f"attention on CUDA: head size {head_size} is not one of"
                f" {', '.join(map(str, HEAD_SIZES))}"
            )
        if heads % kv_heads:
            raise ValueError(
                f"attention: {heads} query heads are no multiple of {kv_heads} key/value heads"
            )
        wgmma = precision == "bf16" and kernels.hopper
        self.kernels = kernels
        self.unit = unit or ("wgmma" if wgmma else UNIT_OF[precision])
        self.heads, self.kv_heads = heads, kv_heads
        self.shape = heads, kv_heads, 1 / math.sqrt(head_size)
        self.tiles = tiles or tiles_for(self.unit, head_size, heads // kv_heads)
        self.sources = [
            source(self.unit, head_size, heads // kv_heads, self.tiles, fp8=fp8)
            for fp8 in (False, True)
        ]
        self.threads = self.tiles.threads
        self.shared_bytes = self.tiles.shared_bytes(head_size * itemsize(self.unit))

    def workspace_bytes(self, batch: int, length: int) -> int:
        """Scratch memory of `backward`: two float32 per query and head."""
        return batch * self.heads * length * 2 * 4

    def forward(
        self,
        heads: AttentionArrays,
        starts: Array,
        offset: Array,
        lse: Array,
        copy: Quantized = NOT_QUANTIZED,
    ) -> None:
        """Write `heads.out` (B, T, H, E) and `lse` (B, H, T) float32.

        There may be more keys than offset + T, the free slots of a cache: they are not read.
        `starts` (B, T) int32 never falls along a row. `offset` is (B) int32. Queries whose position
        offset + i is S or more, the padding of short rows, get results that mean nothing. B · H <
        65,536. `copy` is of `heads.out`.
        """
        B, T = heads.query.shape[:2]
        arguments = self.forward_arguments(heads, starts, offset, lse)
        if T <= DECODE_QUERIES:
            self.launch("attention_decode", (self.heads, T, B), arguments)
        else:
            fp8 = copy.values is not None
            self.launch("attention_forward", self.grid(B, T), (*arguments, *copy), fp8=fp8)

    def forward_arguments(
        self, heads: AttentionArrays, starts: Array, offset: Array, lse: Array
    ) -> tuple[Argument, ...]:
        query, key, value, out, _ = heads
        T, S = query.shape[1], key.shape[1]
        inputs = *view(query), *view(key), *view(value), starts, offset
        return *inputs, *view(out), lse, T, S, *self.shape

    def grid(self, batch: int, length: int) -> tuple[int, int]:
        """Blocks of the forward pass."""
        tiles = self.tiles
        return blocks(length, tiles.positions), batch * self.heads // tiles.heads

    def prepare_forward(
        self,
        heads: AttentionArrays,
        starts: Array,
        offset: Array,
        lse: Array,
        kept: PreparedLaunch | None = None,
    ) -> PreparedLaunch:
        """`forward` for keys and values of many layers, early, of more than `DECODE_QUERIES`
        queries: the arguments `CACHE` change. `kept` is one of other queries, to be used again."""
        arguments = self.forward_arguments(heads, starts, offset, lse)
        kernel, grid = "attention_forward", self.grid(*heads.query.shape[:2])
        if kept:
            kept.refill(grid, *arguments, *NOT_QUANTIZED)
            return kept
        return self.kernels.prepare(
            self.sources[0],
            kernel,
            grid,
            self.threads[kernel],
            *arguments,
            *NOT_QUANTIZED,
            shared=self.shared_bytes[kernel],
            changing=CACHE,
        )

    def backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts: Array,
        lse: Array,
        workspace: Array,
        rotation: tuple[Array, Array, Array] | None = None,
        copies: tuple[Quantized, Quantized, Quantized] = (NOT_QUANTIZED,) * 3,
    ) -> None:
        """Write the gradients of query, key and value, from that of out.

        `workspace`: `workspace_bytes` of memory, on an 8-byte border. `rotation`: positions (B, T)
        int32, cosines and sines; with them the gradients are those of queries and keys before
        they were rotated. `copies` are those of the gradients of query, key and value.
        """
        B, T = saved.query.shape[:2]
        if workspace.nbytes < self.workspace_bytes(B, T):
            raise ValueError(
                f"attention's backward pass needs {self.workspace_bytes(B, T)} bytes of workspace"
                f" and was given {workspace.nbytes}"
            )
        tiles = self.tiles
        inputs = *view(gradients.out), *view(saved.query), *view(saved.key), *view(saved.value)
        last = T, *self.shape, *(rotation or (None, None, None))
        grid = blocks(T, tiles.gradient_positions), B * self.heads // tiles.gradient_heads
        arrays = *view(saved.out), lse, workspace, *view(gradients.query)
        (query, slot), (key, _), (value, _) = copies
        fp8 = query is not None
        arguments = *inputs, starts, *arrays, *last, query, slot
        self.launch("attention_dquery", grid, arguments, fp8=fp8)
        grid = blocks(T, tiles.held_keys), B * self.kv_heads
        outputs = *view(gradients.key), *view(gradients.value)
        arguments = *inputs, starts, workspace, *outputs, *last, key, value, slot
        self.launch("attention_dkey", grid, arguments, fp8=fp8)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, ...],
        arguments: tuple[Argument, ...],
        *,
        fp8: bool = False,
    ) -> None:
        source, threads = self.sources[fp8], self.threads[kernel]
        shared = self.shared_bytes.get(kernel, 0)
        self.kernels.launch(source, kernel, grid, threads, *arguments, shared=shared)


def view(array: Array) -> tuple[Array, np.int64, int, int]:
    """A (B, T, H, E) array as a kernel takes it: the pointer, then the strides of batch, token and
    head in elements."""
    size, (batch, token, head, element) = array.itemsize, array.strides
    assert element == size, "the last dimension is contiguous"
    assert not (array.data.ptr | batch | token | head) % 16, "rows start on 16-byte borders"
    return array, np.int64(batch // size), token // size, head // size
