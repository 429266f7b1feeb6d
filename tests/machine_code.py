"""Copies the machine code that this checkout has compiled, for tests that run a copy of it.

Machine code depends on the sources alone. The tests of compiling, and every test of a fresh clone,
cover a checkout that has none.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_machine_code(folder: Path) -> None:
    """Copy it into the package `nanoeuler` of `folder`, which has the same sources as this one.

    Functions that this checkout has not compiled are compiled there.
    """
    for file in ROOT.glob("nanoeuler/**/__pycache__/*.nb[ci]"):  # Numba's code and index files
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
