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


class HostCopy:
    """A small array that comes to the host again and again."""

    def __init__(self, array: Array):
        self.array = array

    def start(self) -> None:
        """Copy the array as it is after the work asked for so far; the host need not wait."""
        self.copy = np.array(self.array)

    def wait(self) -> np.ndarray:
        """The copy that was started last."""
        return self.copy


class Feed:
    """Small arrays that come from the host before each run of a program.

    Here they are the host's own. An engine with a device copies them to `arrays`, which then stay
    where they are.
    """

    def __init__(self, arrays: list[np.ndarray]):
        """`arrays` have the shapes and types of all that will be loaded."""
        self.arrays: list[Array] = arrays

    def load(self, *arrays: np.ndarray) -> None:
        """The arrays of the next run. A device may copy them while it is still at work on the last
        one."""
        self.arrays = list(arrays)
