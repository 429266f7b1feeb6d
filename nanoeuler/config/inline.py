"""A configuration on a command line: JSON of the sections that the command reads, resolved."""

from dataclasses import make_dataclass
from typing import Any

from nanoeuler.config.settings import Configuration
from nanoeuler.config.sources import Sources
from nanoeuler.config.validation import (
    MISSING_KEY,
    UNKNOWN_KEY,
    explain,
    huge_numbers,
    mistakes,
    read_schema,
)
from nanoeuler.errors import UserError
from nanoeuler.storage.files import parse_json
from nanoeuler.storage.shape import describe

RESOLVED = make_dataclass(
    "Resolved",
    [("sources", Sources), ("model", dict[str, Any])],
    bases=(Configuration,),
    frozen=True,
    kw_only=True,
)
"""A configuration whose sources file is read and whose model's preset is expanded; ModelConfig
checks the fields of that section itself."""
LIMITS = (
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    *("too_short", "string_pattern_mismatch", "value_error"),
)
"""pydantic's words for values of the right type that are out of bounds, which the command that
reads them refuses."""


class InlineSection(dict[str, Any]):
    """A part of an inline configuration; reading a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML "
            "file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    """Parse the configuration, of which sections and keys may be missing. Raises `UserError` unless
    it is JSON whose values have the types that the sections declare."""
    values = parse_inline(text)
    found = mistakes(values, RESOLVED)
    wrong = [place for kind, place in found if kind not in (MISSING_KEY, UNKNOWN_KEY, *LIMITS)]
    wrong += huge_numbers({name: value for name, value in values.items() if name != "model"})
    if wrong:
        raise UserError(
            f"--config is inline JSON whose {describe(values, wrong[0])}; correct it, or give the "
            "path of a YAML file"
        )
    for kind, place in found:
        if kind == UNKNOWN_KEY:
            in_sources = place[0] == "sources" and len(place) > 1
            schema = read_schema(Sources if in_sources else Configuration)
            raise UserError(explain(kind, place[in_sources:], values, schema, {}, "--config"))
    return values


def parse_inline(text: str) -> dict[str, Any]:
    try:
        return parse_json(text, object_hook=InlineSection)
    except ValueError as error:
        raise UserError(
            "--config is inline JSON (it starts with a brace) but is not valid: "
            f"{error}; quote it for the shell, or give the path of a YAML file"
        ) from error
