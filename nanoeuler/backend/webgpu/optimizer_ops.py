"""The optimizer's update: the gradient's norm, updates by element, and Muon. See update.wgsl."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nanoeuler.backend.records import FlatState, MatrixGroup, MuonConstants, ParameterRun
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray
from nanoeuler.backend.webgpu.parts import FLOAT32
from nanoeuler.backend.webgpu.products import ProductOps

Array = DeviceArray
LEAST_BETA = 1e-30
"""In place of a beta of 0, which has no logarithm."""
NO_RUN = -1.0
"""The rate of elements that no run covers."""


class OptimizerOps(ProductOps):
    def __init__(self, precision: str = "fp32"):
        super().__init__(precision)
        self.kept_rates: dict[tuple[Any, ...], Array] = {}
        self.kept_offsets: dict[tuple[int, ...], Array] = {}

    def squares(self, values: Array) -> Array:
        count, parts = sizes.SQUARES_PARTS, self.parts_of(values)
        squares = self.kernels.take("squares", (len(parts), count), np.float64)
        for part, found in zip(parts, squares, strict=True):
            arrays, told = {"values": values[part], "squares": found}, {"parts": count}
            size = part.stop - part.start
            self.launch("update", "squared_norm", (count,), **arrays, **told, count=size)
        return squares.reshape(-1)

    def begin_update(
        self, squares: Array, schedule_2: Array, losses_2: Array, report_2: Array, clip_norm: float
    ) -> Array:
        scalars = self.kernels.take("update", (4,), np.float64)
        arrays = {"squares": squares, "schedule": schedule_2, "losses": losses_2}
        outputs = {"report": report_2, "scalars": scalars}
        told = {"parts": len(squares), "clip_norm": clip_norm}
        told["loss_scale"] = self.loss_scale
        self.launch("update", "prepare", (1,), **arrays, **outputs, **told)
        return scalars

    def move(
        self,
        rule: str,
        flat: FlatState,
        tensors: Sequence[Array],
        runs: Sequence[ParameterRun],
        constants: Sequence[float],
        scalars: Array,
    ) -> None:
        arrays = {"parameters": flat.parameters, "gradients": flat.gradients}
        arrays |= dict(zip(("first", "second"), tensors, strict=False))
        beta1, beta2, *epsilon, decay = constants
        numbers = {"beta1": beta1, "rest1": 1 - beta1, "beta2": beta2, "rest2": 1 - beta2}
        numbers["weight_decay"] = decay
        if epsilon:  # of AdamW
            # 1 - beta^t is taken by logarithms: the power itself would be rounded to 1
            logs = (math.log(max(beta, LEAST_BETA)) for beta in (beta1, beta2))
            numbers |= dict(zip(("log_beta1", "log_beta2"), logs, strict=True))
            numbers["epsilon"] = epsilon[0]
        rates = self.rates(tuple(runs), flat.parameters.size)
        for part in self.parts_of(flat.parameters):
            seen = {name: array[part] for name, array in arrays.items()}
            told = {"scalars": scalars, "rates": rates[part.start // sizes.RATE_BLOCK :]}
            count = part.stop - part.start
            self.launch_on("update", rule, count, count=count, **seen, **told, **numbers)

    def rates(self, runs: tuple[ParameterRun, ...], size: int) -> Array:
        """Factors of the learning rate and of its product with the weight decay, for each block of
        `RATE_BLOCK` elements. Kept, as recorded programs hold it."""
        layout = tuple((run.part.start, run.part.stop, run.decays, run.rate) for run in runs)
        if layout not in self.kept_rates:
            rates = np.full((-(-size // sizes.RATE_BLOCK), 2), NO_RUN, np.float32)
            for start, stop, decays, rate in layout:
                blocks = slice(start // sizes.RATE_BLOCK, -(-stop // sizes.RATE_BLOCK))
                rates[blocks] = rate, rate * decays
            self.kept_rates[layout] = self.from_host(rates)
        return self.kept_rates[layout]

    def muon(
        self,
        flat: FlatState,
        momentum: Array,
        groups: Sequence[MatrixGroup],
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        for group in groups:
            for run in self.near_each_other(group):
                self.muon_run(flat, momentum, run, constants, scalars)

    def muon_run(
        self,
        flat: FlatState,
        momentum: Array,
        group: MatrixGroup,
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        """`muon` on the matrices of a group that a kernel can see at once."""
        R, K, C = group.rows, group.columns, len(group.offsets)
        small, parts = min(R, K), sizes.MUON_PARTS
        x, other = (self.kernels.take(f"muon {name}", (C, R, K)) for name in "xy")
        squares = [self.kernels.take(f"muon {name}", (C, small, small)) for name in "gs"]
        partial = self.kernels.take("muon", (C, parts), np.float64)
        first = group.offsets[0]
        part = slice(first, group.offsets[-1] + R * K)
        offsets = self.offsets(tuple(offset - first for offset in group.offsets))
        given = {"offsets": offsets, "scalars": scalars}
        told = {"size": R * K, "parts": parts}
        read = {"gradients": flat.gradients[part], "first": momentum[part], "partial": partial}
        mu = {"beta1": constants.momentum, "rest1": 1 - constants.momentum}
        self.launch("update", "momentum", (parts, C), x=x, **given, **read, **told, **mu)
        self.launch("update", "normalize", (parts, C), x=x, partial=partial, **told)
        update = {"x": self.orthogonalize(x, other, squares, constants.polynomials)}
        update["parameters"] = flat.parameters[part]
        how = {"scale": group.scale, "weight_decay": constants.weight_decay}
        self.launch("update", "apply", (parts, C), **given, **update, **told, **how)

    def near_each_other(self, group: MatrixGroup) -> Iterator[MatrixGroup]:
        """The group cut where a kernel could not see all of its matrices at once."""
        size, most = group.rows * group.columns, self.kernels.most_bytes // FLOAT32.itemsize
        offsets: tuple[int, ...] = ()
        for offset in sorted(group.offsets):
            seen = offset + size - (*offsets, offset)[0]
            if offsets and max(seen, size * (len(offsets) + 1)) > most:
                yield group._replace(offsets=offsets)
                offsets = ()
            offsets = (*offsets, offset)
        yield group._replace(offsets=offsets)

    def orthogonalize(
        self,
        x_CRK: Array,
        other_CRK: Array,
        squares: list[Array],
        polynomials: Sequence[tuple[float, float, float]],
    ) -> Array:
        """The matrices made orthogonal, in one of the two arrays; `squares` is scratch."""
        gram, polynomial = squares
        wide = x_CRK.shape[1] <= x_CRK.shape[2]
        for a, b, c in polynomials:
            across = x_CRK if wide else transposed(x_CRK)
            self.multiply(across, across, gram)
            self.multiply(gram, gram, polynomial, c, gram, b)  # which are symmetric
            left, right = (polynomial, transposed(x_CRK)) if wide else (x_CRK, polynomial)
            self.multiply(left, right, other_CRK, 1.0, x_CRK, a)
            x_CRK, other_CRK = other_CRK, x_CRK
        return x_CRK

    def offsets(self, offsets: tuple[int, ...]) -> Array:
        """Where matrices lie, on the device. Kept like `rates`."""
        if offsets not in self.kept_offsets:
            self.kept_offsets[offsets] = self.from_host(np.array(offsets, np.int32))
        return self.kept_offsets[offsets]


def transposed(x_CRK: Array) -> Array:
    """(C, K, R)"""
    return x_CRK.like(x_CRK.layout().swapaxes(1, 2))
