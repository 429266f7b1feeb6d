"""What benchmarks beside peers share: a line about the machine, and medians with their range."""

from collections.abc import Sequence

import numpy as np

from nanoeuler.system import provenance


def about(threads: int) -> str:
    import torch  # not for those who only want `spread`

    found = provenance.collect()
    versions = ", ".join(f"{name} {found['packages'][name]}" for name in ("numpy", "numba"))
    versions += f", torch {torch.__version__}"
    return f"{found['cpu']}, {threads} threads; Python {found['python']}, {versions}"


def spread(values: Sequence[float] | np.ndarray, form: str) -> str:
    """Median (smallest … largest), or the value alone where there is one."""
    found = np.median(values), np.min(values), np.max(values)
    middle, low, high = (format(float(value), form) for value in found)
    return middle if len(values) == 1 else f"{middle} ({low} … {high})"
