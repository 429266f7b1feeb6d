"""The tiles of large products: chosen by measuring, once for an adapter, its driver and a size.

No choice changes a bit: an element is summed in the order of the inner dimension in all tiles, and
into how many parts that is cut does not depend on them.
"""

import contextlib
import json
from collections.abc import Callable

from nanoeuler import log
from nanoeuler.backend.webgpu.device import Device
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_text, write_json
from nanoeuler.system.machine import cache_folder

Tiling = tuple[int, int, int]
"""Rows, columns and steps of the inner dimension: see product_wide.wgsl."""

TILINGS: tuple[Tiling, ...] = (
    *((128, 128, 8), (128, 128, 16)),
    *((128, 64, 8), (64, 128, 8), (64, 64, 8)),
)
LEAST_MEASURED = 1 << 28
"""Multiply-adds of a product, at least, for which it is worth to measure."""
USUAL = "128x64x8"
"""The tiling of smaller ones: the one that most of a small model's products took on an H200."""


class Tilings:
    """The choices of one device, which are kept in the user's cache folder."""

    def __init__(self, device: Device):
        self.choices = {name_of(each): each for each in TILINGS if fits(each, device)}
        self.measures = not device.software
        """Is it worth to measure? A processor's program is too slow for that."""
        driver = device.adapter.info["description"]
        name = f"tiles {device.name} {driver}.json".replace(" ", "-").replace("/", "-")
        self.file = cache_folder() / name
        self.chosen = self.kept() if self.measures else {}
        self.announced = False

    def kept(self) -> dict[str, Tiling]:
        """What was chosen before; nothing without a file, or with one that nobody can read."""
        try:
            content = json.loads(read_text(self.file))
        except (UserError, OSError, ValueError, RecursionError):
            return {}
        items = content.items() if isinstance(content, dict) else ()
        return {
            product: self.choices[name]
            for product, name in items
            if isinstance(name, str) and name in self.choices
        }

    def of(self, product: str, size: int, seconds: Callable[[Tiling], float]) -> Tiling:
        """The tiling of a product, which is described in `product` and has `size` multiply-adds;
        `seconds` measures one."""
        if not self.measures or size < LEAST_MEASURED:
            return self.choices[USUAL]
        if product not in self.chosen:
            if not self.announced:
                log.line("timing", "which tiles the matrix products take, once for this GPU")
                self.announced = True
            self.chosen[product] = min(self.choices.values(), key=seconds)
            content = self.kept() | self.chosen
            with contextlib.suppress(OSError, UserError):  # which costs the next run's time
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.file, {key: name_of(each) for key, each in content.items()})
        return self.chosen[product]


def name_of(tiling: Tiling) -> str:
    return "x".join(map(str, tiling))


def fits(tiling: Tiling, device: Device) -> bool:
    """Has a workgroup enough memory for it, and threads?"""
    rows, columns, depth = tiling
    size = 2 * depth * 16 * (rows // 4 + 1 + columns // 4 + 1)
    return size <= device.workgroup_bytes and rows * columns // 64 <= device.workgroup_threads
