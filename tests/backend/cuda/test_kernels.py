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
    argument,
)

ROPE = KernelSources("bfloat16", "bfloat16").rope(64)


class Function:
    """A kernel that notes its launches."""

    def __init__(self):
        self.launches, self.asked, self.kernel = [], [], SimpleNamespace(ptr=4321)

    def __call__(self, grid, block, arguments, **options):
        self.launches.append((grid, block, arguments, options))

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


@pytest.fixture
def make_kernels(monkeypatch):
    """Kernels of a device of this capability and a driver for this version of CUDA."""

    def make(capability=(9, 0), driver=13_000):
        runtime = SimpleNamespace(driverGetVersion=lambda: driver)
        stub = SimpleNamespace(RawModule=Module, cuda=SimpleNamespace(runtime=runtime))
        monkeypatch.setitem(sys.modules, "cupy", stub)
        monkeypatch.setattr(Module, "made", [])
        return Kernels(SimpleNamespace(ptr=77), capability)

    return make


def test_a_source_is_compiled_once_and_a_kernel_loaded_once(make_kernels):
    kernels = make_kernels()
    for _ in range(3):
        kernels.launch(ROPE, "rope", 5, 256, 1)
        kernels.launch(ROPE, "other", (5, 2), 32, 1)
    (compiled,) = Module.made
    assert {name: len(f.launches) for name, f in compiled.functions.items()} == {
        "rope": 3,
        "other": 3,
    }
    grid, block, arguments, options = compiled.functions["rope"].launches[0]
    assert (grid, block, arguments) == ((5,), (256,), (np.int32(1),))
    assert options == {"shared_mem": 0, "stream": kernels.stream}


def test_only_sources_that_need_sm_90a_are_compiled_for_it(make_kernels):
    from nanoeuler.backend.cuda import attention, fused_linear

    kernels = make_kernels()
    sources = ROPE, attention.source("bf16", 64, 1), attention.source("wgmma", 64, 1)
    for source in (*sources, fused_linear.source("gated")):
        kernels.launch(source, "kernel", 1, 32)
    assert ["-arch=sm_90a" in compiled.options for compiled in Module.made] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("shared", [0, 1000, 40_000, 200_000])
def test_dynamic_shared_memory_is_asked_for_once(make_kernels, shared):
    # 40,000 bytes beside static shared memory may be more than the 48 KB that need no asking
    kernels = make_kernels()
    for _ in range(2):
        kernels.launch(ROPE, "rope", 1, 32, shared=shared)
    function = Module.made[0].functions["rope"]
    assert function.asked == ([shared] if shared else [])
    assert [options["shared_mem"] for *_, options in function.launches] == [shared] * 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, np.uint64(0)),
        (True, np.int32(1)),
        (-3, np.int32(-3)),
        (0.1, np.float32(0.1)),
        (np.float64(0.1), np.float64(0.1)),
        (np.int64(5), np.int64(5)),
    ],
)
def test_python_numbers_become_int_and_float_and_numpy_scalars_keep_their_type(value, expected):
    found = argument(value)
    assert found == expected
    assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    ("capability", "driver", "overlaps"),
    [((9, 0), 12_030, True), ((9, 0), 12_020, False), ((8, 9), 13_000, False)],
)
def test_kernels_start_early_where_device_and_driver_can(
    make_kernels, monkeypatch, capability, driver, overlaps
):
    found = []

    def launch_kernel(launch, function, pointers, extra):
        configuration = ctypes.cast(launch, ctypes.POINTER(LaunchConfiguration)).contents
        attribute: LaunchAttribute = configuration.attributes.contents
        numbers = [
            kind.from_address(address).value
            for kind, address in zip(
                (ctypes.c_int32, ctypes.c_float, ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p),
                pointers,
                strict=True,
            )
        ]
        found.append((list(configuration.grid), list(configuration.block), numbers))
        assert (configuration.shared_bytes, configuration.stream) == (64, 77)
        assert (configuration.attribute_count, attribute.id, attribute.value) == (1, 6, 1)
        assert function.value == 4321
        return 0

    monkeypatch.setattr(module, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=launch_kernel))
    kernels = make_kernels(capability, driver)
    array = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    values = 7, 0.5, np.float64(0.25), array, None
    kernels.launch(ROPE, "rope", (3, 2), 128, *values, shared=64, early=True)
    assert kernels.overlaps == overlaps
    if overlaps:
        assert found == [([3, 2, 1], [128, 1, 1], [7, 0.5, 0.25, 1 << 40, None])]
    else:
        assert len(Module.made[0].functions["rope"].launches) == 1


@pytest.mark.parametrize(("driver", "attributes"), [(12_030, 1), (12_020, 0)])
def test_a_prepared_launch_passes_on_what_was_changed(
    make_kernels, monkeypatch, driver, attributes
):
    found = []

    def launch_kernel(launch, function, pointers, extra):
        configuration = ctypes.cast(launch, ctypes.POINTER(LaunchConfiguration)).contents
        assert (configuration.attribute_count, configuration.shared_bytes) == (attributes, 64)
        kinds = (ctypes.c_char * 6, ctypes.c_float, ctypes.c_uint64, ctypes.c_int32)
        values = [kind.from_address(at) for kind, at in zip(kinds, pointers, strict=True)]
        found.append([values[0].raw, *(value.value for value in values[1:])])
        return 0

    monkeypatch.setattr(module, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=launch_kernel))
    array = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    prepared = make_kernels((9, 0), driver).prepare(
        ROPE, "rope", (3, 2), 128, ByValue(b"before"), 0.5, array, 7, shared=64
    )
    prepared.launch()
    ctypes.memmove(prepared.structure, b"behind", 6)
    prepared.numbers[1:] = 0.25, 0, 8
    prepared.launch()
    assert found == [[b"before", 0.5, 1 << 40, 7], [b"behind", 0.25, 0, 8]]


def test_a_launch_that_the_driver_refuses_is_an_error(make_kernels, monkeypatch):
    refusing = SimpleNamespace(cuLaunchKernelEx=lambda *arguments: 1)
    monkeypatch.setattr(module, "driver", lambda: refusing)
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with status 1"):
        make_kernels().launch(ROPE, "rope", 1, 32, early=True)
