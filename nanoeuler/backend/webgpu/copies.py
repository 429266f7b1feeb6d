"""The arguments of copy.wgsl: arrays of any strides as few dimensions."""

from nanoeuler.backend.webgpu.kernel_sources import BYTES

Dimension = tuple[int, int, int]
"""Size, and the strides of target and source, in words or numbers."""


def merged(
    shape: tuple[int, ...],
    to: tuple[int, ...],
    by: tuple[int, ...],
    words: int,
    units: tuple[int, int] = (BYTES, BYTES),
) -> list[Dimension]:
    """The dimensions of a copy, neighbours that lie alike made one. `units`: bytes of an element of
    target and source."""
    strides = zip(shape, to, by, strict=True)
    dimensions = [(n, a // units[0], b // units[1]) for n, a, b in strides if n > 1]
    if words > 1:
        dimensions.append((words, 1, 1))
    found: list[Dimension] = []
    for size, a, b in dimensions:
        if found and found[-1][1] == size * a and found[-1][2] == size * b:
            found[-1] = found[-1][0] * size, a, b
        else:
            found.append((size, a, b))
    return found


COPIED_DIMENSIONS = 5


def copy_arguments(dimensions: list[Dimension]) -> dict[str, int]:
    """The arguments of copy.wgsl."""
    if len(dimensions) > COPIED_DIMENSIONS:
        raise ValueError(f"an array of {len(dimensions)} dimensions is not copied on the GPU")
    whole = [(1, 0, 0)] * (COPIED_DIMENSIONS - len(dimensions)) + dimensions
    arguments: dict[str, int] = {}
    for index, (size, to, by) in enumerate(whole):
        arguments |= {f"to{index}": to, f"from{index}": by}
        if index:
            arguments[f"size{index}"] = size
    return arguments
