"""Collective work of the ranks of a training stage.

Rank 0 leads: it alone decides, writes files and talks to people. It tells the others which call
comes next (`tell`), and they make the same call (`heed`). The arrays of a step go through
`begin_gather`, `begin_reduce` and `sum`, in which every rank takes part.

Each rank updates one part of the flat buffers, from `cuts[rank]` to `cuts[rank + 1]`.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from nanoeuler import log
from nanoeuler.backend.records import Array
from nanoeuler.model.weights_file import from_bf16, to_bf16

Value = TypeVar("Value")


class Group:
    """A single process: collectives are no-ops."""

    rank = 0
    size = 1

    def tell(self, call: str, *arguments: Any) -> None:
        """On rank 0: let the others make a call next. The arguments are plain values."""

    def heed(self) -> tuple[str, tuple[Any, ...]]:
        """On the other ranks: wait for the next call; its name and arguments."""
        raise RuntimeError("rank 0 heeds nobody")

    def admit(self) -> None:
        """On rank 0, when all inputs were read: let the other ranks begin."""
        self.tell("begin")

    def collect(self, value: Any) -> list[Any]:
        """On rank 0: the plain values of the other ranks, which call it, too; else nothing."""
        return []

    def exchange(self, value: Any) -> list[Any]:
        """The plain values of all ranks, in order, on every rank."""
        return [value]

    def share(self, count: int, compute: Callable[[int], Value]) -> Iterator[Value]:
        """compute(0) … compute(count − 1) in order, on every rank; each rank computes some."""
        for first in range(0, count, self.size):
            own = first + self.rank
            values = self.exchange(compute(own) if own < count else None)
            yield from values[: count - first]

    def sum(self, *arrays: Array) -> None:
        """Each array ← its sum over all ranks, the same bits everywhere."""

    def largest(self, array: Array) -> None:
        """A device's array of integers ← their largest over all ranks."""

    def begin_reduce(
        self,
        array: Array,
        cuts: Sequence[int],
        parts: Sequence[slice],
        *,
        rounded: bool = False,
        ordered: bool = False,
    ) -> None:
        """Within some parts of a flat array, what this rank updates ← its sum over all ranks.

        The rest of these parts then means nothing. An engine may go on computing meanwhile, but
        not with these parts before `finish_reduce`. `rounded`: numbers and sums travel as bfloat16.
        `ordered`: sums are those of `Runtime.add_neighbours`.
        """

    def finish_reduce(self) -> None:
        """Wait for all sums that were begun."""

    def gather(self, array: Array, cuts: Sequence[int]) -> None:
        """The parts of the other ranks ← what they hold there."""
        self.begin_gather(array, cuts, [slice(0, len(array))])()

    def begin_gather(
        self, array: Array, cuts: Sequence[int], parts: Sequence[slice]
    ) -> Callable[[], None]:
        """Within some parts of a flat array, what the other ranks update ← what they hold there.

        An engine may go on computing meanwhile, but with these parts only behind the call that is
        returned.
        """
        return nothing_to_wait_for


def nothing_to_wait_for() -> None:
    pass


ALONE = Group()


class Lost(Exception):
    """Another rank has ended, so that this one can't go on."""


class HostGroup(Group):
    """Ranks whose arrays are the host's, connected by sockets; sums are made by rank 0.

    Always in one order, so that a run with as many of them has the same bits: neighbours first,
    then the sums of these, as in `Runtime.add_neighbours`.
    """

    def __init__(self, rank: int, size: int, peers: Sequence[Connection]):
        """`peers`: on rank 0 its connections to the others, in order; on those the one to it."""
        self.rank, self.size, self.peers = rank, size, peers
        self.received: dict[tuple[int, np.dtype, int], np.ndarray] = {}

    def tell(self, call: str, *arguments: Any) -> None:
        with losing():
            for peer in self.peers:
                peer.send((call, arguments))

    def heed(self) -> tuple[str, tuple[Any, ...]]:
        with losing():
            return self.peers[0].recv()

    def collect(self, value: Any) -> list[Any]:
        with losing():
            if self.rank:
                self.peers[0].send(value)
                return []
            return [peer.recv() for peer in self.peers]

    def exchange(self, value: Any) -> list[Any]:
        values = [value, *self.collect(value)]
        if self.rank:
            values = list(self.heed()[1])
        else:
            self.tell("values", *values)
        return values

    def ends_within(self, seconds: float) -> bool:
        """On another rank than 0: whether rank 0 ends within that time."""
        (leader,) = self.peers
        with contextlib.suppress(OSError):
            if not leader.poll(seconds):
                return False
            with socket.socket(fileno=os.dup(leader.fileno())) as same:
                return not same.recv(1, socket.MSG_PEEK)  # a call to come may take much memory
        return True

    def sum(self, *arrays: Array) -> None:
        for array in arrays:
            with losing():
                if self.rank:
                    self.peers[0].send_bytes(as_bytes(array))
                    self.peers[0].recv_bytes_into(as_bytes(array))
                else:
                    self.add_others(array)
                    self.send_all(array)

    def begin_reduce(
        self,
        array: Array,
        cuts: Sequence[int],
        parts: Sequence[slice],
        *,
        rounded: bool = False,
        ordered: bool = False,  # as these always are
    ) -> None:
        for part in parts:
            owned = within(part, cuts)
            if rounded:
                self.reduce_rounded(array, part, owned)
                continue
            with losing():
                if self.rank:
                    self.peers[0].send_bytes(as_bytes(array[part]))
                    self.peers[0].recv_bytes_into(as_bytes(array[owned[self.rank]]))
                else:
                    self.add_others(array[part])
                    for peer, own in zip(self.peers, owned[1:], strict=True):
                        peer.send_bytes(as_bytes(array[own]))

    def reduce_rounded(self, array: np.ndarray, part: slice, owned: Sequence[slice]) -> None:
        own, halves = owned[self.rank], to_bf16(array[part].astype(np.float32, copy=False))
        with losing():
            if self.rank:
                self.peers[0].send_bytes(as_bytes(halves))
                sums = np.empty(own.stop - own.start, halves.dtype)
                self.peers[0].recv_bytes_into(as_bytes(sums))
            else:
                total, other = from_bf16(halves), np.empty_like(halves)
                for peer in self.peers:
                    peer.recv_bytes_into(as_bytes(other))
                    total += from_bf16(other)
                rounded = to_bf16(total)
                sums, *others = [rounded[o.start - part.start : o.stop - part.start] for o in owned]
                for peer, sent in zip(self.peers, others, strict=True):
                    peer.send_bytes(as_bytes(sent))
        array[own] = from_bf16(sums)

    def begin_gather(
        self, array: Array, cuts: Sequence[int], parts: Sequence[slice]
    ) -> Callable[[], None]:
        for part in parts:
            owned = [array[own] for own in within(part, cuts)]
            with losing():
                if self.rank:
                    self.peers[0].send_bytes(as_bytes(owned[self.rank]))
                    self.peers[0].recv_bytes_into(as_bytes(array[part]))
                else:
                    for peer, own in zip(self.peers, owned[1:], strict=True):
                        peer.recv_bytes_into(as_bytes(own))
                    self.send_all(array[part])
        return nothing_to_wait_for

    def add_others(self, array: np.ndarray) -> None:
        sums: list[tuple[int, np.ndarray]] = [(1, array)]  # with the number of ranks in each
        for peer in self.peers:
            count, new = 1, self.like(array, len(sums))
            peer.recv_bytes_into(as_bytes(new))
            while sums and sums[-1][0] == count:
                _, earlier = sums.pop()
                earlier += new
                count, new = 2 * count, earlier
            sums.append((count, new))
        while len(sums) > 1:
            _, new = sums.pop()
            sums[-1][1][...] += new

    def send_all(self, array: np.ndarray) -> None:
        for peer in self.peers:
            peer.send_bytes(as_bytes(array))

    def like(self, array: np.ndarray, number: int) -> np.ndarray:
        """An array for what another rank sends of this size and type."""
        key = array.size, array.dtype, number
        if key not in self.received:
            self.received[key] = np.empty_like(array)
        return self.received[key]


def within(part: slice, cuts: Sequence[int]) -> list[slice]:
    """The slice of `part` that each rank updates, possibly empty."""
    inside = [min(max(cut, part.start), part.stop) for cut in cuts]
    return [slice(start, stop) for start, stop in pairwise(inside)]


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.view(np.uint8).data


@contextlib.contextmanager
def losing() -> Iterator[None]:
    """Raise `Lost` where the other end of a connection is gone."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise Lost from error


def stop_all(reason: str) -> None:
    """On rank 0: end this process, and with it the other ranks, one of which can't go on."""
    log.line(
        "error",
        f"{reason}; the other ranks are stopped; run the same command again, which goes on from "
        "the last checkpoint if there is one",
    )
    os._exit(1)
