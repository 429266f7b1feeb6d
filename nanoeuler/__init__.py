"""nanoeuler: a language-model pipeline that owns every piece, from raw text to a chatting model."""

from nanoeuler.version import __version__

TYPE_CHECKING = False  # without `typing`, which takes half the time
if TYPE_CHECKING:
    from typing import Any

    from nanoeuler.inference.api import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> "Any":
    """`load`, when it is asked for: the command line starts without NumPy."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanoeuler.inference.api import load

    return load
