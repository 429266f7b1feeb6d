"""The configuration: reading and checking it, what each stage reads of it, and where files are.

`load` returns the resolved configuration as nested dictionaries. The workflow writes it to
results/<run>/configuration.json, which all stages of the run read. It was checked before it was
written, and the hash in it shows that it still is what was checked.

`settings` declares its sections; `settings.Sft.read(config["sft"])` builds one. `stages` declares
the stages of training. `paths.Paths` names every file of a run. `rules` says which part of the
configuration makes a rule of the workflow run again.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.shipped import find

RESOLVED = "configuration.json"
CONTENT = "configuration"


def load(source: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the configuration in `source`.

    For the path of a YAML file, also of a shipped one, it is resolved: checked, with defaults
    filled in, the sources file read and the model preset expanded. `overrides` are
    "section.key=value" texts for such a file.
    A run's configuration.json, which the workflow gives to its stages, is resolved already. Inline
    JSON, which starts with "{", holds the sections that a stage reads, and is returned unchanged.
    Raises `UserError` for a mistake.
    """
    # reading YAML is imported where it is needed: it takes longer than a small stage runs
    if str(source).lstrip().startswith("{"):
        from nanoeuler.config.loading import read_inline

        return read_inline(str(source))
    path = find(source)
    if path.suffix == ".json" and (config := read_resolved(path)) is not None:
        return config
    from nanoeuler.config.loading import load_files, parse_overrides

    return load_files([path], parse_overrides(overrides))


def write_resolved(path: str | Path, config: Mapping[str, Any]) -> None:
    from nanoeuler.storage.files import write_json
    from nanoeuler.storage.integrity import seal

    write_json(path, seal({"version": 1, CONTENT: config}))


def read_resolved(path: Path) -> dict[str, Any] | None:
    """The configuration that `write_resolved` wrote; None without a file, and in a JSON file of
    another kind.

    Raises `UserError` where it was changed, and where the file is no JSON.
    """
    from nanoeuler.storage.files import read_json
    from nanoeuler.storage.integrity import Origin, check_seal

    content = read_json(path) if path.is_file() else None
    if not isinstance(content, dict) or not isinstance(content.get(CONTENT), dict):
        return None
    remedy = "start the workflow again, which writes it, or give a YAML file"
    check_seal(path, content, Origin("the workflow", remedy))
    return content[CONTENT]
