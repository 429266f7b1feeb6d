"""The folders for what this user's processes on this machine share."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`nanoeuler` in the user's cache folder, for what need not be found out again.

    It may be missing, or impossible to write. A user without a home gets a path at which nothing
    can be written.
    """
    return user_folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """`nanoeuler` in the user's folder for what should outlive a program: its history."""
    return user_folder("XDG_STATE_HOME", ".local/state")


def user_folder(variable: str, default: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given / "nanoeuler"
    try:
        return Path.home() / default / "nanoeuler"
    except RuntimeError:
        return Path(os.devnull) / "nanoeuler"
