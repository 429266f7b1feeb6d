"""The resolved configuration of a run, which all of its stages read.

It lies in results/<run>/configuration.json. It was checked before it was written, and the hash in
it shows that it still is what was checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json, write_json
from nanoeuler.storage.integrity import Origin, check_seal, seal

RESOLVED = "configuration.json"
CONTENT = "configuration"
ORIGIN = Origin("the workflow", "start the workflow again, which writes it, or give a YAML file")


def write_resolved(path: str | Path, config: Mapping[str, Any]) -> None:
    write_json(path, seal({"version": 1, CONTENT: config}))


def is_resolved(path: Path) -> bool:
    """Whether a file is one of `write_resolved`. Raises `UserError` for a .json that is no JSON."""
    if path.suffix != ".json" or not path.is_file():
        return False
    content = read_json(path)
    return isinstance(content, dict) and isinstance(content.get(CONTENT), dict)


def read_resolved(path: Path) -> dict[str, Any]:
    """The configuration in such a file. Raises `UserError` where it was changed."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get(CONTENT), dict):
        raise UserError(f"{path}: not a configuration of a run; {ORIGIN.remedy}")
    check_seal(path, content, ORIGIN)
    return content[CONTENT]
