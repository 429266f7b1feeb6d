"""The configuration: reading and checking it, what each stage reads of it, and where files are.

`load` returns the resolved configuration as nested dictionaries, which can be handed on as JSON.
`settings` and `sources` declare its sections; `settings.Sft.read(config["sft"])` builds one.
`paths.Paths` names every file of a run. `stages` says which part of the configuration a stage is
given, and which part makes it run again.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nanoeuler.shipped import find


def load(source: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the configuration in `source`.

    For the path of a YAML file, also of a shipped one, it is resolved: checked, with defaults
    filled in, the sources file read and the model preset expanded. `overrides` are
    "section.key=value" texts for such a file.
    Inline JSON, which starts with "{", is what a rule gives to a stage, or "@" and the path of a
    file with such JSON. It holds the sections that the stage reads, resolved already, and is
    returned unchanged. Raises `UserError` for a mistake.
    """
    from nanoeuler.config.inline import read_inline, read_inline_file

    if str(source).startswith("@"):
        return read_inline_file(Path(str(source)[1:]))
    if str(source).lstrip().startswith("{"):
        return read_inline(str(source))
    # imported here because it takes longer than a small stage runs
    from nanoeuler.config.loading import load_files, parse_overrides

    return load_files([find(source)], parse_overrides(overrides))
