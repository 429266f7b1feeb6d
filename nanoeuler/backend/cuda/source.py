"""A `.cu` file with its constants, ready for a compiler: a plain value, usable without a device."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

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
