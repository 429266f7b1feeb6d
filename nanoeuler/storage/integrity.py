"""Compare what is read with the SHA-256 that its writer noted: a flipped bit is another model.

A folder's manifest or description holds the hashes of its files. A JSON file that no other file
describes holds its own, the seal:

    write_json(path, seal({"version": 1, "step": 90}))
    check_seal(path, read_json(path), origin)

What a seal proves to be as its writer left it is not checked key by key.
"""

import contextlib
import functools
import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.storage.files import (
    MOST_NOTE,
    atomic_write,
    canonical_json,
    read_bounded,
    read_json,
    read_text,
    sha256_file,
    sha256_text,
)
from nanoeuler.system.machine import cache_folder

SEAL = "seal"
"""Key of a JSON object that holds the SHA-256 of all its other keys."""

KEPT_BYTES = 64 << 20
"""Smallest file whose hash is kept for other processes; smaller ones take 0.1 s to hash."""

SETTLED_SECONDS = 2.0
"""A file that changed this recently could change again without a new time of change."""

FORGOTTEN_SECONDS = 30 * 24 * 3600.0
"""Age of a kept hash at which the file is read again: disks lose bits without a word."""


@dataclass(frozen=True)
class Origin:
    """Who wrote a file, and what to do when it is no longer what was written."""

    writer: str  # "`nanoeuler tokenize`", "the stage sft"
    remedy: str  # "delete FOLDER and run it again"
    source: str | None = None  # what the writer made it from: an address

    def refusal(self, path: Path, found: str, expected: object) -> UserError:
        noted = f"{expected[:12]}… then" if isinstance(expected, str) else "none noted"
        source = f" from {self.source}" if self.source else ""
        return UserError(
            f"{path}: its bytes are not those that {self.writer} wrote{source} "
            f"(sha256 {found[:12]}… now, {noted}); {self.remedy}"
        )


def check_file(path: Path, expected: object, origin: Origin) -> str:
    """The SHA-256 of a file, which must be the one that its writer noted; None compares nothing.

    Raises `UserError` where it is another, or where there is no such file.
    """
    try:
        found = sha256_file(path) if expected is None else kept_sha256(path)
        if expected not in (None, found):
            found = sha256_file(path)  # the kept hash may be what is damaged
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; {origin.remedy}") from error
    if expected not in (None, found):
        raise origin.refusal(path, found, expected)
    return found


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object to be written, with the hash of its content."""
    return {**content, SEAL: seal_of(content)}


def check_seal(path: Path, content: Mapping[str, Any], origin: Origin) -> None:
    """Raise `UserError` for a JSON object from `path` whose seal is broken or gone.

    `content` may be a part of the file's.
    """
    expected = content.get(SEAL)
    if expected != seal_of(content):
        raise origin.refusal(path, seal_of(content), expected)


def check_size(path: Path, size: int, manifest: Path, remedy: str) -> None:
    """Raise `UserError` for a file that has not the size that `manifest` says."""
    found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no such file"
    if found != f"{size:,} bytes":
        raise UserError(f"{path}: {found} where {manifest.name} says {size:,} bytes; {remedy}")


def read_sealed(path: Path, origin: Origin, what: str, key: str, mend: str) -> dict[str, Any]:
    """The JSON object in `path`, which is as its writer sealed it, so that it has all its keys.

    `what` says what it should be: "an evaluation"; all such have `key`, and `mend` says what to do
    about another file. Raises `UserError` for one, and for an object that has changed.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not {what} (not a JSON object); {mend}")
    for needed in (key, SEAL):
        if needed not in value:
            raise UserError(f"{path}: not {what} ({needed!r} is missing); {mend}")
    check_seal(path, value, origin)
    return value


def seal_of(content: Mapping[str, Any]) -> str:
    others = {key: value for key, value in content.items() if key != SEAL}
    return sha256_text(canonical_json(json.loads(json.dumps(others))))  # as it is read again


def note_path(path: Path) -> Path:
    return path.parent / f"{path.name}.sha256"


def write_note(path: Path) -> None:
    """Write the hash of a file beside it, for `check_note` and for `sha256sum -c`."""
    with atomic_write(note_path(path)) as file:
        file.write(f"{sha256_file(path)}  {path.name}\n")


def check_note(path: Path, origin: Origin) -> None:
    """Raise `UserError` unless the file is the one that the note beside it is of, if there is one.

    It is for files whose format has no room for a seal.
    """
    try:
        note = read_bounded(note_path(path), MOST_NOTE).decode("utf-8", "replace")
    except OSError:
        return
    check_file(path, note.partition(" ")[0], origin)


# ---- hashes of files


def kept_sha256(path: Path) -> str:
    """The SHA-256 of a file, found once while it has the same inode, size and times.

    That of a large file is kept in the user's cache folder, so that the next process need not read
    the whole file.
    """
    identity = identity_of(path)
    return remembered(str(path), *identity) if identity else sha256_file(path)


def identity_of(path: Path) -> tuple[int, ...]:
    """Size, inode and times of a file; none where it could change again without a new time."""
    status = os.stat(path)
    if time.time() - max(status.st_mtime, status.st_ctime) < SETTLED_SECONDS:
        return ()
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_size, status.st_dev, status.st_ino, *times


@functools.cache
def remembered(path: str, *identity: int) -> str:
    note = note_of_hash(Path(path), identity)
    found = read_hash(note)
    if found is None:
        found = sha256_file(path)
        keep_hash(note, found)
    return found


def note_of_hash(path: Path, identity: tuple[int, ...]) -> Path | None:
    """Where the hash of a file is kept; None for a small one, and for a user without a home."""
    if not identity or identity[0] < KEPT_BYTES:
        return None
    name = sha256_text(canonical_json([socket.gethostname(), str(path.absolute()), *identity]))
    try:
        return cache_folder() / "sha256" / name
    except RuntimeError:
        return None


def read_hash(note: Path | None) -> str | None:
    with contextlib.suppress(OSError, UserError, UnicodeDecodeError):
        if note is not None and time.time() - note.stat().st_mtime < FORGOTTEN_SECONDS:
            return read_text(note, MOST_NOTE)
    return None


def keep_hash(note: Path | None, found: str) -> None:
    """Where nothing can be kept, the next process reads the file again."""
    if note is not None:
        with contextlib.suppress(OSError, UserError), atomic_write(note) as file:
            file.write(found)


class HashedReading:
    """Compares a file with the hash that its writer noted, while it is read from end to end.

    Nothing is computed where `expected` is None, or is the hash that was kept.
    """

    def __init__(self, path: Path, expected: str | None, origin: Origin):
        self.path, self.expected, self.origin = path, expected, origin
        self.identity = identity_of(path)
        known = expected is None or read_hash(note_of_hash(path, self.identity)) == expected
        self.hash = None if known else hashlib.sha256()

    def update(self, content: bytes) -> None:
        if self.hash:
            self.hash.update(content)

    def finish(self) -> None:
        """Raise `UserError` unless what was read is what the writer wrote."""
        if self.hash:
            found = self.hash.hexdigest()
            if found != self.expected:
                raise self.origin.refusal(self.path, found, self.expected)
            if self.identity and self.identity == identity_of(self.path):
                keep_hash(note_of_hash(self.path, self.identity), found)
