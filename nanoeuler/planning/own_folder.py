"""The folder of results that belongs to one's own text, so that no text replaces another's model.

It is named after the text. Where another text has that name already, as `b/input.txt` beside
`a/input.txt`, the folder around it is named, too, or else a hash.
"""

import glob
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanoeuler.config.yaml_file import read_yaml
from nanoeuler.corpus.sources import is_named
from nanoeuler.errors import UserError
from nanoeuler.storage.names import plain_name

UNNAMED = "own-text"


def choose_name(texts: Sequence[str], results: Path, first_line: str) -> str:
    """The name of the run of `texts`: one that is there already, or else a free one.

    `first_line` is that of the configuration that is asked for.
    """
    names = list(dict.fromkeys(candidates(texts)))
    for name in names:
        if belongs(results / name / "config.yaml", texts, first_line):
            return name
    return next((name for name in names if not (results / name).exists()), names[-1])


def candidates(texts: Sequence[str]) -> Iterator[str]:
    """Names for the run of `texts`, the shortest first."""
    name = name_of(texts[0])
    yield name
    around = plain_name(shown(texts[0]).parent.name)
    if around:
        yield f"{around}-{name}"
    paths = "\n".join(sorted(real_paths(texts)))
    yield f"{name}-{hashlib.sha256(os.fsencode(paths)).hexdigest()[:8]}"


def name_of(path: str) -> str:
    """A name for a run: that of the file or folder, as `plain_name` writes it."""
    return plain_name(shown(path).stem) or UNNAMED


def shown(path: str) -> Path:
    """The file or folder that `path` names, or that a glob starts from."""
    whole = os.path.abspath(os.path.expanduser(path))
    while glob.has_magic(whole) and not os.path.exists(whole):
        whole = os.path.dirname(whole)
    return Path(whole)


def command_line(words: Sequence[str]) -> str:
    """The words as a shell reads them, on one line whatever is in them."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(escaped, word))}'"
        for word in words
    )


def escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def belongs(config_file: Path, texts: Sequence[str], first_line: str) -> bool:
    """Whether this configuration is that of a run of `texts`."""
    if not config_file.is_file():
        return False
    return asks(config_file) == first_line or real_paths(sources(config_file)) == real_paths(texts)


def asks(config_file: Path) -> str:
    """The first line of a configuration, which says what command has written it."""
    with open(config_file, encoding="utf-8", errors="replace") as file:
        return file.readline(100_000).rstrip("\n")


def sources(config_file: Path) -> list[str]:
    """The texts of one's own that a configuration names; none where it can't be read."""
    try:
        content, _ = read_yaml(config_file)
    except UserError:
        return []
    corpus = content.get("corpus") if isinstance(content, dict) else None
    named = corpus.get("sources") if isinstance(corpus, dict) else None
    if not isinstance(named, list):
        return []
    paths = (each.get("path") if isinstance(each, dict) else each for each in named)
    return [str(path) for path in paths if not is_named(path)]


def real_paths(paths: Sequence[str]) -> set[str]:
    return {os.path.realpath(os.path.expanduser(path)) for path in paths}
