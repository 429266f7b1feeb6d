"""What all tests share: their order, Ctrl-C, and the command line in this process."""

import signal

import pytest

from nanoeuler import log
from nanoeuler.cli import main

# A shell that runs the tests in the background ignores Ctrl-C, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = [
    f"{name}.py"
    for name in ("test_readme", "test_interruption", "test_train", "test_ranks", "test_lessons")
]
"""Files that take a minute each: they go first, so that no process waits for them at the end."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def command(capsys):
    """command(*arguments) → (exit status, standard output, standard error), in this process."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        log.LOGGER.handlers.clear()
        return status, shown.out, shown.err

    return run
