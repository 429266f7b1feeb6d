"""Reading YAML so that a mistake can be reported by file and line."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from nanoeuler.errors import UserError

Key = tuple[str | int, ...]


def read_yaml(path: str | Path) -> tuple[Any, dict[Key, str]]:
    """Return the content of a YAML file and, per key (a tuple such as ("sft", "epochs")), where it stands: "file, line 7".

    Raises `UserError` when the file is missing, is not YAML, or gives a key twice (YAML itself keeps the last silently).
    """
    path = Path(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        places: dict[Key, str] = {(): str(path)}
        if root is None:
            return None, places
        find_places(root, (), path, places)
        return yaml.safe_load(path.read_text(encoding="utf-8")), places
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
            f"{path}{line}: not valid YAML: {error.problem}; check the indentation (spaces, no tabs) and the quotes there"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error


def find_places(node: yaml.Node, key: Key, path: Path, places: dict[Key, str]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[*key, index] = f"{path}, line {item.start_mark.line + 1}"
            find_places(item, (*key, index), path, places)
    elif isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                continue
            place = f"{path}, line {name.start_mark.line + 1}"
            if name.value in seen:
                raise UserError(
                    f"{place}: {'.'.join(map(str, (*key, name.value)))} is given twice; keep one of them"
                )
            seen.add(name.value)
            places[*key, name.value] = place
            find_places(value, (*key, name.value), path, places)
