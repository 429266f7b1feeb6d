"""The GPU that a process works on: which one, whether it is usable, and how fast it is."""

import functools
import importlib.util
from pathlib import Path
from typing import BinaryIO

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.temporary import lock_file, lock_path

INSTALL = (
    "install the CUDA libraries with requirements/install.sh cuda13 (cuda12 for a driver below 580)"
)
NO_GPU = "no NVIDIA GPU answers (nvidia-smi shows what the driver sees)"
CAPABILITY = (8, 0)
MAJOR, MINOR = 75, 76  # cudaDeviceAttr: compute capability
MEMORY_ALLOCATION = 2  # cudaError_t
LEAST_MEMORY = 256 << 20
"""Bytes that libraries and kernels take before there is any array."""

PEAKS = {  # TFLOP/s of dense products in bf16, tf32 and fp32, by the vendor's datasheets
    "H200": (989, 494, 67),
    "H100": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "L40S": (362, 183, 91.6),
    "RTX 4090": (165, 82.6, 82.6),
    "RTX 3090": (71, 35.6, 35.6),
}


def found() -> str | None:
    """Why there is no usable GPU, in one sentence; None when there is one."""
    for package in ("cupy", "ml_dtypes"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed; {INSTALL}"
    try:
        import cupy
    except ImportError as error:
        return f"CuPy does not start ({error}); {INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "insufficient" in str(error) and Path("/proc/driver/nvidia/version").exists():
            return (
                "the NVIDIA driver is too old for the installed CUDA libraries;"
                f" update it, or {INSTALL}"
            )
        return NO_GPU
    if count == 0:
        return NO_GPU
    capabilities = [capability(index) for index in range(count)]
    if max(capabilities) < CAPABILITY:
        best = ".".join(map(str, max(capabilities)))
        return (
            f"the GPU has compute capability {best};"
            " the CUDA engine needs 8.0 (RTX 30, A100) or newer"
        )
    return None


def capability(index: int) -> tuple[int, int]:
    from cupy.cuda.runtime import deviceGetAttribute

    # CuPy's own way needs some of the device's memory, which may be full
    return deviceGetAttribute(MAJOR, index), deviceGetAttribute(MINOR, index)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Operations per second by the device's datasheet; None for a device that is not listed."""
    rates = next((rates for name, rates in PEAKS.items() if name in device_name), None)
    # fp8 is compared with bf16, in which a part of it is computed
    column = {"bf16": 0, "fp8": 0, "tf32": 1, "fp32": 2}[precision]
    return rates[column] * 1e12 if rates else None


def usable() -> list[int]:
    """The devices that the engine can use."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    return [index for index in range(count) if capability(index) >= CAPABILITY]


class Device:
    """The GPU that this process has taken."""

    def __init__(self) -> None:
        import cupy

        names = {index: cupy.cuda.runtime.deviceGetPCIBusId(index) for index in usable()}
        self.index, self.lease = take_free(names)
        self.address = names[self.index]
        try:
            cupy.cuda.Device(self.index).use()
            free = self.free_memory
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != MEMORY_ALLOCATION:
                raise
            free = 0  # not even for what the driver takes
        if free < LEAST_MEMORY:
            raise UserError(
                f"GPU {self.index}: {free / 1e6:.0f} MB of its memory are free, too few to begin; "
                "end the other processes that nvidia-smi shows on it"
            )
        properties = cupy.cuda.runtime.getDeviceProperties(self.index)
        self.name = properties["name"].decode()
        self.capability = capability(self.index)
        self.multiprocessors = properties["multiProcessorCount"]
        self.memory = properties["totalGlobalMem"]

    @property
    def shared(self) -> bool:
        """Whether another process of nanoeuler has it, too."""
        return self.lease is None

    @property
    def free_memory(self) -> int:
        """Bytes that are free on the device, including those that CuPy's pool does not use."""
        import cupy

        return cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()


def take_free(names: dict[int, str]) -> tuple[int, BinaryIO | None]:
    """The first device that no other process of this user holds, and its open lock file, which
    holds it as long as this process lives.

    `names` of the devices are those of the physical ones: CUDA_VISIBLE_DEVICES and Slurm renumber
    them. Without the lock, two jobs that ask for one GPU each would share the first. Where all
    devices are held, the first is shared, and a line of the log says so.
    """
    for index, name in names.items():
        lock = lock_device(name)
        if lock is not None:
            return index, lock
    first = min(names)
    log.line("device", f"every GPU is in use by another process of nanoeuler; sharing GPU {first}")
    return first, None


@functools.cache  # a process that makes a second engine holds the device already
def lock_device(name: str) -> BinaryIO | None:
    """The open file whose lock holds a device until this process ends; None when another process
    has it."""
    return lock_file(lock_path(f"gpu-{name}.lock"), wait=False)
