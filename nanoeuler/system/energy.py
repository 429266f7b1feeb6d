"""Energy by the machine's own counters: a GPU's (NVML) and the processors' (RAPL).

They count a whole device: who else computes on it is counted, too, and so is what it takes while it
waits. Linux shows RAPL's to root alone, unless `energy_uj` in /sys/class/powercap may be read.
"""

import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nanoeuler import log

POWERCAP = Path("/sys/class/powercap")
GPU, CPU = "gpu_joules", "cpu_joules"
ENERGIES = {GPU: "GPU", CPU: "CPU"}
"""What is measured, by its key in metrics.jsonl, and the devices as people call them."""
READ_SECONDS = 60.0
"""RAPL's counters wrap, those of a processor under load after ten minutes or more."""


def sum_joules(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Joules of all parts together, of the kinds that each of them has measured."""
    kinds = [kind for kind in ENERGIES if parts and all(kind in part for part in parts)]
    return {kind: sum(part[kind] for part in parts) for kind in kinds}


class Gone(Exception):
    """A counter that was there can't be read any more."""


class Meter:
    """What devices take from now on. Processors are those of the whole machine."""

    def __init__(self, gpu: str | None, *, cpu: bool):
        """`gpu`: the address on the PCI bus of the one that computes. `cpu`: count processors, or
        does another process?"""
        self.counters: dict[str, list[Callable[[], float]]] = {}
        self.lock = threading.Lock()
        if gpu and (counter := gpu_counter(gpu)):
            self.counters[GPU] = [counter]
        zones = processor_zones() if cpu else []
        if zones or not cpu:
            self.counters[CPU] = [zone.joules for zone in zones]
        if zones:
            threading.Thread(target=keep_up, args=(weakref.ref(self),), daemon=True).start()

    def joules(self) -> dict[str, float]:
        """Joules by the counters that may be read. Where one vanishes, it is told, and devices of
        its kind are counted no more."""
        found = {}
        with self.lock:
            for kind, counters in list(self.counters.items()):
                try:
                    found[kind] = sum(counter() for counter in counters)
                except Gone as error:
                    del self.counters[kind]
                    log.line("notice", f"{error}; this stage's energy is not measured")
        return found


def keep_up(known: "weakref.ref[Meter]") -> None:
    """Read the counters before they wrap twice, as long as there is a meter of them."""
    while (meter := known()) and CPU in meter.joules():
        del meter
        time.sleep(READ_SECONDS)


# ---- processors


def processor_zones() -> list["Zone"]:
    """The counters of processors, and of memory where it is counted apart; none that is secret.

    A package counts its cores; `psys`, a laptop as a whole, counts its package, and
    `intel-rapl-mmio` is the same package again. Source: docs.kernel.org, power/powercap.
    """
    found = []
    for folder in sorted(POWERCAP.glob("intel-rapl:*")):  # on AMD's, too
        with contextlib.suppress(OSError, ValueError):
            name = told(folder / "name")
            if name.startswith("package-") or name == "dram":
                found.append(Zone(folder))
    return found


class Zone:
    """A counter of RAPL, in microjoules, which begins again behind `max_energy_range_uj`."""

    def __init__(self, folder: Path):
        self.file = folder / "energy_uj"
        self.range = int(told(folder / "max_energy_range_uj")) + 1
        self.last, self.passed = int(told(self.file)), 0

    def joules(self) -> float:
        """Since it was made. Raises `Gone`."""
        try:
            now = int(told(self.file))
        except (OSError, ValueError) as error:
            raise Gone(f"{self.file}: cannot be read any more ({error})") from error
        self.passed += (now - self.last) % self.range
        self.last = now
        return self.passed / 1e6


def told(file: Path) -> str:
    """The line of a file of the kernel's."""
    with open(file, encoding="ascii") as opened:
        return opened.read(100).strip()


# ---- GPUs


def gpu_counter(address: str) -> Callable[[], float] | None:
    """Reads the joules that a GPU has taken since now; None without a counter.

    It advances every few tens of milliseconds and lags: measure seconds. NVML numbers all GPUs of
    the machine, CUDA those that CUDA_VISIBLE_DEVICES lets it see, the fastest first: the address is
    the same for both. Source: NVML's nvmlDeviceGetTotalEnergyConsumption (since Volta).
    """
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
        address.encode(), ctypes.byref(handle)
    ):
        return None

    read = library.nvmlDeviceGetTotalEnergyConsumption
    if read(handle, ctypes.byref(millijoules)):
        return None
    first = millijoules.value

    def joules() -> float:
        if code := read(handle, ctypes.byref(millijoules)):
            raise Gone(f"GPU {address}: its energy cannot be read any more (NVML's error {code})")
        return (millijoules.value - first) / 1e3

    return joules
