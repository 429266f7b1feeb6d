"""What an experiment changes: `--change` of a command line, and sweeps in a YAML file.

A sweep's `values` hold what keys of a configuration may be: a list, or a range. Without `draws`,
every combination of the lists is a change; with it, so many random ones.

    draws: 20
    seed: 1
    values:
      pretrain.learning_rate: {low: 5.0e-4, high: 8.0e-3, log: true}
      pretrain.weight_decay: [0.1, 0.3]
"""

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config.loading import Config, keys_in, merge, parse_overrides
from nanoeuler.config.rules import leaves
from nanoeuler.config.validation import check, dotted
from nanoeuler.config.yaml_file import read_yaml
from nanoeuler.errors import UserError
from nanoeuler.storage.section import Section, key, section

Change = Mapping[str, Any]
"""Sections of a configuration that are put over those of the base."""
CHANGED = ("model", "pretrain")
"""The sections that a change may have keys of."""
GIVEN = {"pretrain.tokens": "--minutes or --tokens", "seed": "--seeds"}
"""Keys of a configuration that other options of the command set."""


@section
class Range(Section):
    """Numbers that a draw takes one of."""

    low: float = key("the smallest")
    high: float = key("the largest")
    log: bool = key("draw the logarithm uniformly, and not the number", default=False)


@section
class Sweep(Section):
    """A file of a sweep."""

    draws: int | None = key(
        "random changes; left out, every combination of the lists", default=None, ge=1
    )
    seed: int = key("of the draws", default=0, ge=0)
    values: dict[str, list[Any] | Range] = key("the values that keys of the configuration may have")


def read_change(text: str) -> Change:
    """Read a change of one key, or of several parted by commas: "model.dim=96,model.heads=3".

    Raises `UserError` unless it changes the way of training, each key once.
    """
    change: Config = {}
    for part in re.split(r",(?=\s*[\w.]+=)", text):
        given = checked(parse_overrides([part]), f"--change {text}")
        if twice := dict(leaves(change)).keys() & dict(leaves(given)):
            raise UserError(f"--change {text}: {min(twice)} is given twice; keep one of them")
        merge(change, given)
    return change


def read_sweep(path: Path) -> tuple[int, Iterator[Change]]:
    """The number of changes in a sweep's file, and the changes. Raises `UserError` for another
    file."""
    content, locations = read_yaml(path)
    sweep = check(content or {}, Sweep, locations, str(path))
    values, draws = sweep["values"], sweep["draws"]
    for name, each in values.items():
        checked(parse_overrides([f"{name}=0"]), f"{path}: {name}")
        if isinstance(each, dict) and draws is None:
            raise UserError(f"{path}: {name} is a range, of which numbers are drawn; give draws")
        if isinstance(each, dict) and not (each["low"] > 0 or not each["log"]):
            raise UserError(f"{path}: {name}.low is {each['low']:g}; a logarithm wants it above 0")
        if isinstance(each, dict) and each["low"] >= each["high"]:
            raise UserError(f"{path}: {name}.low is not below {name}.high; exchange them")
        if not each:
            raise UserError(f"{path}: {name} is an empty list; give it values, or take it out")
    if not values:
        raise UserError(f"{path}: values is empty; name keys such as pretrain.learning_rate there")
    if draws is None:
        grid = itertools.product(*values.values())
        return math.prod(map(len, values.values())), (combined(values, each) for each in grid)
    source = random.Random(sweep["seed"])
    drawn = ([draw(each, source) for each in values.values()] for _ in range(draws))
    return draws, (combined(values, each) for each in drawn)


def draw(values: list[Any] | Mapping[str, Any], source: random.Random) -> Any:
    """One of a list, or a number of a range, to four digits."""
    if isinstance(values, list):
        return source.choice(values)
    low, high = values["low"], values["high"]
    if values["log"]:
        number = math.exp(source.uniform(math.log(low), math.log(high)))
    else:
        number = source.uniform(low, high)
    return float(f"{number:.4g}")


def combined(names: Iterable[str], values: Iterable[Any]) -> Change:
    """A change that gives each of the keys its value."""
    change: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        *sections, last = name.split(".")
        inner = change
        for each in sections:
            inner = inner.setdefault(each, {})
        inner[last] = value
    return change


def checked(change: Change, where: str) -> Change:
    """`change`, if it is one of the way of training. Raises `UserError` for any other."""
    for path in keys_in(change):
        name = dotted(path)
        if name in GIVEN:
            raise UserError(f"{where}: {GIVEN[name]} sets {name} in an experiment; leave it out")
        if path[0] not in CHANGED:
            raise UserError(
                f"{where}: an experiment compares ways of training on the same data; "
                f"change keys of {' and '.join(CHANGED)}"
            )
        if len(path) == 1 and not isinstance(change[name], Mapping):
            raise UserError(f"{where}: {name} is a section; name a key in it, such as {name}.…=…")
    return change


def title(change: Change) -> str:
    """A change as it would be typed."""
    return ",".join(f"{name}={value}" for name, value in leaves(change))
