"""What all campaigns share."""

import contextlib
import io
from abc import ABC, abstractmethod
from pathlib import Path

from fuzz.mutation import Mutator
from nanoeuler.cli import main
from nanoeuler.errors import UserError

LARGEST_FILE = 1 << 26  # bytes: an endless download does not fill the disk


class BrokenPromise(Exception):
    """A reader did something that nanoeuler promises not to do."""


class Campaign(ABC):
    """Cases for one reader; `material` is the folder that `fuzz.material.make` wrote."""

    def __init__(self, material: Path):
        self.material = material

    @abstractmethod
    def run(self, mutate: Mutator, folder: Path) -> None:
        """Write a damaged input to `folder`, the working folder, and read it.

        Returns when it was accepted. Raises `UserError` when it was refused.
        """


def command(*arguments: str) -> None:
    """Run a subcommand in this process. Raises `UserError` when it refuses."""
    speaks = arguments[:1] == ("generate",)  # a model may say anything: it is no message
    try:
        with contextlib.redirect_stdout(io.StringIO()) if speaks else contextlib.nullcontext():
            status = main(list(arguments))
    except SystemExit as stop:  # argparse
        if stop.code not in (0, 2):
            raise
        status = stop.code
    if status:
        raise UserError(f"exit status {status}")
