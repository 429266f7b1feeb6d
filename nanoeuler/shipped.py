"""Files that come with this package: the workflow, the configurations and a small model.

In a clone they lie beside the package, and in a wheel inside it. So `config/small.yaml` and
`models/stories` mean the same wherever nanoeuler runs, unless a file of that name is there.
"""

import os
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError

WITHIN = Path(__file__).parent / "share"
"""Their folder in the wheel (pyproject.toml)."""
HOME = WITHIN if WITHIN.is_dir() else Path(__file__).parents[1]


def find(path: str | Path) -> Path:
    """`path` if something is there, else what is shipped by that name, if anything is."""
    path = Path(path)
    named = len(path.parts) > 1 and path.parts[0] in ("config", "models") and ".." not in path.parts
    is_ours = named and not os.path.exists(path) and os.path.exists(HOME / path)
    return HOME / path if is_ours else path


def find_snakefile() -> Path:
    """The workflow: that of the package in its clone, of a clone that is the working folder, or of
    the wheel. Raises `UserError` where there is none."""
    homes = (Path.cwd(), HOME) if HOME == WITHIN else (HOME, Path.cwd())
    for home in homes:
        if (home / "workflow/rules/training.smk").is_file():
            return Path(os.path.relpath(home / "Snakefile"))
    raise UserError("there is no workflow here; change to the folder that nanoeuler's clone is")


def tables_beside(module: str) -> dict[str, Any]:
    """Return the tables of the TOML file beside a module, whose path this is."""
    import tomllib

    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
