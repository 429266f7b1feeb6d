"""Matrix products with what follows them in their epilogue: the launches of fused_linear.cu, and
how arrays are described to the tensor copy engine."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from nanoeuler.backend.cuda.fp8 import NOT_QUANTIZED, Quantized
from nanoeuler.backend.cuda.kernels import Argument, ByValue, Kernels, Source, blocks, driver

if TYPE_CHECKING:
    from cupy import ndarray as Array

Factors: TypeAlias = tuple[Quantized, Quantized]

KINDS = ("Rope", "Swiglu", "SwigluBackward", "Gelu", "GeluBackward")  # the epilogues
TILE_ROWS, TILE_COLUMNS = 128, 256  # of the product that a block computes at a time
ROW_BYTES = 128  # of a row of x or W that a stage of the ring holds
STAGES = 4
BARRIERS = 3  # of each stage
MAPS = 6  # of the arrays of a launch
MAP_BYTES = 128
GROUP_ROWS = 64  # of four warps, and of a box that is stored
BOX_COLUMNS = 64  # of bfloat16, or of e4m3 that is stored
CLUSTER = 2  # blocks
THREADS = 384
SHARED_BYTES = STAGES * ((TILE_ROWS + TILE_COLUMNS) * ROW_BYTES + BARRIERS * 8) + 8
QUANTIZED_BYTES = 3 * TILE_ROWS * BOX_COLUMNS  # more, for `SwigluBackward` in fp8

WORTH_FUSING = 4096
"""Least rows: below, a tile of 128 × 256 leaves multiprocessors without work, and cuBLASLt has
smaller ones."""

# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
BYTES, BFLOAT16, SWIZZLE_64_BYTES, SWIZZLE_128_BYTES, PROMOTE_256_BYTES = 0, 9, 2, 3, 3


def source(kind: str, head_size: int = BOX_COLUMNS, *, fp8: bool = False) -> Source:
    """The program of one kind; `head_size` matters to `Rope` alone."""
    constants: dict[str, str | int] = {
        "EPILOGUE": kind,
        "FP8": int(fp8),
        "ROTATED_HEAD": head_size,
        "TILE_ROWS": TILE_ROWS,
        "TILE_COLUMNS": TILE_COLUMNS,
        "RESULT_COLUMNS": result_columns(kind),
        "DEPTH": ROW_BYTES if fp8 else ROW_BYTES // 2,
        "STAGES": STAGES,
        "BARRIERS": BARRIERS,
        "GROUP_ROWS": GROUP_ROWS,
        "CLUSTER": CLUSTER,
        "THREADS": THREADS,
        "SHARED_BYTES": shared_bytes(kind, fp8=fp8),
        "HEAD_SIZE": BOX_COLUMNS,  # of matrix_units.cuh, which makes panels of as many columns
        "UNIT": "WGMMA",
        "ROWS_IN_REGISTERS": 0,
    }
    return Source("fused_linear", tuple(constants.items()), exact=False, sm_90a=True)


def result_columns(kind: str) -> int:
    """Columns of the result that a tile becomes: gate and up together make one."""
    return TILE_COLUMNS // 2 if kind == "Swiglu" else TILE_COLUMNS


def shared_bytes(kind: str, *, fp8: bool) -> int:
    """Dynamic shared memory of a block."""
    return SHARED_BYTES + (QUANTIZED_BYTES if fp8 and kind == "SwigluBackward" else 0)


class FusedLinear:
    """The fused products of a device of compute capability 9.0.

    All arrays are bfloat16 but the tables of the rotation. With `factors`, which are x and W in
    e4m3, those take the place of x and W. The products with GELU are made for them alone.
    """

    def __init__(self, kernels: Kernels, multiprocessors: int):
        self.kernels = kernels
        self.clusters = multiprocessors // CLUSTER

    def fits(self, rows: int, columns: int = TILE_COLUMNS) -> bool:
        """Are these kernels made for a product whose `out` has this many rows and columns?"""
        return rows >= WORTH_FUSING and columns % TILE_COLUMNS == 0

    def rope(
        self,
        x_ND: Array,
        weight_CD: Array,
        packed_NC: Array,
        rotated_columns: int,
        positions_N: Array,
        table: tuple[Array, Array],
        head_size: int,
        factors: Factors | None = None,
    ) -> None:
        """packed = x Wᵀ, its first `rotated_columns` columns rotated by their positions."""
        factors = factors or unscaled(x_ND, weight_CD)
        rotation = positions_N, *table, rotated_columns
        maps, more = [tensor_map(packed_NC, GROUP_ROWS)], {"head_size": head_size}
        self.launch("Rope", factors, maps, packed_NC.shape[1], rotation=rotation, **more)

    def swiglu(
        self,
        x_ND: Array,
        weight_CD: Array,
        packed_NC: Array,
        up: int,
        out_NF: Array,
        factors: Factors | None = None,
        copy: Quantized = NOT_QUANTIZED,
    ) -> None:
        """gate and up = x Wᵀ, out = silu(gate) · up.

        Up starts in column `up` of packed and row `up` of W. With `factors`, `copy` of `out` is
        written, and `out` is not.
        """
        out = tensor_map(copy.values if factors else out_NF, GROUP_ROWS, stored=True)
        factors = factors or unscaled(x_ND, weight_CD)
        maps = [tensor_map(packed_NC, GROUP_ROWS), out]
        self.launch("Swiglu", factors, maps, out_NF.shape[1], up, to=copy.slot)

    def swiglu_backward(
        self,
        dout_ND: Array,
        weight_DF: Array,
        scale: float,
        packed_NC: Array,
        up: int,
        out_NF: Array,
        factors: Factors | None = None,
        copies: tuple[Quantized, Quantized, Quantized] = (NOT_QUANTIZED,) * 3,
    ) -> None:
        """From dout, the gradient of (silu(gate) · up) Wᵀ, the gradients of gate and up, which
        replace gate and up in packed, and out = silu(gate) · up once more.

        With `factors`, the second of which is (F, D), only `copies` are written: of packed, of
        packed with the tokens last, and of out with the tokens last.
        """
        outs = gradient_maps(copies) if factors else [tensor_map(out_NF, GROUP_ROWS)]
        factors = factors or unscaled(dout_ND, weight_DF)
        slots = {"to": copies[0].slot, "to_out": copies[2].slot}
        maps = [tensor_map(packed_NC, GROUP_ROWS), *outs]
        self.launch("SwigluBackward", factors, maps, out_NF.shape[1], up, scale, **slots)

    def gelu(self, bias_F: Array, up_NF: Array, factors: Factors, copy: Quantized) -> None:
        """up = x Wᵀ + bias, and `copy` of gelu(up); `factors` are x and W."""
        maps = [tensor_map(up_NF, GROUP_ROWS), tensor_map(copy.values, GROUP_ROWS, stored=True)]
        self.launch("Gelu", factors, maps, up_NF.shape[1], to=copy.slot, bias=bias_F)

    def gelu_backward(
        self,
        scale: float,
        up_NF: Array,
        factors: Factors,
        copies: tuple[Quantized, Quantized, Quantized],
    ) -> None:
        """From dout, the gradient of scale · gelu(up) Wᵀ, copies of the gradient of up, of the same
        with the tokens last, and of gelu(up) with the tokens last; `factors` are dout and W as
        (F, D)."""
        maps = [tensor_map(up_NF, GROUP_ROWS), *gradient_maps(copies)]
        slots = {"to": copies[0].slot, "to_out": copies[2].slot}
        self.launch("GeluBackward", factors, maps, up_NF.shape[1], scale=scale, **slots)

    def launch(
        self,
        kind: str,
        factors: Factors,
        maps: Sequence[bytes],
        columns: int,
        up: int = 0,
        scale: float = 1.0,
        rotation: tuple[Argument, ...] = (None, None, None, 0),
        head_size: int = BOX_COLUMNS,
        to: Array | None = None,
        to_out: Array | None = None,
        bias: Array | None = None,
    ) -> None:
        """`maps` of results, and their `columns`; `to` and `to_out`, slots of copies in e4m3."""
        (x, x_slot), (weight, weight_slot) = factors
        fp8 = x_slot is not None
        program = source(kind, head_size, fp8=fp8)
        tiles = blocks(len(x), CLUSTER * TILE_ROWS) * blocks(columns, result_columns(kind))
        grid = CLUSTER * min(self.clusters, tiles)
        rows = ROW_BYTES // 2 if kind == "SwigluBackward" and not fp8 else TILE_ROWS
        every = tensor_map(x, TILE_ROWS), tensor_map(weight, rows), *maps
        described = b"".join(every).ljust(MAP_BYTES * MAPS, b"\0")
        slots = x_slot, weight_slot, to, to_out
        arguments = ByValue(described), *x.shape, columns, up, float(scale), *rotation, bias, *slots
        shared = shared_bytes(kind, fp8=fp8)
        self.kernels.launch(program, program.name, grid, THREADS, *arguments, shared=shared)


def unscaled(x: Array, weight: Array) -> Factors:
    """Factors in bfloat16."""
    return Quantized(x, None), Quantized(weight, None)


def gradient_maps(copies: tuple[Quantized, Quantized, Quantized]) -> list[bytes]:
    """Maps of the copies that a backward pass writes: out's, and the gradient's two."""
    copy, across, out = (copy.values for copy in copies)
    gradients = tensor_map(copy, GROUP_ROWS, stored=True), tensor_map(across, GROUP_ROWS)
    return [tensor_map(out, GROUP_ROWS), *gradients]


def tensor_map(matrix: Array, box_rows: int, *, stored: bool = False) -> bytes:
    """A matrix as the copy engine knows it, which copies boxes of 128 bytes of `box_rows` rows.

    A box lies in shared memory as matrix_units.cuh says. What lies beyond the matrix is read as
    zero and not written. Of e4m3 that is `stored`, a box has 64 columns.
    """
    place = matrix.data.ptr, *matrix.shape, matrix.strides[0], matrix.itemsize
    return encoded_map(*place, box_rows, narrow=stored and matrix.itemsize == 1)


def tensor_maps(matrices: Sequence[Array], box_rows: int) -> list[bytes]:
    """Tensor maps of several matrices of one shape, cached together, as a look-up of each costs as
    much as its use.
    """
    like, pointers = matrices[0], tuple(matrix.data.ptr for matrix in matrices)
    return encoded_maps(pointers, *like.shape, like.strides[0], like.itemsize, box_rows)


@functools.lru_cache(maxsize=256)
def encoded_maps(pointers: tuple[int, ...], *place: int) -> list[bytes]:
    return [encoded_map(pointer, *place, narrow=False) for pointer in pointers]


@functools.lru_cache(maxsize=4096)
def encoded_map(
    pointer: int,
    rows: int,
    columns: int,
    stride: int,
    itemsize: int,
    box_rows: int,
    *,
    narrow: bool,
) -> bytes:
    """`narrow`: a row of a box has `BOX_COLUMNS`, else 128 bytes."""
    box_columns = BOX_COLUMNS if narrow else ROW_BYTES // itemsize
    memory = (ctypes.c_uint64 * 24)()  # the driver wants 128 bytes on a 64-byte border
    address = -(-ctypes.addressof(memory) // 64) * 64
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
        BFLOAT16 if itemsize == 2 else BYTES,
        2,
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(stride),
        (ctypes.c_uint32 * 2)(box_columns, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),  # every element of a box
        0,
        SWIZZLE_64_BYTES if narrow else SWIZZLE_128_BYTES,
        PROMOTE_256_BYTES,
        0,
    )
    if status:
        raise RuntimeError(
            f"cuTensorMapEncodeTiled failed with status {status} for a matrix of"
            f" {rows} × {columns}, {stride} bytes from a row to the next"
        )
    return ctypes.string_at(address, MAP_BYTES)
