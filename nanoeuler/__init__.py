"""nanoeuler: a language-model pipeline that owns every piece, from raw text to a chatting model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nanoeuler.api import LanguageModel

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: str | Path, device: str = "auto", gpus: int | None = None) -> LanguageModel:
    """Load a trained model for use from Python; see `nanoeuler.api`."""
    from nanoeuler import api  # on demand: the command line starts without NumPy

    return api.load(folder, device, gpus)
