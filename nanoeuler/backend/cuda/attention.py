"""Causal grouped-query attention on CUDA: which form of attention.cu a device and a precision take, its launches, its scratch memory.

The maths is in attention.cu, how tiles are multiplied in matrix_units.cuh, what has to come out in `nanoeuler.backend.reference`.
"""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nanoeuler.backend.attention_arrays import AttentionArrays
from nanoeuler.backend.cuda.sources import Source

UNITS = ("ffma", "tf32", "bf16", "wgmma")
UNIT_OF = {"fp32": "ffma", "tf32": "tf32", "bf16": "bf16"}
HEAD_SIZES = (32, 64, 128)
SHARED_LIMIT = 99 * 1024  # bytes per block that every card from compute capability 8.6 on has
DECODE_QUERIES = 8  # up to so many new tokens per row, a block per token beats tiles of them


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

    @property
    def queries(self) -> int:
        return self.heads * self.positions

    @property
    def gradient_queries(self) -> int:
        return self.gradient_heads * self.gradient_positions

    def shared_bytes(self, row_bytes: int) -> dict[str, int]:
        """Dynamic shared memory of a block of each kernel: what it holds, and two tiles of each tensor that it streams."""
        return {
            "attention_forward": (self.queries + 4 * self.keys) * row_bytes,
            "attention_dquery": (2 * self.gradient_queries + 4 * self.gradient_keys) * row_bytes,
            "attention_dkey": (2 * self.held_keys + 4 * self.streamed_queries) * row_bytes
            + 6 * self.streamed_queries * 4,
        }


def tiles_for(unit: str, head_size: int, ratio: int) -> Tiles:
    """Sizes for `ratio` query heads per key/value head."""
    row_bytes = head_size * (4 if unit in ("ffma", "tf32") else 2)
    if unit == "wgmma":
        # single groups of four warps, each at its own pace, did better than several around a barrier
        if head_size == 128:
            return Tiles(1, 64, 64, 1, 64, 32, 64, 32, 2, 2, 2, rows_in_registers=0)
        return Tiles(1, 64, 64, 1, 64, 64, 64, 64, 4, 4, 3, rows_in_registers=0)
    if unit == "bf16" and head_size == 64:
        return Tiles(1, 64, 64, 1, 64, 64, 64, 64, 4, 3, 2)
    rows = 128 if row_bytes <= 128 else 64
    heads = max(h for h in (1, 2, 4) if ratio % h == 0)
    widest = (
        32 if unit == "ffma" else 64
    )  # plain arithmetic needs the more registers, and time to compile, the wider a tile is
    keys = min(widest, {64: 64, 128: 64, 256: 64, 512: 32}[row_bytes])
    gradient_keys = min(widest, {64: 64, 128: 64, 256: 32, 512: 16}[row_bytes])
    streamed_queries = gradient_keys if head_size < 128 else 16
    in_registers = int(unit == "bf16" and head_size < 128)
    return Tiles(
        heads,
        rows // heads,
        keys,
        heads,
        rows // heads,
        gradient_keys,
        rows,
        streamed_queries,
        rows_in_registers=in_registers,
    )


def source(unit: str, head_size: int, ratio: int, tiles: Tiles | None = None) -> Source:
    """The program for `ratio` query heads per key/value head; `wgmma` has to be compiled for sm_90a."""
    values = {
        "unit": UNITS.index(unit),
        "head_size": head_size,
        **asdict(tiles or tiles_for(unit, head_size, ratio)),
    }
    return Source(
        "attention", tuple((name.upper(), value) for name, value in values.items()), exact=True
    )


class Attention:
    """Attention of one shape of heads. Arrays are CuPy's: (B, T, H, E) views whose last dimension is contiguous and whose rows start on 16-byte borders.

    `precision`: fp32 (exact float32 products), tf32 or bf16. `unit` overrides what multiplies tiles, to run on this device what another would.
    No call allocates or reads device memory on the host, so each can be captured in a graph.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_size: int,
        precision: str,
        unit: str | None = None,
        tiles: Tiles | None = None,
    ):
        import cupy

        if head_size not in HEAD_SIZES:
            raise ValueError(
                f"attention on CUDA: head size {head_size} is not one of {', '.join(map(str, HEAD_SIZES))}"
            )
        if heads % kv_heads:
            raise ValueError(
                f"attention: {heads} query heads are no multiple of {kv_heads} key/value heads"
            )
        hopper = cupy.cuda.Device().compute_capability == "90"
        self.unit = unit or ("wgmma" if precision == "bf16" and hopper else UNIT_OF[precision])
        self.heads, self.kv_heads, self.head_size, self.ratio = (
            heads,
            kv_heads,
            head_size,
            heads // kv_heads,
        )
        self.tiles = tiles or tiles_for(self.unit, head_size, self.ratio)
        self.scale = np.float32(1 / math.sqrt(head_size))

    @cached_property
    def kernels(self) -> dict[str, Any]:
        import cupy

        program = source(self.unit, self.head_size, self.ratio, self.tiles)
        module = cupy.RawModule(
            code=program.code,
            options=(*program.options, *(["-arch=sm_90a"] if self.unit == "wgmma" else [])),
        )
        kernels = {
            name: module.get_function(name)
            for name in (
                "attention_forward",
                "attention_dquery",
                "attention_dkey",
                "attention_decode",
            )
        }
        for name, size in self.shared_bytes.items():
            kernels[name].max_dynamic_shared_size_bytes = size
        return kernels

    @cached_property
    def shared_bytes(self) -> dict[str, int]:
        return self.tiles.shared_bytes(self.head_size * (4 if self.unit in ("ffma", "tf32") else 2))

    def workspace_bytes(self, batch: int, length: int) -> int:
        """Scratch memory of `backward`: two float32 per query and head."""
        return batch * self.heads * length * 8

    def forward(
        self,
        stream: Any,
        query: Any,
        key: Any,
        value: Any,
        starts: Any,
        offset: Any,
        out: Any,
        lse: Any,
    ) -> None:
        """Writes `out` (B, T, H, E) and `lse` (B, H, T) float32. Keys may lie beyond offset + T (a cache's free places): they are not read.

        `starts` (B, T) int32 never falls along a row; `offset` (B) int32 is 0, and not read, where S = T. Queries at places offset + i ≥ S, the padding of
        short rows, get results that mean nothing. B · H < 65,536.
        """
        B, T = query.shape[:2]
        if key.shape[1] == T:
            offset = np.uint64(0)  # nothing lies in front: a null pointer spares the kernel a look
        arguments = (
            *view(query),
            *view(key),
            *view(value),
            starts,
            offset,
            *view(out),
            lse,
            np.int32(T),
            np.int32(key.shape[1]),
            *self.shape,
        )
        if T <= DECODE_QUERIES:
            self.launch(stream, "attention_decode", (self.heads, T, B), 512, arguments)
        else:
            tiles = self.tiles
            grid = (-(-T // tiles.positions), B * self.heads // tiles.heads)
            self.launch(stream, "attention_forward", grid, 2 * tiles.queries, arguments)

    def backward(
        self,
        stream: Any,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts: Any,
        lse: Any,
        workspace: Any,
        rotation: tuple[Any, Any, Any] | None = None,
    ) -> None:
        """From `gradients.out` to the other three, written in full. `workspace`: `workspace_bytes` of memory, on an 8-byte border.

        `rotation`: positions (B, T) int32, cosines and sines: the gradients are those of queries and keys before they were rotated.
        """
        B, T = saved.query.shape[:2]
        if workspace.nbytes < self.workspace_bytes(B, T):
            raise ValueError(
                f"attention's backward pass needs {self.workspace_bytes(B, T)} bytes of workspace and was given {workspace.nbytes}"
            )
        tiles, inputs = (
            self.tiles,
            (
                *view(gradients.out),
                *view(saved.query),
                *view(saved.key),
                *view(saved.value),
                starts,
            ),
        )
        last = np.int32(T), *self.shape, *(rotation or [np.uint64(0)] * 3)
        grid = (-(-T // tiles.gradient_positions), B * self.heads // tiles.gradient_heads)
        self.launch(
            stream,
            "attention_dquery",
            grid,
            2 * tiles.gradient_queries,
            (*inputs, *view(saved.out), lse, workspace, *view(gradients.query), *last),
        )
        grid = (-(-T // tiles.held_keys), B * self.kv_heads)
        self.launch(
            stream,
            "attention_dkey",
            grid,
            2 * tiles.held_keys,
            (*inputs, workspace, *view(gradients.key), *view(gradients.value), *last),
        )

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        return np.int32(self.heads), np.int32(self.kv_heads), self.scale

    def launch(
        self,
        stream: Any,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        arguments: tuple[Any, ...],
    ) -> None:
        self.kernels[name](
            grid, (threads,), arguments, shared_mem=self.shared_bytes.get(name, 0), stream=stream
        )


def view(array: Any) -> tuple[Any, np.int64, np.int32, np.int32]:
    """A (B, T, H, E) array as a kernel takes it: pointer, then strides of batch, token and head in elements."""
    batch, token, head, number = (stride // array.itemsize for stride in array.strides)
    assert number == 1, "the last dimension is contiguous"
    assert all(x % 16 == 0 for x in (array.data.ptr, *array.strides[:3])), (
        "rows start on 16-byte borders"
    )
    return array, np.int64(batch), np.int32(token), np.int32(head)
