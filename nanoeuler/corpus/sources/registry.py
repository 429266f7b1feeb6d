"""The declarations of all sources, and the readers of a corpus that is made of some."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.corpus.sources import TEXTS
from nanoeuler.corpus.sources.data_sets import DECLARED, TuningData
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.sources.source import Source, Step, Text, TextSource
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.corpus.document_sources import Reader

NAMED: Sequence[TextSource] = [
    import_module(f"nanoeuler.corpus.sources.{name}").SOURCE for name in TEXTS
]
"""The sources of documents that `corpus.sources` names by their names."""
ALL_TEXTS: Sequence[Text] = [*NAMED, OWN_TEXT]
SOURCES: Sequence[Source] = [*NAMED, *DECLARED]
"""All that is fetched."""
RECORDS = {source.name: source for source in DECLARED if isinstance(source, TuningData)}
"""The data sets that the stages of tuning learn from."""
STEPS: Mapping[str, Step] = {step.rule: step for source in SOURCES for step in source.steps}
"""All steps by the names of their rules."""
FETCHING = [source.steps[0].rule for source in SOURCES]
"""The rules that need the network."""


def choose_readers(
    own: Sequence[str],
    files: Mapping[str, Sequence[str]] | None = None,
    config: Mapping[str, Any] | None = None,
    group: int | None = None,
) -> list["Reader"]:
    """Return the readers of a corpus, in the order of `corpus.sources` in `config`.

    `files` are those of the sources, by their names. If `corpus.sources` has no own text, the paths
    in `own` come last. If it has some, `own` adds nothing, since it may list the files of a folder
    there. With nothing named, all that is given is used. A file belongs to the first source that
    finds it. `group` is that of `TextSource.reader`. Raises `UserError` where the names do not
    match what is given.
    """
    from nanoeuler.corpus.document_sources import OwnText
    from nanoeuler.corpus.own_text import Named, find, slug
    from nanoeuler.corpus.text_files import USUAL

    given, config = files or {}, config or {}
    settings, sources = config.get("corpus", {}), config.get("sources", {})
    readings = dict(map(Named.of, settings.get("sources", [])))
    named = {source.name: source for source in NAMED}
    paths = list(readings) or [name for name in named if given.get(name)]
    for name, source in named.items():
        present = bool(given.get(name))
        if present and name not in paths:
            raise UserError(
                f"corpus.sources does not name {name}, but files of it were given; "
                "add it there or leave them out"
            )
        if not present and name in paths:
            raise UserError(
                f"corpus.sources names {name}, but no files of it were given; "
                f"give them with {source.option.flag}"
            )
    readers: list[Reader] = []
    names = set(named)
    taken: set[str] = set()
    own_is_named = any(name not in named for name in paths)
    for entry in dict.fromkeys([*paths, *([] if own_is_named else own)]):
        if entry in named:
            licence = sources.get(entry, {}).get("licence", "")
            unique = [Path(path) for path in dict.fromkeys(given[entry])]
            readers.append(named[entry].reader(unique, licence, settings, group))
            continue
        found, notices = find(entry)
        own_files = [file for file in found if os.path.realpath(file) not in taken]
        if not own_files:
            raise UserError(
                f"{entry}: all its files belong to sources named before it; leave it out"
            )
        taken.update(os.path.realpath(file) for file in own_files)
        name, reading = unused(slug(entry), names), readings.get(entry, USUAL)
        readers.append(OwnText(entry, own_files, name, notices, reading))
    if not readers:
        raise UserError(
            f"no text to build a corpus of; name {', '.join(named)} or a path of your own in "
            "corpus.sources"
        )
    for path in own:
        if own_is_named and os.path.realpath(path) not in taken and path not in paths:
            log.line("text", f"{path} was left out: corpus.sources names other files; add it there")
    return readers


def unused(name: str, names: set[str]) -> str:
    """Return `name`, followed by a number if `names` has it already, and add it to `names`."""
    candidate = name
    number = 2
    while candidate in names:
        candidate = f"{name}-{number}"
        number += 1
    names.add(candidate)
    return candidate
