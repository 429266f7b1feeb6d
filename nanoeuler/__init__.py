"""nanoeuler: a language-model pipeline that owns every piece, from raw text to a chatting model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nanoeuler.api import LanguageModel

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(
    folder: str | Path, device: str = "auto", gpus: int | None = None, precision: str = "auto"
) -> LanguageModel:
    """Load a trained model for use from Python; `help(nanoeuler.api)` shows what it can do.

    - `folder`: a model folder, such as results/demo/sft/model, or the folder of a stage or a run,
      such as results/demo, which stands for its last model.
    - `device`: auto (a GPU where there is one), cpu, cuda, or reference (plain NumPy, slow).
    - `gpus`: GPUs to use; 0 forces the CPU, None takes what `device` says.
    - `precision`: of a GPU's products and activations: fp32, tf32 or bf16; auto is bf16.

    Raises `UserError` when there is no model, or its files are damaged or do not belong together.
    """
    from nanoeuler import api  # on demand: the command line starts without NumPy

    return api.load(folder, device, gpus, precision)
