"""The lists of keys in config/README.md, made from the sections themselves.

python scripts/configuration_keys.py prints them; a test compares them with the page.
"""

import json
import textwrap
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

from nanoeuler.config.settings import Configuration, Training
from nanoeuler.config.stages import STAGES
from nanoeuler.storage.section import Section, is_required, section_type


def reference() -> dict[str, str]:
    """The list of keys under each heading of the page."""
    shared = [
        item for item in fields(Training) if all(item in fields(stage.settings) for stage in STAGES)
    ]
    top = [item for item in fields(Configuration) if section_type(item) is None]
    lists = {"the run": entries("", top), "every training stage": entries("", shared)}
    for item in fields(Configuration):
        if (section := section_type(item)) is not None:
            own = [inner for inner in from_class_to_base(section) if inner not in shared]
            lists[item.name] = entries(f"{item.name}.", own)
    return {heading: "\n".join(lines) for heading, lines in lists.items()}


def from_class_to_base(section: type[Section]) -> list[Field[Any]]:
    """The fields of a section: first those that its own class declares."""
    declared = [name for kind in section.__mro__ for name in vars(kind).get("__annotations__", {})]
    return sorted(fields(section), key=lambda item: declared.index(item.name))


def entries(prefix: str, items: Iterable[Field[Any]]) -> list[str]:
    """An entry for each key: its name, its default and its meaning."""
    lines = []
    for item in items:
        if (section := section_type(item)) is not None:
            lines += entries(f"{prefix}{item.name}.", fields(section))
            continue
        text = f"- `{prefix}{item.name}`{default(item)}: {item.metadata['description']}"
        lines += textwrap.wrap(
            text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    return lines


def default(item: Field[Any]) -> str:
    if is_required(item):
        return " (required)"
    extra = item.metadata["json_schema_extra"]
    if "x-optional" in extra:
        return ""
    value = extra.get("default", item.default)
    return f" (`{value if isinstance(value, str) else json.dumps(value)}`)"


if __name__ == "__main__":
    for heading, lines in reference().items():
        print(f"## {heading}\n\n{lines}\n")
