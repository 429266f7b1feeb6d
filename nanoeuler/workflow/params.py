"""The params of rules: those whose change makes a rule run again, and the others.

Snakemake compares a param with that of the last run, unless it is a function of output, input,
threads or resources, from which Snakemake can derive it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def compared(value: Any) -> Callable[[Any], Any]:
    """A param whose change makes its rule run again: a value, or a function of the wildcards."""
    return lambda wildcards: value(wildcards) if callable(value) else value


def not_compared(value: Any) -> Callable[[Any, Any], Any]:
    """A param that may change freely, such as a device: a value, or a function of the wildcards."""
    return lambda wildcards, output: value(wildcards) if callable(value) else value


def option(flag: str, files: Iterable[str]) -> list[str]:
    """The arguments that give `files` to a subcommand; none when there are no files."""
    return [flag, *files] if list(files) else []


def options(files: Mapping[str, str]) -> list[str]:
    """The arguments that give each of `files` to a subcommand, by the option of its name."""
    return [f"--{name}={file}" for name, file in files.items()]
