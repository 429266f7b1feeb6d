"""Reading YAML so that a mistake can be reported with file and line."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from nanoeuler.errors import UserError
from nanoeuler.files import read_text

Key = tuple[str | int, ...]
"""The way to a value, such as ("sft", "epochs")."""
MOST = 10_000_000
"""Bytes of the largest file that is read."""

if yaml.__with_libyaml__:

    class QuickLoader(Composer, yaml.CSafeLoader):
        """libyaml's parser, which takes a fifth of the time, and PyYAML's composer.

        Where lists nest deeply, that one raises `RecursionError`, and libyaml's ends the process.
        """

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

else:
    QuickLoader = yaml.SafeLoader  # type: ignore[assignment,misc]


def read_yaml(path: str | Path) -> tuple[Any, dict[Key, str]]:
    """Return the content of a YAML file, and for each key where it is: "file, line 7".

    Raises `UserError` when the file is missing or is not YAML. It also refuses a key that is given
    twice, of which YAML itself would silently keep the last.
    """
    path = Path(path)
    try:
        text = read_text(path, MOST)
        locations: dict[Key, str] = {(): str(path)}
        root = compose(text)
        if root is None:
            return None, locations
        for count, (key, line) in enumerate(lines_of(root, (), path)):
            if count > len(text):  # aliases of aliases, which can stand for billions of values
                raise UserError(f"{path}: its aliases stand for too much; write the values out")
            locations[key] = f"{path}, line {line}"
        return yaml.SafeLoader("").construct_document(root), locations
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; give the path of a YAML file, config/config.yaml for example"
        ) from error
    except IsADirectoryError as error:
        raise UserError(
            f"{path}: a folder, not a YAML file; give the path of a file in it"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the path of a YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from error
    except RecursionError as error:
        raise UserError(
            f"{path}: nested too deeply; close the brackets, and let no alias hold itself"
        ) from error
    except yaml.MarkedYAMLError as error:
        where = f"{path}, line {error.problem_mark.line + 1}" if error.problem_mark else path
        raise UserError(
            f"{where}: not valid YAML: {error.problem}; "
            "check the indentation (spaces, no tabs) and the quotes there"
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a day or a number out of range
        problem = str(error).partition(";")[0]
        raise UserError(f"{path}: not valid YAML: {problem}; correct it there") from error


def read_keys(path: str | Path) -> tuple[dict[Any, Any], dict[Key, str]]:
    """`read_yaml` of a file that holds keys with values; raises `UserError` for any other."""
    content, locations = read_yaml(path)
    if not isinstance(content, dict | None):
        raise UserError(
            f"{path}: holds {type(content).__name__} instead of keys with values; "
            "begin with a line such as `run: my-run`"
        )
    return content or {}, locations


def compose(text: str) -> yaml.Node | None:
    """The tree of a document; None if it is empty."""
    if "\t" not in text:  # libyaml forgives some tabs
        with suppress(yaml.YAMLError):
            return QuickLoader(text).get_single_node()
    return yaml.SafeLoader(text).get_single_node()  # it words its errors in its own way


def lines_of(node: yaml.Node, key: Key, path: Path) -> Iterator[tuple[Key, int]]:
    """Everything inside `node`, which is the value of `key`, with its line in the file."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*key, index), item.start_mark.line + 1
            yield from lines_of(item, (*key, index), path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue  # a list as a key, which YAML itself refuses later
            inner, line = (*key, name.value), name.start_mark.line + 1
            if name.value in seen and name.tag != "tag:yaml.org,2002:merge":
                raise UserError(
                    f"{path}, line {line}: {'.'.join(map(str, inner))} is given twice; "
                    "keep one of them"
                )
            seen.add(name.value)
            yield inner, line
            yield from lines_of(value, inner, path)
