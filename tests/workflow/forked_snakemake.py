"""Snakemake processes that start fast: forks of one process that has imported Snakemake.

Importing it takes most of the time of a dry run. This project's modules are not imported before.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import forks
from tests.waiting import CEILING


def run(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess:
    """`python -m snakemake` in `folder`, with nothing to read."""
    return forks.run(
        __file__, arguments=arguments, folder=str(folder), environment=dict(environment)
    )


def become_snakemake(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    import snakemake.cli

    forks.move(folder, environment)
    sys.argv = [snakemake.__file__, *arguments]
    signal.alarm(int(CEILING))
    snakemake.cli.main()


if __name__ == "__main__":
    import smart_open  # noqa: F401 - by Snakemake's first look at a Snakefile
    import snakemake.cli

    snakemake.cli.get_argument_parser()  # imports the plugins
    forks.serve(become_snakemake)
