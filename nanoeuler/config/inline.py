"""The configuration that a rule gives to a stage: JSON of the sections that the stage reads."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nanoeuler.config.settings import Configuration
from nanoeuler.config.sources import Sources
from nanoeuler.errors import UserError
from nanoeuler.files import parse_json
from nanoeuler.shape import Place, checker, describe, fields_of


class InlineSection(dict[str, Any]):
    """A part of an inline configuration; reading a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML "
            "file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    """Parse the configuration. Raises `UserError` unless it is JSON whose values have the types
    that the sections declare."""
    values = parse_inline(text)
    wrong = misfit_of(values)
    if wrong is not None:
        raise UserError(
            f"--config is inline JSON whose {describe(values, wrong)}; correct it, or give the "
            "path of a YAML file"
        )
    return values


def misfit_of(values: Mapping[str, Any]) -> Place | None:
    """The place of the first value of a configuration that has another type than is declared."""
    known: dict[str, Any] = {item.name: item.type for item in fields(Configuration)}
    known |= {"sources": Sources, "model": dict[str, Any]}  # ModelConfig checks its fields itself
    return fields_of({key: checker(kind) for key, kind in known.items()})(values)


def parse_inline(text: str) -> dict[str, Any]:
    try:
        return parse_json(text, object_hook=InlineSection)
    except ValueError as error:
        raise UserError(
            "--config is inline JSON (it starts with a brace) but is not valid: "
            f"{error}; quote it for the shell, or give the path of a YAML file"
        ) from error
