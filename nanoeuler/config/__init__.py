"""The configuration: reading and checking it, what each stage reads of it, and where files lie.

`load` gives the resolved configuration that everything else takes. `paths.Paths` names every file; `stages.stage_config` and
`stages.stage_identity` are the parts that a stage is handed and that decide whether it runs again.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nanoeuler.config.inline import read_inline


def load(source: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the configuration in `source`.

    The path of a YAML file gives the resolved configuration: checked against the schema, defaults filled in, the sources
    file read, the model preset expanded. Inline JSON (it starts with "{") is what a rule hands to a stage: the sections
    that the stage reads, already resolved, taken as they are. `overrides` are "section.key=value" texts for a YAML file.
    Raises `UserError` for any mistake in it.
    """
    if str(source).lstrip().startswith("{"):
        return read_inline(str(source))
    from nanoeuler.config.loading import (
        load_files,
        parse_overrides,
    )  # the schema's reader takes longer to import than a small stage to run

    return load_files([source], parse_overrides(overrides))
