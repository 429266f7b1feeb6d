"""Reading a configuration: a YAML file or inline JSON."""

import json
from pathlib import Path
from typing import Any

import yaml


def load(source: str) -> dict[str, Any]:
    """Return the configuration in `source`: the path of a YAML file, or inline JSON with the sections that a stage reads."""
    if source.lstrip().startswith("{"):
        return json.loads(source)
    return yaml.safe_load(Path(source).read_text(encoding="utf-8"))
