"""What all tests share: their order, Ctrl-C, and the command line in this process."""

import atexit
import gc
import os
import signal

import pytest

from nanoeuler import log
from nanoeuler.cli import main

# A shell that runs the tests in the background ignores Ctrl-C, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are collected: thousands of tests and all modules stay, so that looking through
# them for garbage finds none.
gc.disable()
atexit.register(gc.unfreeze)  # DuckDB's binding calls what is left at the end of the process a leak

# Threads of OpenBLAS that have nothing to do sleep after 2^14 cycles. By default they keep a core
# busy for 2^26, in each process that imports NumPy, while other tests need it.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")

FIRST = [
    f"{name}.py"
    for name in (
        *("test_train", "test_kernel_sources", "test_real_books", "test_hostile_servers"),
        *("test_readme", "test_slurm", "test_interruption", "test_lessons", "test_cluster"),
        *("test_ranks", "test_resume", "test_dag", "test_trials", "test_hostile_paths"),
        *("test_chip", "test_torture", "test_packaging"),
    )
]
"""Files that go first, in this order. The first fills this checkout with machine code, which the
copies of it that later tests make take along. Beside it, the other process takes three that need
none. The rest take half a minute and more each, so that no process waits for them at the end."""


def pytest_collection_modifyitems(items):
    order = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(FIRST)))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def command(capsys):
    """command(*arguments) → (exit status, standard output, standard error), in this process."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        log.LOGGER.handlers.clear()
        return status, shown.out, shown.err

    return run
