"""Matrix products with what follows them in their epilogue, by fused_linear.cu: its launches, and how arrays are described to the tensor copy engine."""

import ctypes
import functools
from typing import Any

import numpy as np

from nanoeuler.backend.cuda.sources import Source

KINDS = ("rotated", "gated", "gated_backward")
ROWS, COLUMNS, PANEL, GROUP_ROWS = (
    128,
    256,
    64,
    64,
)  # a block's tile; columns and rows of the boxes that are copied
TILE_COLUMNS = {
    "rotated": COLUMNS,
    "gated": COLUMNS // 2,
    "gated_backward": COLUMNS,
}  # of the result that a tile ends as: gate and up become one
THREADS = 384
SHARED_BYTES = 4 * 3 * ROWS * 128 + 3 * 4 * 8
WORTH_FUSING = 4096  # rows: below, a tile of 128 × 256 leaves multiprocessors without work, and cuBLASLt has smaller ones

BFLOAT16, SWIZZLE_128_BYTES, PROMOTE_256_BYTES = (
    9,
    3,
    3,
)  # CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion


def source(kind: str, head_size: int = PANEL) -> Source:
    """The program of one kind; has to be compiled for sm_90a."""
    constants = {
        "KIND": KINDS.index(kind),
        "TURNED_HEAD": head_size,
        "HEAD_SIZE": PANEL,
        "UNIT": "WGMMA",
        "ROWS_IN_REGISTERS": 0,
    }
    return Source("fused_linear", tuple(constants.items()), exact=False)


class FusedLinear:
    """The products of one device of compute capability 9.0. All arrays are bfloat16 but the tables of the rotation."""

    def __init__(self, stream: Any, multiprocessors: int):
        self.stream, self.clusters = stream, multiprocessors // 2
        self.kernels: dict[Source, Any] = {}

    def fits(self, rows: int, columns: int = COLUMNS) -> bool:
        """Is a product of so many rows and columns of `out` one for these kernels?"""
        return rows >= WORTH_FUSING and columns % COLUMNS == 0

    def rotated(
        self,
        x_ND: Any,
        weight_CD: Any,
        packed_NC: Any,
        turned: int,
        positions_N: Any,
        table: tuple[Any, Any],
        head_size: int,
    ) -> None:
        """packed = x Wᵀ, its first `turned` columns rotated."""
        C, tail = packed_NC.shape[1], (positions_N, *table, np.int32(turned))
        maps = (
            tensor_map(x_ND, ROWS),
            tensor_map(weight_CD, ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
        )
        self.launch("rotated", maps, x_ND.shape, C, 0, 1.0, tail, head_size)

    def gated(self, x_ND: Any, weight_CD: Any, packed_NC: Any, up: int, out_NF: Any) -> None:
        """gate and up = x Wᵀ, out = silu(gate) · up; up starts in column `up` of packed and row `up` of W."""
        F = out_NF.shape[1]
        maps = (
            tensor_map(x_ND, ROWS),
            tensor_map(weight_CD, ROWS),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(out_NF, GROUP_ROWS),
        )
        self.launch("gated", maps, x_ND.shape, F, up, 1.0)

    def gated_backward(
        self, dout_ND: Any, weight_DF: Any, scale: float, packed_NC: Any, up: int, out_NF: Any
    ) -> None:
        """From the gradient of what out · Wᵀ gave, and gate and up, to their gradients in their places, and out."""
        F = out_NF.shape[1]
        maps = (
            tensor_map(dout_ND, ROWS),
            tensor_map(weight_DF, PANEL),
            tensor_map(packed_NC, GROUP_ROWS),
            tensor_map(out_NF, GROUP_ROWS),
        )
        self.launch("gated_backward", maps, dout_ND.shape, F, up, scale)

    def launch(
        self,
        kind: str,
        maps: tuple[bytes, ...],
        shape: tuple[int, int],
        columns: int,
        up: int,
        scale: float,
        tail: tuple = (),
        head_size: int = PANEL,
    ) -> None:
        tiles = -(-shape[0] // (2 * ROWS)) * -(-columns // TILE_COLUMNS[kind])
        arguments = (
            np.frombuffer(b"".join(maps), f"V{128 * len(maps)}").reshape(()),
            *map(np.int32, (*shape, columns, up)),
            np.float32(scale),
        )
        grid = (2 * min(self.clusters, tiles),)
        kernel, last = (
            self.kernel(source(kind, head_size)),
            tail or [np.uint64(0)] * 3 + [np.int32(0)],
        )
        kernel(grid, (THREADS,), (*arguments, *last), shared_mem=SHARED_BYTES, stream=self.stream)

    def kernel(self, program: Source) -> Any:
        import cupy

        if program not in self.kernels:
            kernel = cupy.RawModule(
                code=program.code, options=(*program.options, "-arch=sm_90a")
            ).get_function(program.name)
            kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
            self.kernels[program] = kernel
        return self.kernels[program]


def tensor_map(array: Any, box_rows: int) -> bytes:
    """A matrix as the copy engine knows it: boxes of 64 columns and `box_rows` rows, which lie in shared memory as matrix_units.cuh says.

    What lies beyond the matrix is read as zero and not written.
    """
    rows, columns = array.shape
    room = (ctypes.c_uint64 * 24)()  # the library wants 128 bytes on a 64-byte border
    address = -(-ctypes.addressof(room) // 64) * 64
    sizes, strides = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(array.strides[0])
    box, steps = (ctypes.c_uint32 * 2)(PANEL, box_rows), (ctypes.c_uint32 * 2)(1, 1)
    what = (
        ctypes.c_void_p(address),
        BFLOAT16,
        2,
        ctypes.c_void_p(array.data.ptr),
        sizes,
        strides,
        box,
        steps,
    )
    status = driver().cuTensorMapEncodeTiled(*what, 0, SWIZZLE_128_BYTES, PROMOTE_256_BYTES, 0)
    if status:
        raise RuntimeError(
            f"cuTensorMapEncodeTiled failed with status {status} for a matrix of {rows} × {columns}, strides {array.strides}"
        )
    return ctypes.string_at(address, 128)


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library, for the one function of it that CuPy does not offer."""
    return ctypes.CDLL("libcuda.so.1")
