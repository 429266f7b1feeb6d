"""Work that an engine does again and again on the same arrays, and the inputs handed to it."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


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
