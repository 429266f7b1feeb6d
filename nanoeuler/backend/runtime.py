"""How an engine's work is repeated, fed, shared and waited for, and where arrays lie: everything
beside its ops.

`Runtime` is that of an engine that computes on the host, at once. An engine with threads or a
device derives its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from nanoeuler.backend.records import Array, ModelWeights


class Program:
    """Work that always uses the same arrays and looks at no value.

    Here each run does the work; an engine with a device may record it once and replay it.
    """

    def __init__(self, function: Callable[[], None]):
        self.function = function

    def run(self) -> None:
        self.function()


class HostRing:
    """A small array on its way to the host, as each run of a program leaves it.

    A run writes to the next of a few slots, so that as many runs may be under way.
    """

    def __init__(self, array: Array, slots: int):
        self.array, self.slots = array, slots
        self.runs, self.taken = 0, 0
        self.contents: dict[int, np.ndarray] = {}

    def write(self) -> None:
        """Write the array as it is now. The last part of a program: one that fails has not written,
        so that host and device count the same slots."""
        self.contents[self.runs % self.slots] = np.array(self.array)

    def expect(self) -> None:
        """A program that writes was just asked for."""
        self.runs += 1

    def forget(self) -> None:
        """Nothing of what was asked for so far will be taken."""
        self.taken = self.runs

    @property
    def waiting(self) -> int:
        """Runs that were asked for and not taken."""
        return self.runs - self.taken

    def take(self) -> np.ndarray:
        """The oldest pending result, once it is written."""
        self.taken += 1
        return self.content((self.taken - 1) % self.slots)

    def content(self, slot: int) -> np.ndarray:
        return self.contents[slot]


class Feed:
    """Small arrays that come from the host before each run of a program.

    Here they are the host's own. An engine with a device copies them to `arrays`, which then stay
    where they are.
    """

    def __init__(self, arrays: list[np.ndarray]):
        """`arrays` have the shapes and types of all that will be loaded."""
        self.arrays: list[Array] = arrays

    def load(self, *arrays: np.ndarray) -> None:
        """The arrays of the next run. The last one may be shorter than it is in `arrays`.

        A device may copy them while it is still at work on the last run.
        """
        self.arrays = list(arrays)


class Runtime:
    """The services of an engine beside its ops, for training, decoding and checks."""

    # ---- programs

    def feed(self, arrays: list[np.ndarray]) -> Feed:
        """Where host arrays of these shapes and types are handed over."""
        return Feed(arrays)

    def program(
        self, function: Callable[[], None], *, training: bool = False, untimed: bool = False
    ) -> Program:
        """`function` as work to be done again and again, always on the same arrays.

        `training`: it is a training step. It will run often, so an engine may take time to find
        out how to run it fast, unless it is `untimed`: it runs once, for a check, or is to have
        the same bits wherever it runs.
        """
        return Program(function)

    def host_ring(self, array: Array, slots: int) -> HostRing:
        """A small array that programs write to the host, with so many runs under way."""
        return HostRing(array, slots)

    def enter_thread(self) -> None:
        """Let what this thread asks for next be work of this engine, in its order.

        Called in a thread other than the one that made the engine, and where a thread goes from
        one engine to another.
        """

    def finish(self) -> None:
        """Wait until all work asked for is done."""

    # ---- the rows of a training step, shared

    def slices(self, elements: int) -> tuple[int, int]:
        """Tokens that a replica computes at once, and the number of replicas that share a step.

        For a model of that many parameters; fewer tokens where memory asks for it.
        """
        return 8192, 1

    lane_tokens = 8192
    """Tokens that are computed at once where sums do not depend on it: see training/lanes.py."""
    least_lane_tokens = 0
    """Tokens of a lane below which a step has fewer of them."""

    def replicas(self, engine: Any, elements: int, lanes: int = 0) -> list[Any]:
        """Engines like `engine` that share a step's rows, for a model of that many parameters.

        Each computes gradients of its own, which `sum_into` adds. The first is `engine` itself
        where it is the only one. `lanes`: those of training/lanes.py that they share, if any.
        """
        return [engine]

    def side_by_side(self, count: int, work: Callable[[int], None]) -> None:
        """work(0) … work(count − 1), together where the engine can."""
        for index in range(count):
            work(index)

    def sum_into(self, target: Array, others: Sequence[Array]) -> None:
        """target += others, in their order."""
        for other in others:
            target += other

    def add_neighbours(self, arrays: Sequence[Array]) -> None:
        """The first ← the sum of all, a power of two of them: neighbours are added up first, then
        neighbours of these sums. The others may be overwritten."""
        distance = 1
        while distance < len(arrays):
            for first in range(0, len(arrays), 2 * distance):
                self.sum_into(arrays[first], [arrays[first + distance]])
            distance *= 2

    # ---- weights and number formats of a training step

    def training_weights(self, weights: ModelWeights) -> ModelWeights:
        """The weights as the forward pass of training reads them, up to date.

        The same values; an engine may keep them in another memory layout.
        """
        return weights

    @property
    def prepares_weights(self) -> bool:
        """Does `training_weights` read them?"""
        return False

    @property
    def scales(self) -> dict[str, list[float]]:
        """fp8 scales by tensor name, saved in checkpoints; empty for a new training and for other
        formats.
        """
        return {}

    @scales.setter
    def scales(self, saved: dict[str, list[float]]) -> None:
        pass

    @property
    def noted(self) -> Array | None:
        """Magnitudes of this step as integers, of which ranks take the largest."""
        return None

    @property
    def saturated(self) -> int | None:
        """Arrays so far that held a number too large for their format; None where none can."""
        return None


# ---- arrays laid out side by side


Arrays = TypeVar("Arrays")
ALIGNMENT = 256
"""Bytes: CUDA's own allocations start on multiples of it; a CPU's cache lines are shorter."""

NOTHING = bytes(16)
"""The one element that all elements of an array without memory are."""


class Allocator(Protocol):
    """Allocates an arena's memory."""

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array: ...


class Arena:
    """Hands out arrays one behind the other, in one block of memory, which is zero at first.

    The same code lays them out twice: in an arena without memory, which only counts, and in one
    with as much as was counted. Plans, `nanoeuler info` and "rows that fit" read the count alone.
    """

    def __init__(self, memory: Array | None = None):
        """`memory` is a flat array of bytes; without it the arena counts, and hands out arrays
        that have a shape and no memory."""
        self.memory, self.taken = memory, 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        start, size = self.taken, math.prod(shape) * dtype.itemsize
        self.taken += -(-size // ALIGNMENT) * ALIGNMENT
        if self.memory is None:
            return np.ndarray(shape, dtype, NOTHING, strides=(0,) * len(shape))
        return self.memory[start : start + size].view(dtype).reshape(shape)

    def overlay(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, Array]:
        """Two arrays in the same memory: the first is no longer read when the second is written."""
        start = self.taken
        first = self.empty(shape, dtype)
        self.taken = start
        return first, self.empty(shape, dtype)


def count_bytes(lay_out: Callable[[Arena], Any]) -> int:
    """The memory that `lay_out` takes."""
    arena = Arena()
    lay_out(arena)
    return arena.taken


def in_one_block(lay_out: Callable[[Arena], Arrays], allocator: Allocator) -> Arrays:
    """The arrays of `lay_out`, in one block of memory from `allocator`."""
    return lay_out(Arena(allocator.zeros((count_bytes(lay_out),), np.uint8)))
