"""Print docs/architecture.md: the rooms of the package, and which room imports which.

python scripts/architecture.py > docs/architecture.md

The order of the rooms is that of import-linter's layers in pyproject.toml; a room's sentence is the
first line of its docstring.
"""

import ast
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nanoeuler"
PAGE = """\
# Architecture

<!-- made by scripts/architecture.py -->

The package is a row of rooms, each a folder (or a file) of `nanoeuler/`. A room imports only rooms
below it, and no two files import each other, directly or by way of others. `make lint` checks both
by [import-linter's contracts](../pyproject.toml). So each room can be read, and tested, knowing
only what lies below it. `tests/` mirrors the rooms. Around the package, `workflow/rules` wires the
commands of `cli` into a pipeline, and `config/` holds the runs.

## Rooms, from top to bottom

{rooms}

## Arrows

An arrow that longer paths imply is left out, and so are those to {leaves}.

```mermaid
flowchart TD
{arrows}
```
"""


LEAVES = "log", "shipped", "errors"


def rooms() -> list[str]:
    """The rooms from top to bottom, and `LEAVES`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    names = [name.strip() for layer in layers for name in layer.split(":")]
    return [name for name in names if name != "__main__"]


def sources(room: str) -> list[Path]:
    file = PACKAGE / f"{room}.py"
    return [file] if file.exists() else sorted((PACKAGE / room).rglob("*.py"))


def sentence(room: str) -> str:
    file = PACKAGE / f"{room}.py"
    text = (file if file.exists() else PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].rstrip(".")


def imported(room: str) -> set[str]:
    """The rooms that a room imports, anywhere in its files."""
    names = set()
    for path in sources(room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{name.name}" for name in node.names}
    parts = [name.split(".") for name in names]
    found = {part[1] for part in parts if part[0] == "nanoeuler" and len(part) > 1}
    return found & set(rooms()) - {room}


def described(room: str) -> str:
    """A paragraph: the room, and what it is."""
    text = f"- **{room}**: {sentence(room)}."
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def page() -> str:
    order = rooms()
    imports = {room: imported(room) - {*LEAVES} for room in order}
    arrows = {room: [below for below in order if below in imports[room]] for room in order}
    reached: dict[str, set[str]] = {}
    for room in reversed(order):
        reached[room] = set(arrows[room]).union(*(reached[below] for below in arrows[room]))
    drawn = [
        f"  {room} --> {below}"
        for room in order
        for below in arrows[room]
        if not any(below in reached[other] for other in arrows[room])
    ]
    return PAGE.format(
        rooms="\n".join(map(described, order)),
        arrows="\n".join(drawn),
        leaves=", ".join(f"`{leaf}`" for leaf in LEAVES),
    )


if __name__ == "__main__":
    print(page(), end="")
