"""Machine code that this checkout has compiled, for the copies of it that tests run: it hangs on the sources alone.

That a checkout without any compiles what it needs is seen by the tests of compiling, and by every test of a fresh clone.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_machine_code(folder: Path) -> None:
    """Copy it into the package `nanoeuler` of `folder`, whose sources are those of this one; what is missing is compiled there."""
    for file in ROOT.glob("nanoeuler/**/__pycache__/*.nb[ci]"):  # Numba's: code and index
        place = folder / file.relative_to(ROOT)
        place.parent.mkdir(exist_ok=True)
        shutil.copy2(file, place)
