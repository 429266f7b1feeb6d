"""Numbers of 8 bits for training: e4m3 copies of the operands of products, each with a scale.

A copy is written by the kernel that makes the operand, in the same launch. Its scale comes from the
largest magnitudes of earlier steps, which those kernels note (fp8.cu, fp8.cuh): a slot on the
device for each place in a step where a copy is made. Weights are scaled by their own magnitudes, at
the start of each step. The first step of a run computes in bf16 and only notes magnitudes.

Products find the copy of an operand by its address. A copy lives until its consumers have run, so
that copies of a kind share a buffer, and all wide ones do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS, HISTORY, KernelSources
from nanoeuler.backend.cuda.kernels import Kernels, blocks
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.records import Array, ModelWeights
from nanoeuler.errors import UserError

CAPABILITY = (8, 9)
"""The compute capability from which on products of e4m3 exist."""

DELAYED_SLOTS = 4096
"""Slots of operands that are not weights; a layer has eight."""

WORTH_QUANTIZING = 4096
"""Least rows: smaller products gain less than a further launch takes."""

MULTIPLE = 16
"""Rows and columns of an operand are multiples of it, as cuBLASLt asks."""

SHARED = {"attention": "norm", "dqkv": "normed"}
"""Kinds of copies whose memory another kind has left when they are written."""

MATRIX_BLOCKS = 96  # that share a matrix
SLOT_WORDS = 4  # inverse, scale, largest magnitude, saturated steps


class Quantized(NamedTuple):
    """An e4m3 copy, row-major, and its slot; None and None where there is none."""

    values: Array
    slot: Array


NOT_QUANTIZED = Quantized(None, None)


class Weight(NamedTuple):
    """A weight in e4m3, (out, in) and (in, out)."""

    along: Quantized
    across: Quantized


class Weights(NamedTuple):
    """The matrices of a model in e4m3, for as long as it lives: recorded work holds their
    addresses."""

    copies: dict[int, Weight]  # by the address of the original
    described: Array  # for the kernels
    slots: Array
    all_but: int | None
    """The address of the last norm's weight, if all matrices are in e4m3."""


class Fp8:
    """The slots of the model in training, and the copies of the pass at hand."""

    def __init__(
        self,
        kernels: Kernels,
        sources: KernelSources,
        scratch: Scratch,
        zeros: Callable[..., Array],
        from_host: Callable[..., Array],
        to_host: Callable[[Array], np.ndarray],
    ):
        """The last three are the engine's."""
        self.kernels, self.source, self.scratch = kernels, sources.fp8(), scratch
        self.zeros, self.from_host, self.to_host = zeros, from_host, to_host
        self.active = False
        """Is a training step being computed? All else is computed in bf16."""
        self.ready = False
        """Have magnitudes been noted, by a step or in a checkpoint?"""
        self.slots: Array = zeros((DELAYED_SLOTS, SLOT_WORDS), np.float32)
        self.history: Array = zeros((HISTORY, DELAYED_SLOTS), np.float32)
        self.names: dict[str, int] = {}
        self.counts: Counter[str] = Counter()  # of copies of each kind in this pass
        self.copies: dict[int, tuple[Array, Quantized]] = {}  # by the address of the original
        self.transposed: dict[int, Quantized] = {}  # copies with the tokens last, likewise
        self.awaits_input = False
        """Has the gradient of a product come as such a copy, and will its input be asked for?"""
        self.by_model: WeakKeyDictionary[ModelWeights, Weights] = WeakKeyDictionary()
        self.weights: dict[int, Weight] = {}  # of the model in training
        self.all_but: int | None = None

    # ---- a step

    def begin_step(self, weights: ModelWeights) -> None:
        """Make scales from what was noted so far, and quantize the weights."""
        self.begin_pass()  # copies hold memory that the step may want
        self.advance()
        if weights not in self.by_model:
            self.by_model[weights] = self.describe(weights)
        self.weights, matrices, slots, self.all_but = self.by_model[weights]
        slots[...] = 0
        grid = MATRIX_BLOCKS, len(slots)
        for kernel in ("magnitudes", "quantize"):
            self.kernels.launch(self.source, kernel, grid, ELEMENTWISE_THREADS, matrices, slots)

    def advance(self) -> None:
        grid = blocks(DELAYED_SLOTS, ELEMENTWISE_THREADS)
        arrays = self.slots, self.history, DELAYED_SLOTS
        self.kernels.launch(self.source, "advance", grid, ELEMENTWISE_THREADS, *arrays)

    def begin_pass(self) -> None:
        """A micro-batch begins: its operands take the slots of the one before."""
        self.counts.clear()
        self.copies.clear()
        self.transposed.clear()
        self.awaits_input = False

    def describe(self, weights: ModelWeights) -> Weights:
        """Memory for the weights in e4m3, and how kernels find it."""
        found = [weights.heads]
        for block in weights.blocks:
            found += [getattr(block, field.name) for field in fields(block)]
        found = [array for array in found if array is not None and array.ndim == 2]
        matrices = [matrix for matrix in found if fits(matrix)]
        all_but = weights.final_norm.data.ptr if len(matrices) == len(found) else None
        slots = self.zeros((len(matrices), SLOT_WORDS), np.float32)
        description = np.zeros(len(matrices), [("pointers", np.uint64, 3), ("shape", np.int32, 2)])
        copies = {}
        for index, matrix in enumerate(matrices):
            along, across = (
                self.zeros(shape, np.uint8) for shape in (matrix.shape, matrix.shape[::-1])
            )
            addresses = [array.data.ptr for array in (matrix, along, across)]
            description[index] = addresses, matrix.shape
            slot = slots[index]
            weight = Weight(Quantized(along, slot), Quantized(across, slot))
            copies[matrix.data.ptr] = weight
        return Weights(copies, self.from_host(description.view(np.uint8)), slots, all_but)

    # ---- copies

    def output(
        self, kind: str, array: Array, *, wide: bool = False, in_place: bool = False
    ) -> Quantized:
        """Destination of the e4m3 copy of `array`; with `in_place`, its own memory."""
        self.copies.pop(array.data.ptr, None)
        if len(array) < WORTH_QUANTIZING or not fits(array):
            return NOT_QUANTIZED
        copy = Quantized(self.memory(kind, array, wide, in_place), self.slot(kind))
        self.copies[array.data.ptr] = array, copy
        return copy

    def memory(self, kind: str, array: Array, wide: bool, in_place: bool) -> Array:
        if in_place:
            return array.reshape(-1).view(np.uint8)[: array.size].reshape(array.shape)
        purpose = "wide" if wide else SHARED.get(kind, kind)
        return self.scratch.take(f"e4m3 {purpose}", (array.shape, np.uint8))[0]

    def transposed_output(
        self, kind: str, array: Array, slot: Array | None = None, *, in_place: bool = False
    ) -> Quantized:
        """Destination of a transposed copy (tokens last), with a slot of its own unless given."""
        slot = self.slot(kind) if slot is None else slot
        values = self.memory(kind, array, False, in_place).reshape(array.shape[::-1])
        copy = self.transposed[array.data.ptr] = Quantized(values, slot)
        return copy

    def spares(self, weight_D: Array) -> bool:
        """Does nobody read the output of a norm otherwise than from its copy?

        The last norm's is a factor of the heads' gradient, too.
        """
        return self.ready and self.all_but not in (None, weight_D.data.ptr)

    def slot(self, kind: str) -> Array:
        """The slot of the next copy of a kind in this pass."""
        name = f"{kind} {self.counts[kind]}"
        self.counts[kind] += kind != "dlogits"  # parts of one array
        return self.slots[self.index(name)]

    def index(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def measure(self, array: Array, copy: Quantized) -> None:
        """Note the magnitudes of `array` where the kernel that wrote it did not."""
        grid = blocks(array.size, 64 * ELEMENTWISE_THREADS)
        arrays = array, np.int64(array.size), copy.slot
        self.kernels.launch(self.source, "measure", grid, ELEMENTWISE_THREADS, *arrays)

    def operand(self, array: Array) -> Quantized:
        """The copy of an array that was written, or of some of its rows."""
        for start, (original, (values, slot)) in self.copies.items():
            first = (array.data.ptr - start) // original.itemsize
            if first >= 0 and first + array.size <= original.size:
                part = values.reshape(-1)[first : first + array.size]
                return Quantized(part.reshape(array.shape), slot)
        return NOT_QUANTIZED

    def forget(self, array: Array) -> None:
        """`array`, or the one that it is a part of, is about to be changed."""
        for start, (original, _) in list(self.copies.items()):
            if start <= array.data.ptr < start + original.nbytes:
                del self.copies[start]

    def operands(
        self, x: Array, weight: Array, *, across: bool = False
    ) -> tuple[Quantized, Quantized] | None:
        """The factors of x Wᵀ, or with `across` of x W, where both are in e4m3."""
        if not (self.active and self.ready) or weight.data.ptr not in self.weights:
            return None
        left = self.operand(x)
        if left.values is None:
            return None
        return left, self.weights[weight.data.ptr][across]

    def turns(self, dout: Array, weight: Array) -> bool:
        """Are the factors there of the gradients of a product's weight and of its input?"""
        addresses = dout.data.ptr, weight.data.ptr
        return self.active and addresses[0] in self.transposed and addresses[1] in self.weights

    def transposed_operands(self, dout: Array, x: Array) -> tuple[Quantized, Quantized] | None:
        """The factors of doutᵀ x, where both are there with the tokens last."""
        pair = dout.data.ptr, x.data.ptr
        if not (self.active and self.ready and all(address in self.transposed for address in pair)):
            return None
        return self.transposed.pop(pair[0]), self.transposed.pop(pair[1])

    # ---- the state

    @property
    def state(self) -> dict[str, list[float]]:
        """Scale, largest magnitude, saturated steps and history of each slot by name.

        Setting it resets slots that it lacks; an empty state makes the next step the first.
        """
        slots, history = self.to_host(self.slots), self.to_host(self.history)
        counts = slots.view(np.uint32)[:, 3]
        return {
            name: [*map(float, (slots[i, 1], slots[i, 2], counts[i])), *map(float, history[:, i])]
            for name, i in self.names.items()
            if slots[i, 2] or history[:, i].any()
        }

    @state.setter
    def state(self, saved: dict[str, list[float]]) -> None:
        if not all(len(values) == 3 + HISTORY for values in saved.values()):
            raise UserError(
                "the checkpoint's state.json: the magnitudes of fp8 are not those of this version; "
                "delete the checkpoint and run again"
            )
        slots = np.zeros((DELAYED_SLOTS, SLOT_WORDS), np.float32)
        history = np.zeros((HISTORY, DELAYED_SLOTS), np.float32)
        for name, (scale, largest, saturated, *earlier) in saved.items():
            index = self.index(name)  # which a recorded step may know already
            slots[index, 1], slots[index, 2] = scale, largest
            slots.view(np.uint32)[index, 3] = int(saturated)
            history[:, index] = earlier
        self.slots[...], self.history[...] = self.from_host(slots), self.from_host(history)
        self.ready = bool(saved)

    @property
    def saturated(self) -> int:
        """Copies so far that held a value too large for their scale."""
        return int(self.to_host(self.slots).view(np.uint32)[:, 3].sum())


def check_capability(device: str, capability: tuple[int, int]) -> None:
    """Raise `UserError` for a device without products of e4m3."""
    if capability < CAPABILITY:
        found, needed = (".".join(map(str, version)) for version in (capability, CAPABILITY))
        raise UserError(
            f"precision fp8: {device} has compute capability {found}, and fp8 needs {needed} "
            "(RTX 40, H100) or newer; set precision: bf16"
        )


def fits(array: Array) -> bool:
    """Is this a matrix whose copy a product can read?"""
    return (
        array.ndim == 2
        and array.flags.c_contiguous
        and all(size % MULTIPLE == 0 for size in array.shape)
    )
