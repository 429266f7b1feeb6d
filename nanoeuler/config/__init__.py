"""The configuration: reading and checking it, what each stage reads of it, and where files are.

`load` returns the resolved configuration as nested dictionaries, which can be handed on as JSON.
`settings` and `sources` declare its sections; `settings.Sft.read(config["sft"])` builds one.
`stages` declares the stages of training. `paths.Paths` names every file of a run. `rules` says
which part of the configuration makes a rule of the workflow run again.
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
    A run's configuration.json, which the workflow gives to its stages, is resolved already. Inline
    JSON, which starts with "{", holds the sections that a stage reads, and is returned unchanged.
    Raises `UserError` for a mistake.
    """
    # each is imported where it is needed: they take longer than a small stage runs
    if str(source).lstrip().startswith("{"):
        from nanoeuler.config.inline import read_inline

        return read_inline(str(source))
    from nanoeuler.config.resolved import is_resolved, read_resolved

    path = find(source)
    if is_resolved(path):
        return read_resolved(path)
    from nanoeuler.config.loading import load_files, parse_overrides

    return load_files([path], parse_overrides(overrides))
