"""Read one's own text: .txt and .md files, folders and globs named in `corpus.sources`.

A file is a document; files come in the order of their sorted paths. A file of more than `PIECE`
bytes is read in pieces that end with a paragraph (or else as borders.py says), each a document, so
that a file of any size fits in memory. Header and licence of Project Gutenberg are left out where
their markers are found.
"""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nanoeuler import log
from nanoeuler.corpus.borders import cut
from nanoeuler.corpus.decode import UTF_16_MARKS, decode
from nanoeuler.corpus.gutenberg import strip_wrapping
from nanoeuler.errors import UserError, brief
from nanoeuler.names import plain_name
from nanoeuler.outputs import Outputs

SUFFIXES = (".txt", ".md")
PIECE = 16_000_000  # bytes


def slug(path: str) -> str:
    """Return the name of a source, made of its path without the suffix of a single file.

    It has at most 60 letters, digits and single hyphens.
    """
    stem = path[: -len(Path(path).suffix)] if path.lower().endswith(SUFFIXES) else path
    return plain_name(stem, last=True) or "text"


class Found(NamedTuple):
    """Files, sorted, and sentences about those beside them that were left out."""

    files: list[Path]
    notices: list[str]


def find_files(path: str) -> list[Path]:
    return find(path).files


def find(path: str) -> Found:
    """Return the .txt and .md files that `path` (a file, a folder or a glob) names.

    Folders are searched with their subfolders. Of what a folder or a glob has, hidden and empty
    files are left out, and so are those that nanoeuler has written: each must be named by itself.
    Raises `UserError` if there are none.
    """
    require_spelling(path)
    expanded = os.path.expanduser(path)
    if os.path.exists(expanded):
        found = [Path(expanded)]
    elif glob.has_magic(expanded):
        found = [Path(match) for match in glob.glob(expanded, recursive=True)]
    else:
        raise UserError(
            f"{path}: no such file or folder; correct the path (it counts from the folder in which "
            "the command runs; in corpus.sources, where nothing is there, from the configuration's "
            "folder, or the one around it if that is called config)"
        )
    if found == [Path(expanded)] and found[0].is_file():
        if not is_text_name(found[0]):
            raise UserError(
                f"{path}: not a .txt or .md file; save it as plain text and name that file"
            )
        return Found(found, [])
    outputs = Outputs(expanded if found == [Path(expanded)] else search_root(expanded))
    texts = {file for each in found for file in texts_in(each)}
    named = [file for file in sorted(texts) if not outputs.have(file)]
    if not named:
        beside = outputs.described()
        raise UserError(
            f"{path}: has no .txt or .md file with text in it"
            f"{beside and f' but {beside}'}; correct the path"
        )
    beside = outputs.described()
    return Found(named, [f"{path}: left out {beside}"] if beside else [])


def require_spelling(path: str) -> None:
    """Raise `UserError` for bytes that are no UTF-8: a configuration could not hold the name."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{brief(path)}: a name that is not UTF-8; rename it, or give the folder that it is in"
        ) from error


def search_root(pattern: str) -> str:
    """The folder that a glob starts from."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern or "."


def is_output(path: str) -> bool:
    """Whether nanoeuler has written the file `path`, or all texts in that folder."""
    outputs = Outputs(path)
    texts = texts_in(Path(os.path.expanduser(path)))
    return bool(texts) and all(map(outputs.have, texts))


def texts_in(path: Path) -> list[Path]:
    """The texts with anything in them that are `path`, or in that folder."""
    files = [path] if path.is_file() else files_below(path)
    return [file for file in files if is_text_name(file) and file.stat().st_size]


def files_below(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and not any(
            part.startswith(".") for part in file.relative_to(folder).parts
        ):
            yield file


def is_text_name(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES


def read_documents(file: Path, aloud: bool = False) -> Iterator[str]:
    """Yield the text of `file`: whole, or in pieces if it is large.

    Raises `UserError` if it is empty or cannot be read as text. With `aloud`, an encoding that had
    to be guessed and parts that were left out are logged.
    """
    empty, encoding_said = True, not aloud
    left_out = 0
    for raw in read_pieces(file):
        decoded = decode(raw)
        if b"\0" in raw and decoded.encoding != "utf-16":
            raise UserError(
                f"{file}: a binary file, not text; leave it out, or save it as plain text in UTF-8"
            )
        if decoded.unreadable:
            raise UserError(
                f"{file}: {decoded.unreadable} places in it are neither UTF-8 nor Windows-1252; "
                "save it as UTF-8"
            )
        if not encoding_said and decoded.encoding not in ("utf-8", "utf-16"):
            log.line(
                "text",
                f"{file} was read as {decoded.encoding}; save it as UTF-8 if its accents look "
                "wrong",
            )
            encoding_said = True
        documents = strip_wrapping(decoded.text)
        left_out += len(decoded.text) - sum(map(len, documents))
        for document in documents:
            if document.strip():
                empty = False
                yield document
    if left_out and aloud:
        log.line(
            "text",
            f"{file}: {left_out:,} characters of Project Gutenberg's header and licence left out",
        )
    if empty:
        raise UserError(f"{file}: empty; leave it out or put text into it")


def read_pieces(file: Path) -> Iterator[bytes]:
    """Yield `file` in pieces of about `PIECE` bytes, cut at the coarsest border (borders.py)."""
    rest = b""
    try:
        with open(file, "rb") as opened:
            while block := opened.read(PIECE):
                rest += block
                if len(rest) < PIECE:
                    break
                if rest.startswith(UTF_16_MARKS):
                    raise UserError(
                        f"{file}: UTF-16 and over {PIECE / 1e6:.0f} MB; save it as UTF-8"
                    )
                end = cut(rest, len(rest) // 2, len(rest) - 4)  # the last character may be half
                yield rest[:end]
                rest = rest[end:]
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}); correct its permissions or leave it out"
        ) from error
    if rest:
        yield rest
