"""The folder for what this user's processes on this machine need not find out again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`nanoeuler` in the user's cache folder; it may be missing, or impossible to write.

    A user without a home gets a path at which nothing can be written.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "nanoeuler"
    try:
        return Path.home() / ".cache" / "nanoeuler"
    except RuntimeError:
        return Path(os.devnull) / "nanoeuler"
