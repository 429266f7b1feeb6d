"""Ranks with a GPU each, whose arrays go from device to device through NCCL.

Every call is put on the engine's stream, so that it can be part of a recorded step, or on a second
one, on which weights and sums of gradients move while the engine computes. NCCL gives the same bits
for the same number of ranks on the same devices.
"""

import ctypes
from collections.abc import Callable, Sequence

import cupy
from cupy.cuda import nccl

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.backend.cuda.parts import BFLOAT16
from nanoeuler.backend.records import Array
from nanoeuler.training.distributed.group import HostGroup, losing, within

HIGHEST = -5  # priority of a stream
TYPES = {
    "int32": nccl.NCCL_INT32,
    "bfloat16": nccl.NCCL_BFLOAT16,
    "float32": nccl.NCCL_FLOAT32,
    "float64": nccl.NCCL_FLOAT64,
}


class NcclGroup(HostGroup):
    """Messages of the host still go through the connections of `group`."""

    def __init__(self, group: HostGroup, engine: CudaBackend):
        super().__init__(group.rank, group.size, group.peers)
        self.engine, self.stream = engine, engine.stream
        self.rounded: list[tuple[Array, Array]] = []
        """Sums that were begun, in bfloat16, and where they go."""
        self.in_order: list[tuple[Array, Array]] = []
        """What the ranks sent, in their order, and where its sum goes."""
        # ahead of the step's kernels, which otherwise leave no room for it
        self.moving = cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        if self.rank:  # rank 0 connects when it lets the others begin, as this one just did
            self.connect()

    def admit(self) -> None:
        super().admit()
        self.connect()

    def connect(self) -> None:
        """Meet the other ranks, which takes until the last of them is there."""
        with losing():
            if self.rank:
                identity = self.peers[0].recv()
            else:
                identity = nccl.get_unique_id()
                for peer in self.peers:
                    peer.send(identity)
        self.communicator = nccl.NcclCommunicator(self.size, identity, self.rank)
        # its destructor would wait for recorded steps that live longer: the process's end is it
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.communicator))

    def sum(self, *arrays: Array) -> None:
        nccl.groupStart()
        for array in arrays:
            at, count, kind = described(array)
            self.communicator.allReduce(at, at, count, kind, nccl.NCCL_SUM, self.stream.ptr)
        nccl.groupEnd()

    def largest(self, array: Array) -> None:
        at, count, kind = described(array)
        self.communicator.allReduce(at, at, count, kind, nccl.NCCL_MAX, self.stream.ptr)

    def begin_reduce(
        self,
        array: Array,
        cuts: Sequence[int],
        parts: Sequence[slice],
        *,
        rounded: bool = False,
        ordered: bool = False,
    ) -> None:
        if ordered:
            self.begin_ordered(array, cuts, parts)
            return
        sums = array
        if rounded:
            (sums,) = self.engine.scratch.take("sums", (array.shape, BFLOAT16))
            for part in parts:
                self.engine.refresh(sums[part], array[part])
        wait_for(self.stream, self.moving)
        nccl.groupStart()
        for part in parts:
            for rank, own in enumerate(within(part, cuts)):
                at, count, kind = described(sums[own])
                if count:
                    how = kind, nccl.NCCL_SUM, rank, self.moving.ptr
                    self.communicator.reduce(at, at, count, *how)
                if count and rounded and rank == self.rank:
                    self.rounded.append((sums[own], array[own]))
        nccl.groupEnd()

    def begin_ordered(self, array: Array, cuts: Sequence[int], parts: Sequence[slice]) -> None:
        """Send each rank all of what it updates: NCCL's own sums have another order for each number
        of ranks."""
        wait_for(self.stream, self.moving)
        nccl.groupStart()
        for part in parts:
            owned = within(part, cuts)
            own = owned[self.rank]
            shape = self.size, own.stop - own.start
            purpose = f"received {len(self.in_order)}"
            (received,) = self.engine.scratch.take(purpose, (shape, array.dtype))
            for rank, sent in enumerate(owned):
                at, count, kind = described(array[sent])
                if count:
                    self.communicator.send(at, count, kind, rank, self.moving.ptr)
                at, count, kind = described(received[rank])
                if count:
                    self.communicator.recv(at, count, kind, rank, self.moving.ptr)
            if shape[1]:
                self.in_order.append((received, array[own]))
        nccl.groupEnd()

    def finish_reduce(self) -> None:
        wait_for(self.moving, self.stream)
        for received, target in self.in_order:
            self.engine.runtime.add_neighbours(list(received))
            target[...] = received[0]
        self.in_order.clear()
        for sums, target in self.rounded:
            self.engine.widen(sums, target)
        self.rounded.clear()

    def begin_gather(
        self, array: Array, cuts: Sequence[int], parts: Sequence[slice]
    ) -> Callable[[], None]:
        wait_for(self.stream, self.moving)
        nccl.groupStart()
        for part in parts:
            for rank, own in enumerate(within(part, cuts)):
                sent = array[own].data.ptr, array[own].nbytes, nccl.NCCL_INT8
                if array[own].size:
                    self.communicator.bcast(*sent, rank, self.moving.ptr)
        nccl.groupEnd()
        moved = cupy.cuda.Event(disable_timing=True)
        self.moving.record(moved)
        return lambda: self.stream.wait_event(moved)


def wait_for(first: cupy.cuda.Stream, then: cupy.cuda.Stream) -> None:
    """Later work on `then` starts after all work on `first`."""
    event = cupy.cuda.Event(disable_timing=True)
    first.record(event)
    then.wait_event(event)


def described(array: Array) -> tuple[int, int, int]:
    """Address, number of elements and type."""
    return array.data.ptr, array.size, TYPES[array.dtype.name]
