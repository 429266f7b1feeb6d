"""Matrix products: which kernel takes one, and in how many parts. See product.wgsl,
product_wide.wgsl and few_rows.wgsl.
"""

import math
from typing import Any

from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray, halves
from nanoeuler.backend.webgpu.kernels import flat_grid
from nanoeuler.backend.webgpu.parts import WebGpuParts
from nanoeuler.backend.webgpu.tilings import Tiling, Tilings

Array = DeviceArray
QUAD = 4
"""Numbers that product_wide.wgsl reads at once."""


class ProductOps(WebGpuParts):
    def __init__(self, precision: str = "fp32"):
        super().__init__(precision)
        self.tilings = Tilings(self.device)

    def multiply(
        self,
        left_MK: Array,
        right_NK: Array,
        out_MN: Array,
        scale: float = 1.0,
        add_MN: Array | None = None,
        add_scale: float = 1.0,
    ) -> None:
        """out = scale · left rightᵀ + add_scale · add, each (…, rows, columns) of any strides."""
        *batch, M, K = left_MK.shape
        N = right_NK.shape[-2]
        if not M * N * math.prod(batch):
            return
        if M <= sizes.FEW_ROWS and not batch and is_along(left_MK) and is_along(right_NK):
            self.multiply_few(left_MK, right_NK, out_MN, scale, add_MN, add_scale)
            return
        operands = left_MK, right_NK, out_MN, add_MN
        if max(array.extent for array in operands if array is not None) > self.kernels.most_bytes:
            self.multiply_in_parts(left_MK, right_NK, out_MN, scale, add_MN, add_scale)
            return
        wide = not batch and min(M, N) >= sizes.LEAST_WIDE and in_quads(left_MK, right_NK, out_MN)
        wide = wide and (add_MN is None or in_quads(left_MK, right_NK, add_MN))
        kernel = "product_wide" if wide else "product"
        tile = sizes.LARGE_TILE if wide else sizes.TILE
        tiles = -(-M // tile) * -(-N // tile)
        parts = (
            1 if batch else max(1, min(sizes.PRODUCT_WORKGROUPS // tiles, K // sizes.LEAST_INNER))
        )
        if parts == 1:
            self.launch_product(kernel, left_MK, right_NK, out_MN, scale, add_MN, add_scale)
            return
        partial = self.kernels.take("product", (parts, M, N))
        self.launch_product(kernel, left_MK, right_NK, partial, 1.0, None, 0.0)
        arrays = {"partial": partial, "out": out_MN, "add": out_MN if add_MN is None else add_MN}
        numbers = {"rows": M, "columns": N, "parts": parts, "scale": scale}
        numbers["add_scale"] = 0.0 if add_MN is None else add_scale
        self.launch_on("sum_parts", "sum_parts", M * N, **arrays, **numbers)

    def multiply_few(
        self,
        left_MK: Array,
        right_NK: Array,
        out_MN: Array,
        scale: float = 1.0,
        add_MN: Array | None = None,
        add_scale: float = 1.0,
        *,
        norm: tuple[Array, float] | None = None,
        up_NK: Array | None = None,
    ) -> None:
        """`multiply` of at most `FEW_ROWS` rows, whose neighbours are neighbours in memory.

        `norm`: weight and epsilon of an RMSNorm of the rows of `left` in front of it. `up`: out =
        silu(left rightᵀ) · (left upᵀ).
        """
        (M, K), N = left_MK.shape, len(right_NK)
        if right_NK.extent > self.kernels.most_bytes:
            for (half,) in halves((N,)):
                add = None if add_MN is None else add_MN[:, half]
                up = None if up_NK is None else up_NK[half]
                given = left_MK, right_NK[half], out_MN[:, half], scale, add, add_scale
                self.multiply_few(*given, norm=norm, up_NK=up)
            return
        weight, epsilon = norm or (left_MK, 0.0)
        read = left_MK, right_NK, right_NK if up_NK is None else up_NK, weight
        constants = {"LEFT_ROWS": M, "WIDTH": QUAD if all(map(is_in_quads, read)) else 1}
        constants |= {"NORMED": norm is not None, "GATED": up_NK is not None}
        arrays = dict(zip(("left", "right", "up", "weight"), read, strict=True))
        arrays |= {"out": out_MN, "add": out_MN if add_MN is None else add_MN}
        numbers = {"columns": N, "inner": K, "scale": scale, "epsilon": epsilon}
        numbers["add_scale"] = 0.0 if add_MN is None else add_scale
        grid = flat_grid(-(-N // sizes.FEW_ROWS_COLUMNS))
        self.launch("few_rows", "multiply", grid, **arrays, **numbers, **constants)

    def launch_product(
        self,
        kernel: str,
        left_MK: Array,
        right_NK: Array,
        out: Array,
        scale: float,
        add: Array | None,
        add_scale: float,
    ) -> None:
        """`multiply` by the kernel of that file. `out` may be the sums of parts of K, (parts, M,
        N)."""
        *batch, M, K = left_MK.shape
        N, count = right_NK.shape[-2], math.prod(out.shape[:-2])
        parts = 1 if batch else count
        inner = K if parts == 1 else -(-K // parts // QUAD) * QUAD
        numbers = {"columns": N, "inner": inner, "scale": scale}
        numbers["add_scale"] = 0.0 if add is None else add_scale
        arrays = {"left": left_MK, "right": right_NK, "out": out}
        arrays["add"] = out if add is None else add
        numbers |= {"rows": M, "whole_inner": K}
        along = {"LEFT_INNER": is_along(left_MK), "RIGHT_INNER": is_along(right_NK)}

        if kernel == "product":
            grid = -(-N // sizes.TILE), -(-M // sizes.TILE), count
            self.launch(kernel, "multiply", grid, **arrays, **numbers, **along)
            return

        def launch(tiling: Tiling, **others: Array) -> None:
            rows, columns, depth = tiling
            constants = {"WIDE_ROWS": rows, "WIDE_COLUMNS": columns, "WIDE_DEPTH": depth} | along
            members = rows * columns // 64
            constants |= {"LEFT_READS": rows * depth // QUAD // members}
            constants |= {"RIGHT_READS": columns * depth // QUAD // members}
            grid = -(-N // columns), -(-M // rows), count
            self.launch(kernel, "multiply", grid, **arrays | others, **numbers, **constants)

        def seconds(tiling: Tiling) -> float:
            # `out` may be added to
            scratch = self.kernels.take("timing", out.shape, out.dtype)
            others = {"out": scratch} if add is not None else {"out": scratch, "add": scratch}
            return self.kernels.seconds(lambda: launch(tiling, **others))

        launch(self.tilings.of(described(left_MK, right_NK, out), M * N * K, seconds))
        self.kernels.scratch.pop("timing", None)

    def multiply_in_parts(
        self,
        left: Array,
        right: Array,
        out: Array,
        scale: float,
        add: Array | None,
        add_scale: float,
    ) -> None:
        """`multiply` in two halves: one of the operands is larger than a kernel can see."""
        *batch, _, K = left.shape
        most = self.kernels.most_bytes

        def rows(array: Array | None, *index: slice) -> Any:
            return None if array is None else array[index]

        if not batch and any(x.extent > most and not is_along(x) for x in (left, right)):
            # neighbours in memory have different k
            (_, first), (_, second) = halves((1, K))
            self.multiply(left[:, first], right[:, first], out, scale, add, add_scale)
            self.multiply(left[:, second], right[:, second], out, scale, out)
        elif not batch and right.extent > most:
            for (half,) in halves((len(right),)):
                added = rows(add, slice(None), half)
                self.multiply(left, right[half], out[:, half], scale, added, add_scale)
        else:
            for (half,) in halves((len(left),)):
                right_half = right[half] if batch else right
                self.multiply(left[half], right_half, out[half], scale, rows(add, half), add_scale)

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        self.multiply(x_NI, weight_OI, out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        self.multiply(dout_NO, weight_OI.T, dx_NI, scale)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        self.multiply(dout_NO.T, x_NI.T, dweight_OI, scale, dweight_OI if accumulate else None)

    def add_product(self, x_NR: Array, weight_RO: Array, out_NO: Array, scale: float) -> None:
        self.multiply(x_NR, weight_RO.T, out_NO, scale, out_NO)


def described(left_MK: Array, right_NK: Array, out: Array) -> str:
    """What the time of a product depends on."""
    sizes_MNK = "x".join(map(str, (*out.shape, left_MK.shape[-1])))
    along = " ".join("along" if is_along(each) else "across" for each in (left_MK, right_NK))
    types = " ".join(each.dtype.name for each in (left_MK, right_NK, out))
    return f"{sizes_MNK} {along} {types}"


def is_along(matrix: Array) -> bool:
    """Are neighbours of a row neighbours in memory?"""
    return matrix.strides[-1] == matrix.itemsize


def is_in_quads(array: Array) -> bool:
    """Can its rows be read and written in quads of neighbours in memory?"""
    quad = QUAD * array.itemsize
    return (
        is_along(array)
        and array.shape[-1] % QUAD == 0
        and array.offset % quad == 0
        and all(stride % quad == 0 for stride in array.strides[:-1])
    )


def in_quads(left_MK: Array, right_NK: Array, out_MN: Array) -> bool:
    """`is_in_quads` of a product's operands, by rows or by columns, and of its output."""
    matrices = [each if is_along(each) else each.T for each in (left_MK, right_NK)] + [out_MN]
    return all(map(is_in_quads, matrices))
