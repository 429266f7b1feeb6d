"""Matrix products with what follows them in their epilogue: the launches of fused_linear.cu, and
how arrays are described to the tensor copy engine."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.backend.cuda.kernel_sources import Source
from nanoeuler.backend.cuda.kernels import Argument, Kernels, blocks, driver

if TYPE_CHECKING:
    from cupy import ndarray as Array

KINDS = ("rotated", "gated", "gated_backward")
TILE_ROWS, TILE_COLUMNS = 128, 256  # of the product that a block computes at a time
DEPTH = 64  # terms of the product's sums that a stage of the ring holds
STAGES = 4
BARRIERS = 3  # of each stage
GROUP_ROWS = 64  # of four warps, and of a box that is stored
BOX_COLUMNS = 64  # 128 bytes
CLUSTER = 2  # blocks
THREADS = 384
SHARED_BYTES = STAGES * ((TILE_ROWS + TILE_COLUMNS) * DEPTH * 2 + BARRIERS * 8)

RESULT_COLUMNS = {
    "rotated": TILE_COLUMNS,
    "gated": TILE_COLUMNS // 2,
    "gated_backward": TILE_COLUMNS,
}
"""Columns of the result that a tile becomes: gate and up together make one."""

WORTH_FUSING = 4096
"""Least rows: below, a tile of 128 × 256 leaves multiprocessors without work, and cuBLASLt has
smaller ones."""

# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
BFLOAT16, SWIZZLE_128_BYTES, PROMOTE_256_BYTES = 9, 3, 3


def source(kind: str, head_size: int = BOX_COLUMNS) -> Source:
    """The program of one kind; `head_size` matters to `rotated` alone."""
    constants: dict[str, str | int] = {
        "KIND": kind.upper(),
        "ROTATED_HEAD": head_size,
        "TILE_ROWS": TILE_ROWS,
        "TILE_COLUMNS": TILE_COLUMNS,
        "RESULT_COLUMNS": RESULT_COLUMNS[kind],
        "DEPTH": DEPTH,
        "STAGES": STAGES,
        "BARRIERS": BARRIERS,
        "GROUP_ROWS": GROUP_ROWS,
        "CLUSTER": CLUSTER,
        "THREADS": THREADS,
        "SHARED_BYTES": SHARED_BYTES,
        "HEAD_SIZE": BOX_COLUMNS,  # of matrix_units.cuh, which makes panels of as many columns
        "UNIT": "WGMMA",
        "ROWS_IN_REGISTERS": 0,
    }
    return Source("fused_linear", tuple(constants.items()), exact=False, sm_90a=True)


class FusedLinear:
    """The fused products of a device of compute capability 9.0.

    All arrays are bfloat16 but the tables of the rotation.
    """

    def __init__(self, kernels: Kernels, multiprocessors: int):
        self.kernels = kernels
        self.clusters = multiprocessors // CLUSTER

    def fits(self, rows: int, columns: int = TILE_COLUMNS) -> bool:
        """Are these kernels made for a product whose `out` has this many rows and columns?"""
        return rows >= WORTH_FUSING and columns % TILE_COLUMNS == 0

    def rotated(
        self,
        x_ND: Array,
        weight_CD: Array,
        packed_NC: Array,
        rotated_columns: int,
        positions_N: Array,
        table: tuple[Array, Array],
        head_size: int,
    ) -> None:
        """packed = x Wᵀ, its first `rotated_columns` columns rotated by their positions."""
        maps = (
            tensor_map(x_ND, TILE_ROWS),
            tensor_map(weight_CD, TILE_ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
        )
        columns, rotation = packed_NC.shape[1], (positions_N, *table, rotated_columns)
        self.launch("rotated", maps, x_ND.shape, columns, 0, 1.0, rotation, head_size)

    def gated(
        self, x_ND: Array, weight_CD: Array, packed_NC: Array, up: int, out_NF: Array
    ) -> None:
        """gate and up = x Wᵀ, out = silu(gate) · up.

        Up starts in column `up` of packed and row `up` of W.
        """
        maps = (
            tensor_map(x_ND, TILE_ROWS),
            tensor_map(weight_CD, TILE_ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(out_NF, GROUP_ROWS),
        )
        self.launch("gated", maps, x_ND.shape, out_NF.shape[1], up, 1.0)

    def gated_backward(
        self,
        dout_ND: Array,
        weight_DF: Array,
        scale: float,
        packed_NC: Array,
        up: int,
        out_NF: Array,
    ) -> None:
        """From dout, the gradient of (silu(gate) · up) Wᵀ, the gradients of gate and up, which
        replace gate and up in packed, and out = silu(gate) · up once more."""
        maps = (
            tensor_map(dout_ND, TILE_ROWS),
            tensor_map(weight_DF, DEPTH),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(out_NF, GROUP_ROWS),
        )
        self.launch("gated_backward", maps, dout_ND.shape, out_NF.shape[1], up, scale)

    def launch(
        self,
        kind: str,
        maps: tuple[bytes, ...],
        shape: tuple[int, int],
        columns: int,
        up: int,
        scale: float,
        rotation: tuple[Argument, ...] = (None, None, None, 0),
        head_size: int = BOX_COLUMNS,
    ) -> None:
        """`shape` of x, `columns` of the result."""
        program = source(kind, head_size)
        tiles = blocks(shape[0], CLUSTER * TILE_ROWS) * blocks(columns, RESULT_COLUMNS[kind])
        grid = CLUSTER * min(self.clusters, tiles)
        descriptions = np.frombuffer(b"".join(maps), f"V{128 * len(maps)}").reshape(())
        arguments = descriptions, *shape, columns, up, float(scale), *rotation
        self.kernels.launch(program, program.name, grid, THREADS, *arguments, shared=SHARED_BYTES)


def tensor_map(matrix: Array, box_rows: int) -> bytes:
    """A matrix as the copy engine knows it, which copies boxes of 64 columns and `box_rows` rows.

    A box lies in shared memory as matrix_units.cuh says. What lies beyond the matrix is read as
    zero and not written.
    """
    rows, columns = matrix.shape
    memory = (ctypes.c_uint64 * 24)()  # the driver wants 128 bytes on a 64-byte border
    address = -(-ctypes.addressof(memory) // 64) * 64
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
        BFLOAT16,
        2,
        ctypes.c_void_p(matrix.data.ptr),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(matrix.strides[0]),
        (ctypes.c_uint32 * 2)(BOX_COLUMNS, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),  # every element of a box
        0,
        SWIZZLE_128_BYTES,
        PROMOTE_256_BYTES,
        0,
    )
    if status:
        raise RuntimeError(
            f"cuTensorMapEncodeTiled failed with status {status} for a matrix of"
            f" {rows} × {columns}, strides {matrix.strides}"
        )
    return ctypes.string_at(address, 128)
