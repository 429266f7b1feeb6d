"""Runs and their models: what they were configured to read."""

from pathlib import Path
from typing import Any

from nanoeuler.config import RESOLVED, read_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import BY_NAME
from nanoeuler.errors import UserError


def configuration_in(run: Path) -> dict[str, Any]:
    """The configuration of the run in a folder. Raises `UserError` where there is none."""
    config = read_resolved(run / RESOLVED)
    if config is None:
        raise UserError(
            f"{run}: not the folder of a run (no {RESOLVED}); give one, such as results/demo"
        )
    return config


def configuration_of(folder: Path) -> dict[str, Any]:
    """The configuration of the run whose model is in `folder`.

    Raises `UserError` where it is none of a run that is here.
    """
    run, stage = folder.absolute().parents[1], folder.absolute().parent.name
    config = read_resolved(run / RESOLVED)
    if config is None or stage not in BY_NAME:
        raise UserError(
            f"{folder}: not the model of a run that is here, so that nobody knows what it read "
            f"(no {run / RESOLVED}); give the folder of a run, such as results/demo"
        )
    return config


def has_index(folder: Path) -> bool:
    """Whether the model in `folder` is of a run whose tokens are indexed."""
    try:
        return Path(Paths(configuration_of(folder)).index).is_file()
    except UserError:
        return False
