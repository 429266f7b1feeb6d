"""The GPU that WebGPU offers: which adapters there are, which one is taken, and its limits."""

import contextlib
import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.errors import UserError
from nanoeuler.system.machine import memory

if TYPE_CHECKING:
    import wgpu

INSTALL = "install it with make install EXTRAS=webgpu, or with pip install wgpu"
SOFTWARE = "CPU"
NVIDIA = 0x10DE
KINDS = {
    "DiscreteGPU": "a GPU",
    "IntegratedGPU": "a GPU within the processor",
    SOFTWARE: "software",
}
"""What wgpu calls adapters, from the best on, and what they are."""
INTERFACES = ("Vulkan", "Metal", "D3D12")
"""By which adapters are reached, from the best on. Not OpenGL: it lacks what the kernels need."""
DEVICES = Path("/dev")
SIGNS = ("dri/renderD*", "nvidia*", "nvhost*", "mali*", "kgsl*", "dxg")
"""What Linux has there for each GPU; dxg is WSL2's."""
ASSUMED_MEMORY = 4 << 30
"""Bytes of a GPU with memory of its own, at least: WebGPU does not tell how many it has."""
WANTED = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
)
"""Limits that are asked for as the adapter has them; of others the standard's defaults do."""

HALVES = "shader-f16"
WANTED_FEATURES = (HALVES, "timestamp-query")
"""Features that are asked for where the adapter has them; the second is for benchmarks."""


@functools.cache
def adapters() -> "list[wgpu.GPUAdapter]":
    """The adapters that the engine can use, the best first; a GPU that answers by way of two
    interfaces counts once."""
    import wgpu
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    known: dict[tuple[Any, ...], wgpu.GPUAdapter] = {}
    with runtime_folder():
        found = wgpu.gpu.enumerate_adapters_sync()
    for adapter in sorted(found, key=rank):
        info = adapter.info
        if info["backend_type"] in INTERFACES:
            known.setdefault((info["vendor_id"], info["device_id"], info["adapter_type"]), adapter)
    return list(known.values())


@contextlib.contextmanager
def runtime_folder() -> Iterator[None]:
    """Libraries that look for a screen complain on standard error where this folder is not set."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ[name]


def rank(adapter: "wgpu.GPUAdapter") -> tuple[int, int]:
    kinds, interfaces = list(KINDS), list(INTERFACES)
    kind, interface = adapter.info["adapter_type"], adapter.info["backend_type"]
    return (
        kinds.index(kind) if kind in kinds[:-1] else len(kinds) + (kind == SOFTWARE),
        interfaces.index(interface) if interface in interfaces else len(interfaces),
    )


def is_software(adapter: "wgpu.GPUAdapter") -> bool:
    return adapter.info["adapter_type"] == SOFTWARE


def describe(adapter: "wgpu.GPUAdapter") -> str:
    """For people: name, kind and interface."""
    info = adapter.info
    kind = KINDS.get(info["adapter_type"], "of an unknown kind")
    return f"{info['device']} ({kind}, by {info['backend_type']})"


def found(*, chosen: bool = False) -> str | None:
    """Why there is no adapter to compute on, in one sentence; None when there is one.

    `chosen`: one that is taken without being asked for: a GPU, not a program of the processor, and
    not a card of NVIDIA that CUDA_VISIBLE_DEVICES hides.
    """
    if importlib.util.find_spec("wgpu") is None:
        return f"wgpu is not installed; {INSTALL}"
    # to import wgpu takes more than a second, for every command
    if chosen and sys.platform == "linux" and not any(any(DEVICES.glob(sign)) for sign in SIGNS):
        return f"no GPU shows itself in {DEVICES}"
    try:
        usable = [adapter for adapter in adapters() if not chosen or may_be_chosen(adapter)]
    except Exception as error:  # wgpu raises what its library says, of any type
        return f"wgpu does not start ({one_line(error)})"
    if not usable:
        return "no GPU answers by Vulkan, Metal or Direct3D 12; install its driver"
    return None


def may_be_chosen(adapter: "wgpu.GPUAdapter") -> bool:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_software(adapter) and not (hidden and adapter.info["vendor_id"] == NVIDIA)


def described() -> str | None:
    """The adapters, for people; None without wgpu or without any."""
    if found():
        return None
    return ", ".join(map(describe, adapters()))


def one_line(error: Exception) -> str:
    """wgpu's messages have several lines: the last one says what is wrong."""
    return next(filter(None, map(str.strip, reversed(str(error).splitlines()))), repr(error))


class Device:
    """The adapter that this process computes on, opened."""

    shared = False  # WebGPU does not tell
    address = None  # nor this

    def __init__(self, adapter: "wgpu.GPUAdapter"):
        self.adapter, self.name = adapter, adapter.info["device"]
        self.software = is_software(adapter)
        limits = {name: adapter.limits[name] for name in WANTED}
        features = [feature for feature in WANTED_FEATURES if feature in adapter.features]
        try:
            self.opened: wgpu.GPUDevice = adapter.request_device_sync(
                required_limits=limits, required_features=features
            )
        except Exception as error:
            raise UserError(
                f"--device webgpu: {self.name} cannot be opened ({one_line(error)}); end other "
                "programs that use it, or renew its driver"
            ) from error
        self.has_halves = HALVES in features
        """Do its kernels read numbers of 16 bits?"""
        self.binding_limit = self.opened.limits["max-storage-buffer-binding-size"]
        self.workgroup_bytes = self.opened.limits["max-compute-workgroup-storage-size"]
        self.workgroup_threads = self.opened.limits["max-compute-invocations-per-workgroup"]
        self.buffer_limit = self.opened.limits["max-buffer-size"]
        own = adapter.info["adapter_type"] == "DiscreteGPU"
        self.memory = ASSUMED_MEMORY if own else memory() // 2

    @property
    def free_memory(self) -> int:
        return self.memory


@functools.cache
def device() -> Device:
    """The best adapter, opened once in a process. Raises `UserError` where there is none."""
    if problem := found():
        raise UserError(f"--device webgpu: {problem}")
    return Device(adapters()[0])
