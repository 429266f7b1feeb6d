"""Compiling, keeping and launching kernels: the one place that talks to CuPy's modules and, for
launches, to the driver, whose own call takes half as long as CuPy's.

A kernel may be launched `early`, ahead of the end of the kernel before it (programmatic dependent
launch, compute capability 9.0 up; overlap.cuh says what kernels do with it). Under capture such a
launch becomes an edge of that kind in the graph.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:  # the sources can be compiled where CuPy is not installed
    import cupy


FOLDER = Path(__file__).parent
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One `.cu` file with its constants, ready for a compiler."""

    name: str
    constants: tuple[tuple[str, str | int], ...]
    exact: bool
    """Divisions, exponentials and roots are rounded as IEEE 754 asks. Otherwise the faster ones
    are taken, whose error lies far below that of bfloat16."""
    sm_90a: bool = False
    """Uses instructions that only compute capability 9.0 has: compile for sm_90a."""
    carveout: int | None = None
    """Percent of a multiprocessor's fast memory that is shared memory and not cache, at least; None
    leaves it to the driver."""

    def __hash__(self) -> int:
        return self.hashed

    @functools.cached_property
    def hashed(self) -> int:  # computed once: every launch looks its kernel up
        return hash((self.name, self.constants, self.exact))

    @property
    def code(self) -> str:
        """The text of the file with this folder's headers pasted in.

        A cache of compiled code, which knows kernels by their text, so sees changes of a header.
        """

        def expand(name: str) -> str:
            text = (FOLDER / name).read_text(encoding="utf-8")
            return INCLUDE.sub(lambda match: expand(match[1]), text)

        return expand(f"{self.name}.cu")

    @property
    def options(self) -> tuple[str, ...]:
        """For NVRTC, without the architecture.

        CuPy gives equal sources one function, which can have one carve-out only.
        """
        values = [f"-D{name}={value}" for name, value in self.constants]
        if self.carveout is not None:
            values.append(f"-DCARVEOUT={self.carveout}")
        return ("-std=c++17", *values, *([] if self.exact else ["--use_fast_math"]))


Grid: TypeAlias = "int | tuple[int, ...]"
Argument: TypeAlias = "cupy.ndarray | np.ndarray | np.generic | ByValue | float | None"

WARP = 32

HOPPER = (9, 0)
"""The compute capability that runs kernels compiled for sm_90a: wgmma and the copy engine."""

OVERLAPPING = (9, 0)
OVERLAPPING_DRIVER = 12_030
"""Compute capability, and CUDA version of the driver, from which on a kernel can start before the
one in front of it has ended, also in a graph."""

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class Kernels:
    """The kernels of one device, launched on one stream; each is compiled at its first launch."""

    def __init__(self, stream: cupy.cuda.Stream, capability: tuple[int, int]):
        import cupy

        self.stream = stream
        self.hopper = capability == HOPPER
        driver_version = cupy.cuda.runtime.driverGetVersion()
        self.overlaps = capability >= OVERLAPPING and driver_version >= OVERLAPPING_DRIVER
        self.modules: dict[Source, cupy.RawModule] = {}
        self.functions: dict[tuple[Source, str], cupy.RawKernel] = {}
        self.slots: dict[int, tuple[ctypes.Array, ctypes.Array]] = {}
        """By the number of a launch's arguments."""
        self.configurations: dict[tuple[Grid, int, int, bool], LaunchConfiguration] = {}

    def launch(
        self,
        source: Source,
        kernel: str,
        grid: Grid,
        threads: int,
        *arguments: Argument,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        """Launch `kernel` of `source` with `shared` bytes of dynamic shared memory.

        Python's whole numbers are passed as int, others as float, None as a null pointer; NumPy's
        scalars keep their type. `early`: where the device can, the kernel may start before the one
        in front of it has ended.
        """
        function = self.function(source, kernel, shared)
        count = len(arguments)
        if count not in self.slots:
            self.slots[count] = argument_slots(count)
        memory, pointers = self.slots[count]
        pack(memory, arguments)
        if count:
            given = arguments[0]
            pointers[0] = given.address if isinstance(given, ByValue) else ctypes.addressof(memory)
        form = grid, threads, shared, early
        if form not in self.configurations:
            self.configurations[form] = self.configuration(*form)
        launch = ctypes.byref(self.configurations[form])
        launch_kernel((launch, ctypes.c_void_p(function.kernel.ptr), pointers, None))

    def function(self, source: Source, kernel: str, shared: int) -> cupy.RawKernel:
        if (source, kernel) not in self.functions:
            if source not in self.modules:
                self.modules[source] = self.module(source)
            function = self.modules[source].get_function(kernel)
            if shared:  # beside static shared memory, even less than 48 KB has to be asked for
                function.max_dynamic_shared_size_bytes = shared
            if source.carveout is not None:
                function.preferred_shared_memory_carveout = source.carveout
            self.functions[source, kernel] = function
        return self.functions[source, kernel]

    def module(self, source: Source) -> cupy.RawModule:
        import cupy

        architecture = ("-arch=sm_90a",) if source.sm_90a else ()  # else that of the device
        return cupy.RawModule(code=source.code, options=(*source.options, *architecture))

    def prepare(
        self,
        source: Source,
        kernel: str,
        grid: Grid,
        threads: int,
        *arguments: Argument,
        shared: int = 0,
        changing: slice = slice(0),
    ) -> PreparedLaunch:
        """An early launch that is done many times; the arguments `changing` are others of the same
        types each time."""
        function = self.function(source, kernel, shared)
        configuration = self.configuration(grid, threads, shared, early=True)
        return PreparedLaunch(function.kernel.ptr, configuration, arguments, changing)

    def configuration(
        self, grid: Grid, threads: int, shared: int, early: bool
    ) -> LaunchConfiguration:
        blocks = (grid,) if isinstance(grid, int) else grid
        attribute = LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1, b"")
        return LaunchConfiguration(
            (*blocks, 1, 1)[:3],
            (threads, 1, 1),
            shared,
            self.stream.ptr,
            ctypes.pointer(attribute),
            int(early and self.overlaps),
        )


class ByValue:
    """A structure that a kernel takes by value, as its first argument; or for `PreparedLaunch` one
    of several of the same size."""

    def __init__(self, contents: bytes, count: int = 1):
        self.memory = ctypes.create_string_buffer(contents, len(contents))
        self.address, self.size = ctypes.addressof(self.memory), len(contents) // count


class PreparedLaunch:
    """A launch that is done many times, some neighbouring arguments of which change."""

    def __init__(
        self,
        handle: int,
        configuration: LaunchConfiguration,
        arguments: tuple[Argument, ...],
        changing: slice,
    ):
        self.memory, self.pointers = argument_slots(len(arguments))
        self.configuration = configuration
        pack(self.memory, arguments)
        self.structures = arguments[0] if isinstance(arguments[0], ByValue) else None
        self.changing = slot_layout(tuple(map(type, arguments[changing])))[0]
        self.offset = SLOT_BYTES * (changing.start or 0)
        self.given = ctypes.byref(configuration), ctypes.c_void_p(handle), self.pointers, None

    def refill(self, grid: tuple[int, ...], *arguments: Argument) -> None:
        """Another grid, and other arguments of the same types behind the structure."""
        self.configuration.grid = (*grid, 1, 1)[:3]
        pack(self.memory, (self.structures, *arguments) if self.structures else arguments)

    def launch(self, *changed: float | np.integer, structure: int = 0) -> None:
        """`changed`: those arguments, an array as its address. `structure` says which one of the
        first argument's is taken."""
        self.changing.pack_into(self.memory, self.offset, *changed)
        if self.structures:
            self.pointers[0] = self.structures.address + structure * self.structures.size
        launch_kernel(self.given)


def launch_kernel(given: tuple[Any, ...]) -> None:
    """`given`: configuration, kernel, the addresses of the arguments, and None."""
    status = driver().cuLaunchKernelEx(*given)
    if status:
        raise RuntimeError(f"cuLaunchKernelEx failed with status {status}")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute"""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


SLOT_BYTES = 8  # of an argument that is packed
SLOT_FORMATS: dict[type, str] = {
    int: "i4x",
    bool: "i4x",
    np.int32: "i4x",
    np.int64: "q",
    float: "f4x",
    np.float32: "f4x",
    np.float64: "d",
}


def argument_slots(count: int) -> tuple[ctypes.Array, ctypes.Array]:
    """Memory for so many arguments, and the address of each."""
    memory = ctypes.create_string_buffer(SLOT_BYTES * count)
    first = ctypes.addressof(memory)
    addresses = range(first, first + SLOT_BYTES * count, SLOT_BYTES)
    return memory, (ctypes.c_void_p * count)(*addresses)


def pack(memory: ctypes.Array, arguments: tuple[Argument, ...]) -> None:
    """Write arguments to slots of `SLOT_BYTES`."""
    layout, arrays, empty = slot_layout(tuple(map(type, arguments)))
    numbers: list[Any] = list(arguments)
    for index in arrays:
        numbers[index] = numbers[index].data.ptr
    for index in empty:
        numbers[index] = 0
    layout.pack_into(memory, 0, *numbers)


@functools.cache
def slot_layout(types: tuple[type, ...]) -> tuple[struct.Struct, list[int], list[int]]:
    """The slots of arguments of these types; which are arrays, and which are null or not read."""
    layout = "".join(SLOT_FORMATS.get(kind, "Q") for kind in types)
    empty = [i for i, kind in enumerate(types) if kind in (type(None), ByValue)]
    others = [i for i, kind in enumerate(types) if kind not in SLOT_FORMATS]
    return struct.Struct(f"={layout}"), [i for i in others if i not in empty], empty


def blocks(work: int, per_block: int) -> int:
    """Blocks that take all of `work`."""
    return -(-work // per_block)


def row_stride(array: cupy.ndarray) -> np.int64:
    """Elements from a row (a token) to the next: of the second last dimension but the heads'."""
    return np.int64(array.strides[-3 if array.ndim > 2 else -2] // array.itemsize)


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library."""
    return ctypes.CDLL("libcuda.so.1")
