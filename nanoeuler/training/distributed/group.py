"""What the ranks of a training stage do together, and a rank that is alone.

Rank 0 leads: it alone decides, writes files and talks to people. It tells the others which call
comes next (`tell`), and they make the same call (`heed`). The arrays of a step go through
`reduce`, `sum` and `gather`, in which every rank takes part.

Each rank updates one part of the flat buffers, from `cuts[rank]` to `cuts[rank + 1]`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nanoeuler.backend.records import Array

Result = TypeVar("Result")


class Group:
    """A rank that is alone: everything is done already."""

    rank = 0
    size = 1

    def tell(self, call: str, *arguments: Any) -> None:
        """On rank 0: let the others make a call next. `arguments` are plain values."""

    def heed(self) -> tuple[str, tuple[Any, ...]]:
        """On the other ranks: wait for the next call; its name and arguments."""
        raise NotImplementedError("a rank that is alone has nobody to heed")

    def after_leader(self, work: Callable[[], Result]) -> Result:
        """`work()`, which the other ranks begin when rank 0 has ended it."""
        return work()

    def sum(self, *arrays: Array) -> None:
        """Each array ← its sum over all ranks, the same bits everywhere."""

    def reduce(self, array: Array, cuts: Sequence[int]) -> None:
        """This rank's part of a flat array ← its sum over all ranks; the rest means nothing."""

    def gather(self, array: Array, cuts: Sequence[int]) -> None:
        """The parts of the other ranks ← what they hold there."""


ALONE = Group()
