"""Threads that compute one thing together, and wait for each other in compiled code.

A team is (part, parts, gate): each of `parts` threads runs the same function with a number of its
own. Where one needs what the others computed, all meet at the gate. They look at a counter until
the last one is there, since waking a thread would take longer than a layer's product.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.backend.cpu.simd import INT, data_pointer
from nanoeuler.system.compiling import compiled

ARRIVED, OPENED = 0, 16
"""Places of a gate's counters: how many threads wait, and how often it opened. They lie in cache
lines of their own."""
FOR_GOOD = -(1 << 62)
LOOKS = 2000
"""Looks at a closed gate, after which a thread gives its processor to another one."""


def new_gate() -> np.ndarray:
    return np.zeros(2 * OPENED, np.int64)


@contextlib.contextmanager
def opening(gate: np.ndarray) -> Iterator[None]:
    """A part that fails within lets all others through: what they compute is of no use."""
    try:
        yield
    except BaseException:
        gate[OPENED] = FOR_GOOD
        raise


@intrinsic
def add_at(context, values, at, number):
    """values[at] += number, as one operation among all threads. Returns the old value."""

    def generate(context, builder, signature, arguments):
        base = data_pointer(context, builder, signature.args[0], arguments[0])
        place = builder.gep(base, [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(values, types.intp, types.int64), generate


@intrinsic
def give_way(context):
    """Let another thread have the processor."""

    def generate(context, builder, signature, arguments):
        function_type = ir.FunctionType(INT, [])
        builder.call(
            cgutils.get_or_insert_function(builder.module, function_type, "sched_yield"), []
        )
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def value_at(context, values, at):
    """values[at], as other threads wrote it last."""

    def generate(context, builder, signature, arguments):
        base = data_pointer(context, builder, signature.args[0], arguments[0])
        return builder.load_atomic(builder.gep(base, [arguments[1]]), "seq_cst", 8)

    return types.int64(values, types.intp), generate


@compiled()
def meet(team):
    """Wait until all parts of the team are here; each sees what the others wrote before."""
    _, parts, gate = team
    if parts == 1:
        return
    opened = value_at(gate, OPENED)
    if add_at(gate, ARRIVED, 1) == parts - 1:
        add_at(gate, ARRIVED, -parts)
        add_at(gate, OPENED, 1)
        return
    looks = 0
    while opened >= 0 and value_at(gate, OPENED) == opened:
        looks += 1
        if looks > LOOKS:
            give_way()


@compiled()
def share(count, team, multiple):
    """The first, and the one behind the last, of what a part takes of `count` things: a multiple of
    `multiple`, or what is left."""
    part, parts, _ = team
    units = (count + multiple - 1) // multiple
    first, stop = units * part // parts * multiple, units * (part + 1) // parts * multiple
    return min(first, count), min(stop, count)
