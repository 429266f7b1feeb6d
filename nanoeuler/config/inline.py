"""A configuration as a rule hands it to a stage: JSON of the sections that the stage reads, resolved already. Reading it imports next to nothing."""

import json
from typing import Any

from nanoeuler.errors import UserError


class Section(dict):
    """A part of an inline configuration: a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_hook=Section)
    except json.JSONDecodeError as error:
        raise UserError(
            f"--config is inline JSON (it starts with a brace) but is not valid: {error}; quote it for the shell, or give the path of a YAML file"
        ) from error
    return config
