"""Counters of energy as Linux shows them, on a disk."""

import threading
from pathlib import Path

from nanoeuler.system import energy

RANGE = 262_143_328_850
"""`max_energy_range_uj` of many processors."""


def zone(folder: Path, number: str, name: str, microjoules: int = 0) -> Path:
    """A counter; returns its file."""
    place = folder / number
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place / "energy_uj"


def count(file: Path, microjoules: float | str) -> None:
    """Let a counter stand there. A reader, in another thread perhaps, never sees half of it."""
    whole = file.with_name("next")
    whole.write_text(f"{microjoules}\n")
    whole.replace(file)


class Ticking:
    """A package that takes a joule every five milliseconds, as a context manager."""

    def __init__(self, folder: Path, monkeypatch):
        self.file = zone(folder, "intel-rapl:0", "package-0", RANGE - 3_000_000)
        self.taken, self.ended = 0, threading.Event()
        monkeypatch.setattr(energy, "POWERCAP", folder)

    def tick(self) -> None:
        while not self.ended.wait(0.005):
            self.taken += 1
            count(self.file, (RANGE - 3_000_000 + self.taken * 1_000_000) % (RANGE + 1))

    def __enter__(self) -> "Ticking":
        self.thread = threading.Thread(target=self.tick)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
