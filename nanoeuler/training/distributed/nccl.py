"""Ranks with a GPU each, whose arrays go from device to device through NCCL.

Every call is put on the engine's stream, so that it can be part of a recorded step, and sums of
gradients on a second one, on which they are made while the engine computes. NCCL gives the same
bits for the same number of ranks on the same devices.
"""

import ctypes
from collections.abc import Sequence

import cupy
from cupy.cuda import nccl

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.backend.records import Array
from nanoeuler.training.distributed.group import HostGroup, losing, within

HIGHEST = -5  # priority of a stream
TYPES = {"int32": nccl.NCCL_INT32, "float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}


class NcclGroup(HostGroup):
    """What the host has to say still goes through the connections of `group`."""

    def __init__(self, group: HostGroup, engine: CudaBackend):
        super().__init__(group.rank, group.size, group.peers)
        self.stream = engine.stream
        # ahead of the step's kernels, which otherwise leave no room for it
        self.reducing = cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        self.event = cupy.cuda.Event(disable_timing=True)
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
        for array in arrays:
            at, count, kind = described(array)
            self.communicator.allReduce(at, at, count, kind, nccl.NCCL_SUM, self.stream.ptr)

    def largest(self, array: Array) -> None:
        at, count, kind = described(array)
        self.communicator.allReduce(at, at, count, kind, nccl.NCCL_MAX, self.stream.ptr)

    def begin_reduce(self, array: Array, cuts: Sequence[int], parts: Sequence[slice]) -> None:
        self.stream.record(self.event)
        self.reducing.wait_event(self.event)
        nccl.groupStart()
        for part in parts:
            for rank, own in enumerate(within(part, cuts)):
                at, count, kind = described(array[own])
                if count:
                    sums = kind, nccl.NCCL_SUM, rank, self.reducing.ptr
                    self.communicator.reduce(at, at, count, *sums)
        nccl.groupEnd()

    def finish_reduce(self) -> None:
        self.reducing.record(self.event)
        self.stream.wait_event(self.event)

    def gather(self, array: Array, cuts: Sequence[int]) -> None:
        nccl.groupStart()
        for rank in range(self.size):
            part = array[cuts[rank] : cuts[rank + 1]]
            sent = part.data.ptr, part.nbytes, nccl.NCCL_INT8
            self.communicator.bcast(*sent, rank, self.stream.ptr)
        nccl.groupEnd()


def described(array: Array) -> tuple[int, int, int]:
    """Address, number of elements and type."""
    return array.data.ptr, array.size, TYPES[array.dtype.name]
