"""How kernels are loaded and launched, on a stub of CuPy: no GPU is needed to ask."""

import ctypes
import sys
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from nanoeuler.backend.cuda import kernels as module
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.cuda.kernels import (
    ByValue,
    Kernels,
    LaunchAttribute,
    LaunchConfiguration,
)

ROPE = KernelSources("bfloat16", "bfloat16").rope(64)


class Function:
    """A kernel, which notes the shared memory that is asked for."""

    def __init__(self):
        self.asked, self.kernel = [], SimpleNamespace(ptr=4321)

    def __setattr__(self, name, value):
        if name == "max_dynamic_shared_size_bytes":
            self.asked.append(value)
        object.__setattr__(self, name, value)


class Module:
    made: ClassVar[list] = []

    def __init__(self, code, options):
        self.options, self.functions = options, {}
        Module.made.append(self)

    def get_function(self, name):
        assert name not in self.functions, "loaded twice"
        return self.functions.setdefault(name, Function())


class Driver:
    """Notes launches: grid, threads, bytes of shared memory, number of attributes, arguments."""

    def __init__(self):
        self.launches = []
        self.kinds = ()  # C's types of the arguments

    def cuLaunchKernelEx(self, launch, function, pointers, extra):
        configuration = ctypes.cast(launch, ctypes.POINTER(LaunchConfiguration)).contents
        attribute: LaunchAttribute = configuration.attributes.contents
        assert (attribute.id, attribute.value) == (6, 1)
        assert (configuration.stream, function.value, extra) == (77, 4321, None)
        shape = list(configuration.grid), list(configuration.block), configuration.shared_bytes
        self.launches.append((*shape, configuration.attribute_count, self.read(pointers)))
        return 0

    def read(self, pointers):
        values = [kind.from_address(at) for kind, at in zip(self.kinds, pointers, strict=True)]
        return [value.raw if hasattr(value, "raw") else value.value for value in values]


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(module, "driver", lambda: driver)
    return driver


@pytest.fixture
def make_kernels(monkeypatch, driver):
    """Kernels of a device of this capability and a driver for this version of CUDA."""

    def make(capability=(9, 0), version=13_000):
        runtime = SimpleNamespace(driverGetVersion=lambda: version)
        stub = SimpleNamespace(RawModule=Module, cuda=SimpleNamespace(runtime=runtime))
        monkeypatch.setitem(sys.modules, "cupy", stub)
        monkeypatch.setattr(Module, "made", [])
        return Kernels(SimpleNamespace(ptr=77), capability)

    return make


def test_a_source_is_compiled_once_and_a_kernel_loaded_once(make_kernels, driver):
    kernels, driver.kinds = make_kernels(), (ctypes.c_int32,)
    for _ in range(3):
        kernels.launch(ROPE, "rope", 5, 256, 1)
        kernels.launch(ROPE, "other", (5, 2), 32, 1)
    (compiled,) = Module.made
    assert list(compiled.functions) == ["rope", "other"]
    assert driver.launches == 3 * [
        ([5, 1, 1], [256, 1, 1], 0, 0, [1]),
        ([5, 2, 1], [32, 1, 1], 0, 0, [1]),
    ]


def test_only_sources_that_need_sm_90a_are_compiled_for_it(make_kernels):
    from nanoeuler.backend.cuda import attention, fused_linear

    kernels = make_kernels()
    sources = ROPE, attention.source("bf16", 64, 1), attention.source("wgmma", 64, 1)
    for source in (*sources, fused_linear.source("Swiglu")):
        kernels.launch(source, "kernel", 1, 32)
    assert ["-arch=sm_90a" in compiled.options for compiled in Module.made] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("shared", [0, 1000, 40_000, 200_000])
def test_dynamic_shared_memory_is_asked_for_once(make_kernels, driver, shared):
    # 40,000 bytes beside static shared memory may be more than the 48 KB that need no asking
    kernels = make_kernels()
    for _ in range(2):
        kernels.launch(ROPE, "rope", 1, 32, shared=shared)
    assert Module.made[0].functions["rope"].asked == ([shared] if shared else [])
    assert [launch[2] for launch in driver.launches] == [shared] * 2


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, ctypes.c_void_p, None),
        (True, ctypes.c_int32, 1),
        (-3, ctypes.c_int32, -3),
        (0.1, ctypes.c_float, ctypes.c_float(0.1).value),
        (np.float64(0.1), ctypes.c_double, 0.1),
        (np.int64(1 << 40), ctypes.c_int64, 1 << 40),
        (SimpleNamespace(data=SimpleNamespace(ptr=1 << 40)), ctypes.c_void_p, 1 << 40),
        (ByValue(b"by value"), ctypes.c_char * 8, b"by value"),
    ],
)
def test_python_numbers_become_int_and_float_and_numpy_scalars_keep_their_type(
    make_kernels, driver, value, kind, expected, early
):
    driver.kinds = kind, ctypes.c_int32
    make_kernels().launch(ROPE, "rope", 1, 32, value, 7, early=early)
    assert driver.launches[0][-1] == [expected, 7]


@pytest.mark.parametrize(
    ("capability", "version", "overlaps"),
    [((9, 0), 12_030, True), ((9, 0), 12_020, False), ((8, 9), 13_000, False)],
)
def test_kernels_start_early_where_device_and_driver_can(
    make_kernels, driver, capability, version, overlaps
):
    kernels = make_kernels(capability, version)
    for early in (False, True):
        kernels.launch(ROPE, "rope", (3, 2), 128, shared=64, early=early)
    assert driver.launches == [
        ([3, 2, 1], [128, 1, 1], 64, attributes, []) for attributes in (0, int(overlaps))
    ]


@pytest.mark.parametrize(("version", "attributes"), [(12_030, 1), (12_020, 0)])
def test_a_prepared_launch_passes_on_what_was_changed(make_kernels, driver, version, attributes):
    driver.kinds = ctypes.c_char * 6, ctypes.c_float, ctypes.c_uint64, ctypes.c_int32
    array = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    prepared = make_kernels((9, 0), version).prepare(
        ROPE,
        "rope",
        (3, 2),
        128,
        *(ByValue(b"beforebehind", 2), 0.5, array, 7),
        shared=64,
        changing=slice(1, 3),
    )
    prepared.launch(0.5, 1 << 40)
    prepared.launch(0.25, 0, structure=1)
    prepared.launch(0.75, 1 << 40)
    shape = [3, 2, 1], [128, 1, 1], 64, attributes
    assert driver.launches == [
        (*shape, [b"before", 0.5, 1 << 40, 7]),
        (*shape, [b"behind", 0.25, 0, 7]),
        (*shape, [b"before", 0.75, 1 << 40, 7]),
    ]


def test_a_launch_that_the_driver_refuses_is_an_error(make_kernels, monkeypatch):
    refusing = SimpleNamespace(cuLaunchKernelEx=lambda *arguments: 1)
    monkeypatch.setattr(module, "driver", lambda: refusing)
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with status 1"):
        make_kernels().launch(ROPE, "rope", 1, 32)
