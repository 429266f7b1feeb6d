"""The configuration that a rule gives to a stage: JSON of the sections that the stage reads."""

from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.files import parse_json


class InlineSection(dict[str, Any]):
    """A part of an inline configuration; reading a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML "
            "file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    try:
        return parse_json(text, object_hook=InlineSection)
    except ValueError as error:
        raise UserError(
            "--config is inline JSON (it starts with a brace) but is not valid: "
            f"{error}; quote it for the shell, or give the path of a YAML file"
        ) from error
