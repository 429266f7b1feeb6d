"""What the benchmarks beside PyTorch share: a line about the machine, medians with their range."""

import numpy as np

from nanoeuler.system import provenance


def about(threads: int) -> str:
    import torch  # not for those who only want `spread`

    found = provenance.collect()
    versions = ", ".join(f"{name} {found['packages'][name]}" for name in ("numpy", "numba"))
    versions += f", torch {torch.__version__}"
    return f"{found['cpu']}, {threads} threads; Python {found['python']}, {versions}"


def spread(values: np.ndarray, form: str) -> str:
    """Median (smallest … largest)."""
    middle, low, high = (
        format(value, form) for value in (np.median(values), values.min(), values.max())
    )
    return f"{middle} ({low} … {high})"
