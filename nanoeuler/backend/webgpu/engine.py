"""The ops on any GPU, by WebGPU. `backend/reference.py` says what each computes, the `.wgsl` files
how.

Everything is computed in float32, from and into arrays of float32 or float16; sums are taken in a
fixed order, so on one adapter and driver equal inputs give equal bits.
"""

import math
from typing import Any

import numpy as np

from nanoeuler.backend.dropout import threshold
from nanoeuler.backend.records import (
    AttentionArrays,
    EulerStep,
    LayerNorm,
    Norm,
    NormGradients,
    RmsNorm,
    RopeTable,
    Rotation,
)
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray
from nanoeuler.backend.webgpu.decoding import DecodingOps
from nanoeuler.backend.webgpu.kernels import flat_grid
from nanoeuler.backend.webgpu.logit_ops import LogitOps
from nanoeuler.backend.webgpu.optimizer_ops import OptimizerOps
from nanoeuler.backend.webgpu.products import is_in_quads

Array = DeviceArray


ROOM = 2560
"""Bytes of a workgroup's memory that attention_wide.wgsl takes beside its tiles, at most."""


class WebGpuBackend(LogitOps, DecodingOps, OptimizerOps):
    """Arrays of a WebGPU adapter, in float32 and, where asked for, float16."""

    name = "webgpu"
    own_rounding = "each driver compiles the kernels in its own way"
    orders_sums = False
    checked_precisions = ("fp32", "fp16")
    keeps_caches = True  # with the launches recorded for them

    # ---- embedding

    def scale(self, x_ND: Array, factor: float) -> None:
        N, D = x_ND.shape
        self.launch_on("embedding", "scale", N * D, out=x_ND, rows=N, columns=D, factor=factor)

    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        N, D = out_ND.shape
        arrays = {"ids": ids_N, "out": out_ND}
        numbers = {"rows": N, "columns": D, "vocabulary": len(table_VD)}
        for part in self.parts_of(table_VD):
            rows = {"table": table_VD[part], "first": part.start, "count": part.stop - part.start}
            self.launch_on("embedding", "embed", N * D, **arrays, **numbers, **rows)

    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, *, accumulate: bool
    ) -> None:
        N, D = dout_ND.shape
        arrays = {"ids": ids_N, "dout": dout_ND}
        for part in self.parts_of(dtable_VD):
            count = part.stop - part.start
            across = min(count, sizes.MOST_WORKGROUPS)
            grid = across, -(-D // sizes.THREADS), -(-count // across)
            numbers = {"rows": N, "columns": D, "accumulate": accumulate, "first": part.start}
            rows = {"dtable": dtable_VD[part], "count": count}
            self.launch("embedding", "backward", grid, **arrays, **numbers, **rows)

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        self.embedding(ids_N, table_VD, out_ND)
        N, D = out_ND.shape
        arrays = {"positions": positions_N, "position_table": position_table_PD, "out": out_ND}
        numbers = {"rows": N, "columns": D, "positions_count": len(position_table_PD)}
        self.launch_on("embedding", "add_positions", N * D, **arrays, **numbers)

    def gather(
        self, x_ND: Array, index_R: np.ndarray | Array, out_RD: Array | None = None
    ) -> Array:
        if isinstance(index_R, np.ndarray):
            index_R = self.from_host(index_R.astype(np.int32))
        R, D = len(index_R), x_ND.shape[1]
        out_RD = self.empty((R, D), x_ND.dtype) if out_RD is None else out_RD
        arrays = {"source": x_ND, "offset": index_R, "copied": out_RD}
        numbers = {"count": R * D, "width": D, "bound": len(x_ND)}
        self.launch_on("cache", "gather", R * D, **arrays, **numbers)
        return out_RD

    # ---- biases

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        self.launch_on_rows("add_bias", out_NO, x=out_NO, bias=bias_O)

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        self.sum_columns("sums", dbias_O, accumulate, scale, dout=dout_NO)

    def sum_columns(
        self, kernel: str, out_D: Array, accumulate: bool, scale: float, **given: Any
    ) -> None:
        """out = scale · the sum over all rows n of what `kernel` of columns.wgsl takes there."""
        N, D = given["dout"].shape
        rows = max(sizes.LEAST_COLUMN_ROWS, -(-N // sizes.COLUMN_PARTS))
        parts, across = max(1, -(-N // rows)), -(-D // sizes.THREADS)
        partial = self.kernels.take("columns", (parts, D))
        numbers = {"rows": N, "columns": D, "slice": rows, "partial": partial}
        self.launch("columns", kernel, (across, parts), **given, **numbers)
        told = {"columns": D, "parts": parts, "scale": scale, "accumulate": accumulate}
        self.launch("columns", "finish", (across,), partial=partial, out=out_D, **told)

    # ---- norms and Euler steps

    def norm(self, norm: Norm) -> None:
        self.launch_norm("forward", norm, x=norm.x_ND, out=norm.out_ND, epsilon=norm.epsilon)

    layer_norm = rms_norm = norm

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        self.add_step(x_ND, delta_ND, bias_D, step_size, norm)
        self.norm(norm)

    def add_rms_norm(self, x_ND: Array, delta_ND: Array, step_size: float, norm: RmsNorm) -> None:
        self.add_step(x_ND, delta_ND, None, step_size, norm)
        self.norm(norm)

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        x, _, step_size, norm, _ = step
        if isinstance(norm, LayerNorm):
            super().euler_step(inner_NI, weight_DI, step)
            return
        # the product adds x itself: that saves writing and reading `delta`
        self.multiply(inner_NI, weight_DI, norm.x_ND, step_size, x)
        self.norm(norm)

    def add_step(
        self, x_ND: Array, delta_ND: Array, bias_D: Array | None, step_size: float, norm: Norm
    ) -> None:
        """norm.x = x + step_size · (delta + bias)"""
        N, D = x_ND.shape
        bias = norm.weight_D if bias_D is None else bias_D
        arrays = {"x": x_ND, "delta": delta_ND, "total": norm.x_ND, "step_bias": bias}
        numbers = {"adds_bias": bias_D is not None, "step_size": step_size, "rows": N, "columns": D}
        self.launch("norm", "add", flat_grid(N), **arrays, **numbers)

    def rms_norm_backward(self, dout_ND: Array, norm: Norm, into: NormGradients) -> None:
        """Those of either kind. Sums over rows come first: `out` may take the place of `dout`."""
        x, inverse = norm.x_ND, norm.inverse_rms_N
        layer = isinstance(norm, LayerNorm)
        means = inverse
        if layer:
            means = self.kernels.take("means", (len(x),))
            self.launch_norm("row_means", norm, x=x, means=means)
            self.bias_backward(dout_ND, into.dbias_D, accumulate=into.accumulate)
        given = {"x": x, "inverse": inverse, "means": means, "has_means": layer}
        self.sum_columns("products", into.dweight_D, into.accumulate, 1, dout=dout_ND, **given)
        out = into.out_ND
        in_place = out is not None and self.same(out, dout_ND)
        self.launch_norm(
            "backward",
            norm,
            x=x,
            dout=dout_ND,
            dx=into.dx_ND,
            out=into.dx_ND if out is None or in_place else out,
            add_to_dx=into.add_to_dx,
            writes_out=out is not None,
            out_is_dout=in_place,
        )

    layer_norm_backward = rms_norm_backward

    def launch_norm(self, kernel: str, norm: Norm, **given: Any) -> None:
        """A kernel of norm.wgsl that takes rows."""
        N, D = norm.x_ND.shape
        layer = isinstance(norm, LayerNorm)
        if kernel != "row_means":
            bias = norm.bias_D if isinstance(norm, LayerNorm) else norm.weight_D
            given |= {"weight": norm.weight_D, "bias": bias, "inverse": norm.inverse_rms_N}
        if N:
            self.launch("norm", kernel, flat_grid(N), rows=N, columns=D, layer=layer, **given)

    # ---- rotary positions

    def rope(
        self, x_NHE: Array, positions_N: Array, table: RopeTable, *, inverse: bool = False
    ) -> None:
        N, H, E = x_NHE.shape
        arrays = {"x": x_NHE, "positions": positions_N, "cosines": table[0], "sines": table[1]}
        numbers = {"rows": N, "heads": H, "half": E // 2, "direction": -1.0 if inverse else 1.0}
        self.launch_on("rope", "rotate", N * H * E // 2, **arrays, **numbers)

    # ---- attention

    def attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        B, T, H, _ = heads.query.shape
        self.launch_attention(
            "forward",
            heads,
            (T, H, B),
            query=heads.query,
            key=heads.key,
            value=heads.value,
            out=heads.out,
            starts=starts_BT,
            offset=offset_B,
            lse=lse_BHT,
        )

    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None = None,
    ) -> None:
        B, T, H, _ = saved.query.shape
        G = saved.key.shape[2]
        stats = self.kernels.take("attention", (B, H, T), np.float64)
        by_query, by_key = (T, H, B), (T, G, B)
        rows = {"out": saved.out, "dout": gradients.out, "lse": lse_BHT, "stats": stats}
        self.launch_attention("row_stats", saved, by_query, **rows)
        read = {"query": saved.query, "key": saved.key, "value": saved.value}
        read |= {"dout": gradients.out, "stats": stats, "starts": starts_BT}
        dquery = {"dquery": gradients.query}
        self.launch_attention("query_gradient", saved, by_query, **read, **dquery)
        written = {"dkey": gradients.key, "dvalue": gradients.value}
        self.launch_attention("key_gradient", saved, by_key, **read, **written)
        if rotation:
            for gradient in (gradients.query, gradients.key):
                by_token = gradient.reshape(-1, *gradient.shape[2:])
                self.rope(by_token, *rotation, inverse=True)

    def launch_attention(
        self, kernel: str, heads: AttentionArrays, grid: tuple[int, ...], **arrays: Array
    ) -> None:
        _, T, H, E = heads.query.shape
        others = attention_others(kernel, E, self.device.workgroup_bytes)
        in_quads = all(is_in_quads(each) for each in arrays.values() if each.ndim > 3)
        wide = others and T >= sizes.LEAST_WIDE_ATTENTION and in_quads
        constants = {"HEAD_SIZE": E}
        if wide:
            file, rows = "attention_wide", WIDE_ROWS
            across = FEW_ACROSS if others < MOST_OTHERS else MOST_ACROSS
            constants |= {"ACROSS": across, "OTHERS": others, "EACH": others // across}
            constants |= {"QUADS": E // 4, "COLUMNS": -(-E // (4 * across))}
        else:
            file, rows = "attention", min(attention_rows(E), 1 << (T - 1).bit_length())
            constants |= {"ROWS": rows}
        if kernel == "row_stats":
            rows = STATS_ROWS if wide else 1
        grid = -(-grid[0] // rows), *grid[1:]
        numbers = {"tokens": T, "heads": H, "group": H // heads.key.shape[2], "cap": heads.cap}
        root = 1 / math.sqrt(E)
        self.launch(file, kernel, grid, root=root, **constants, **arrays, **numbers)

    def write_cache(self, cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> Array:
        (B, T, G, E), S = new_BTGE.shape, cache_BSGE.shape[1]
        arrays = {"source": new_BTGE, "offset": offset_B, "copied": cache_BSGE}
        numbers = {"count": B * T * G * E, "tokens": T, "width": G * E, "slots": S}
        self.launch_on("cache", "write", B * T * G * E, **arrays, **numbers)
        return cache_BSGE

    def window_starts(
        self, starts_BT: Array, offset_B: Array, window: int, last: int, out_BT: Array
    ) -> None:
        B, T = starts_BT.shape
        arrays = {"starts": starts_BT, "offset": offset_B, "out": out_BT}
        numbers = {"count": B * T, "tokens": T, "window": window, "last": last}
        self.launch_on("cache", "windows", B * T, **arrays, **numbers)

    # ---- activations

    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array, kernel: str = "swiglu") -> None:
        self.launch_on_rows(kernel, out_NF, x=gate_NF, up=up_NF, out=out_NF)

    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
        kernel: str = "swiglu_backward",
    ) -> None:
        arrays = {"x": gate_NF, "up": up_NF, "dout": dout_NF, "dx": dgate_NF, "dup": dup_NF}
        out = {"out": dgate_NF if out_NF is None else out_NF, "writes_out": out_NF is not None}
        self.launch_on_rows(kernel, dout_NF, **arrays, **out)

    def geglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        self.swiglu(gate_NF, up_NF, out_NF, "geglu")

    def geglu_backward(
        self, dout_NF: Array, gate_NF: Array, up_NF: Array, dgate_NF: Array, dup_NF: Array
    ) -> None:
        arrays = dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, dout_NF
        self.swiglu_backward(*arrays, "geglu_backward")

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        self.launch_on_rows("gelu", x_NF, x=x_NF, out=out_NF)

    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        self.ungated_backward("gelu_backward", dout_NF, x_NF, dx_NF, out_NF)

    def relu2(self, x_NF: Array, out_NF: Array) -> None:
        self.launch_on_rows("relu2", x_NF, x=x_NF, out=out_NF)

    def relu2_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        self.ungated_backward("relu2_backward", dout_NF, x_NF, dx_NF, out_NF)

    def ungated_backward(
        self, kernel: str, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None
    ) -> None:
        out = {"out": dx_NF if out_NF is None else out_NF, "writes_out": out_NF is not None}
        self.launch_on_rows(kernel, x_NF, x=x_NF, dout=dout_NF, dx=dx_NF, **out)

    def soft_cap(self, x_NV: Array, cap: float, slope_NV: Array | None = None) -> None:
        slope = {"slope": x_NV if slope_NV is None else slope_NV}
        told = {"cap": cap, "writes_slope": slope_NV is not None}
        self.launch_on_rows("soft_cap", x_NV, x=x_NV, **slope, **told)

    def soft_cap_backward(self, dx_NV: Array, slope_NV: Array) -> None:
        self.launch_on_rows("multiply", dx_NV, x=dx_NV, slope=slope_NV)

    def dropout(self, x_NI: Array, seeds_N: Array, salt: int, share: float, out_NI: Array) -> None:
        N, F = x_NI.shape
        arrays = {"x": x_NI, "seeds": seeds_N, "out": out_NI}
        numbers = {"rows": N, "columns": F, "salt": salt, "threshold": int(threshold(share))}
        self.launch_on("dropout", "drop", N * F, **arrays, **numbers)

    def launch_on_rows(self, kernel: str, like: Array, **given: Any) -> None:
        """A kernel of activations.wgsl, on each element of arrays like `like`."""
        N, F = like.shape
        self.launch_on("activations", kernel, N * F, rows=N, columns=F, **given)


WIDE_ROWS, STATS_ROWS = 32, 8
"""Queries or keys of a workgroup of attention_wide.wgsl, and rows of one of its `row_stats`."""
MOST_ACROSS, FEW_ACROSS = 16, 8
"""Threads that share such a row: with 16 an H200 takes half of the time in heads of 64 numbers, but
2.7 times as long where the keys or queries at a time are 16."""
MOST_OTHERS = 32
"""Keys or queries that a workgroup takes at a time, where its memory holds them."""


def attention_others(kernel: str, head_size: int, workgroup_bytes: int) -> int:
    """Keys or queries that a workgroup of attention_wide.wgsl takes at a time: as many as its
    memory holds; 0: not even the fewest."""
    row, column = 16 * (head_size // 4 + 1), 16 * (WIDE_ROWS // 4 + 1)
    own, columns = (1, 1) if kernel == "forward" else (2, 2 if kernel == "key_gradient" else 1)
    for others in (MOST_OTHERS, 16, 8):
        tiles = (own * WIDE_ROWS + 2 * others) * row + columns * others * column
        if tiles + ROOM <= workgroup_bytes:
            return others
    return 0


def attention_rows(head_size: int) -> int:
    """Queries or keys of a workgroup of attention.wgsl: as many as its memory holds."""
    rows = sizes.ATTENTION_ROWS
    while rows * (2 * head_size + 2 * sizes.THREADS) > sizes.WORKGROUP_NUMBERS:
        rows //= 2
    return rows
