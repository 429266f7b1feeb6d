"""Reading YAML so that a mistake can be reported with file and line."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from nanoeuler.errors import UserError

Key = tuple[str | int, ...]
"""The way to a value, such as ("sft", "epochs")."""


def read_yaml(path: str | Path) -> tuple[Any, dict[Key, str]]:
    """Return the content of a YAML file, and for each key where it is: "file, line 7".

    Raises `UserError` when the file is missing or is not YAML. It also refuses a key that is given
    twice, of which YAML itself would silently keep the last.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        locations: dict[Key, str] = {(): str(path)}
        if root is None:
            return None, locations
        find_locations(root, (), path, locations)
        return yaml.safe_load(text), locations
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; give the path of a YAML file, config/config.yaml for example"
        ) from error
    except IsADirectoryError as error:
        raise UserError(
            f"{path}: a folder, not a YAML file; give the path of a file in it"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(
            f"{path}{line}: not valid YAML: {error.problem}; "
            "check the indentation (spaces, no tabs) and the quotes there"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error


def find_locations(node: yaml.Node, key: Key, path: Path, locations: dict[Key, str]) -> None:
    """Add the locations of everything inside `node`, which is the value of `key`."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            locations[*key, index] = f"{path}, line {item.start_mark.line + 1}"
            find_locations(item, (*key, index), path, locations)
    elif isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                continue
            location = f"{path}, line {name.start_mark.line + 1}"
            inner = (*key, name.value)
            if name.value in seen:
                raise UserError(
                    f"{location}: {'.'.join(map(str, inner))} is given twice; keep one of them"
                )
            seen.add(name.value)
            locations[inner] = location
            find_locations(value, inner, path, locations)
