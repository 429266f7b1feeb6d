"""The command line in this process, for every folder of tests."""

import pytest

from nanoeuler import log
from nanoeuler.cli import main


@pytest.fixture
def command(capsys):
    """command(*arguments) → (exit status, standard output, standard error), in this process."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        log.LOGGER.handlers.clear()
        return status, shown.out, shown.err

    return run
