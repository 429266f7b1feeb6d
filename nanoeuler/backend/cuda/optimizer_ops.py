"""The optimizer's update on a GPU: the gradient's norm, updates by element, and Muon."""

from collections.abc import Sequence

import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.kernel_sources import (
    ELEMENTWISE_THREADS,
    MUON_PARTS,
    NORM_THREADS,
    RATE_BLOCK,
    STEP_SCALARS,
    WIDTH,
)
from nanoeuler.backend.cuda.kernels import blocks
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.records import (
    FlatState,
    MatrixGroup,
    MuonConstants,
    ParameterRun,
)


class OptimizerOps(CudaParts):
    """Kernels of update.cu and muon.cu."""

    def begin_update(
        self,
        squares: Array,
        schedule_2: Array,
        losses_2: Array,
        report_2: Array,
        clip_norm: float,
    ) -> Array:
        (scalars,) = self.scratch.take("update", ((STEP_SCALARS,), np.float64))
        inputs = squares, len(squares), schedule_2, losses_2
        arguments = *inputs, np.float64(clip_norm), scalars, report_2
        self.launch(self.sources.update(), "prepare", 1, ELEMENTWISE_THREADS, *arguments)
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
        source, size = self.sources.update(), flat.parameters.size
        working = None if flat.working is flat.parameters else flat.working
        arrays = flat.parameters, working, flat.gradients, *tensors
        told = self.rates(tuple(runs), size), np.int64(size), scalars
        corrected = self.scratch.take("corrected", ((2,), np.float32)) if rule == "adamw" else []
        if corrected:
            betas = map(np.float64, constants[:2])
            self.launch(source, "correct", 1, 1, scalars, *betas, *corrected)
        numbers = *corrected, *map(float, constants)
        self.launch_elementwise(source, rule, size, *arrays, *told, *numbers)

    def muon(
        self,
        flat: FlatState,
        momentum: Array,
        groups: Sequence[MatrixGroup],
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        source = self.sources.muon()
        working = None if flat.working is flat.parameters else flat.working
        for group in groups:
            count, size = len(group.offsets), np.int64(group.rows * group.columns)
            grid, offsets = (MUON_PARTS, count), self.offsets(group.offsets)
            shape = (count, group.rows, group.columns), self.activation
            square = (count, *2 * (min(group.rows, group.columns),)), self.activation
            x, other, *squares, partial = self.scratch.take(
                "muon", shape, shape, square, square, ((count, MUON_PARTS), np.float32)
            )
            inputs = flat.gradients, momentum, offsets, size, scalars, constants.momentum
            self.launch(source, "momentum", grid, ELEMENTWISE_THREADS, *inputs, x, partial)
            self.launch(source, "normalize", grid, ELEMENTWISE_THREADS, x, partial, size)
            y = self.orthogonalize(x, other, squares, constants.polynomials)
            outputs = flat.parameters, working, offsets, size, y, scalars
            numbers = group.scale, constants.weight_decay
            self.launch(source, "apply", grid, ELEMENTWISE_THREADS, *outputs, *numbers)

    def orthogonalize(
        self,
        x_CRK: Array,
        other_CRK: Array,
        squares: list[Array],
        polynomials: Sequence[tuple[float, float, float]],
    ) -> Array:
        """The matrices made orthogonal, in one of the two arrays; `squares` is scratch."""
        multiply, (gram, polynomial) = self.products.multiply, squares
        wide = x_CRK.shape[1] <= x_CRK.shape[2]
        for a, b, c in polynomials:
            multiply(x_CRK, not wide, x_CRK, wide, gram)
            multiply(gram, False, gram, False, polynomial, c, gram, b)
            left, right = (polynomial, x_CRK) if wide else (x_CRK, polynomial)
            multiply(left, False, right, False, other_CRK, 1.0, x_CRK, a)
            x_CRK, other_CRK = other_CRK, x_CRK
        return x_CRK

    def offsets(self, offsets: tuple[int, ...]) -> Array:
        """Where matrices lie, on the device. Kept like `flags`, and for the same reason."""
        if offsets not in self.kept_offsets:
            self.kept_offsets[offsets] = self.from_host(np.array(offsets, np.int64))
        return self.kept_offsets[offsets]

    def squares(self, values: Array) -> Array:
        most = 4 * self.device.multiprocessors
        parts = min(most, blocks(values.size, NORM_THREADS * WIDTH))
        (partial,) = self.scratch.take("squares", ((most,), np.float64))
        if parts < most:
            partial[parts:] = 0
        arrays = values, np.int64(values.size), partial
        self.launch(self.sources.update(), "squared_norm", parts, NORM_THREADS, *arrays)
        return partial

    def squares_of_cells(self, values: Array, cells: Sequence[slice], sums: Array) -> None:
        bounds = self.offsets(tuple(end for cell in cells for end in (cell.start, cell.stop)))
        arrays = values, bounds, sums
        self.launch(self.sources.lanes(1), "squares_of_cells", len(cells), NORM_THREADS, *arrays)

    def rates(self, runs: tuple[ParameterRun, ...], size: int) -> Array:
        """Factors of the learning rate and of its product with the weight decay, for each block of
        `RATE_BLOCK` elements: see update.cu.

        Unlike scratch memory this is kept: its content is made on the host, which a graph cannot
        repeat. There is one array for each layout of tensors, so one for a model.
        """
        layout = tuple((run.part.start, run.part.stop, run.decays, run.rate) for run in runs)
        if layout not in self.kept_rates:
            rates = np.zeros((blocks(size, RATE_BLOCK), 2), np.float32)
            for start, stop, decays, rate in layout:
                rates[start // RATE_BLOCK : blocks(stop, RATE_BLOCK)] = rate, rate * decays
            self.kept_rates[layout] = self.from_host(rates)
        return self.kept_rates[layout]
