"""Download a file: resumable and verified, and the target's name is only given to a whole file.

The bytes received so far lie beside the target under a hidden name, with a note of their address
and of the file's version. After Ctrl-C, kill -9 or a lost connection the next attempt resumes
there. Only a complete and verified file takes the target's name.
"""

import contextlib
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from nanoeuler import log
from nanoeuler.corpus.addresses import resolve, shown
from nanoeuler.corpus.remote_file import LARGEST_DOWNLOAD, Patience, RemoteFile, StartOver
from nanoeuler.errors import UserError
from nanoeuler.storage.files import (
    MOST_NOTE,
    explain_os_errors,
    read_json,
    read_text,
    sha256_file,
    sync,
    write_json,
)
from nanoeuler.storage.shape import check_shape
from nanoeuler.storage.temporary import lock_file

TRIES_OF_A_DAMAGED_FILE = 2


@dataclass(frozen=True)
class SourceFile:
    """A file as an entry of the sources file describes it.

    `largest` is the most bytes of a download whose size is not given.
    """

    address: str
    revision: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    largest: int = LARGEST_DOWNLOAD

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], revision: str | None = None) -> "SourceFile":
        revision = entry.get("revision") or revision
        return cls(entry["url"], revision, entry.get("bytes"), entry.get("sha256"))

    @classmethod
    def numbered(cls, section: Mapping[str, Any], files: str, number: int) -> "SourceFile":
        """A file of the list `files` of a section. Raises `UserError` where it has no such file."""
        entries, noun = section[files], files.removesuffix("s")
        if not 0 <= number < len(entries):
            raise UserError(
                f"--{noun} {number}: the sources file lists {log.counted(len(entries), noun)}, "
                "counted from 0; add it there, or give a smaller number"
            )
        return cls.from_entry(entries[number], section.get("revision"))

    def remote(self, address: str, patience: Patience | None, pause: float = 0.0) -> RemoteFile:
        """Return the file at `address`, where `location` says that it is."""
        return RemoteFile(address, pause, patience, self.bytes, self.largest)

    @property
    def url(self) -> str:
        """The address as it is told and noted, without passwords."""
        return shown(self.address) if "://" in self.address else self.address

    @property
    def location(self) -> str | Path:
        """The web address (text) or local path (`Path`) of the file."""
        return resolve(self.address, self.revision)

    def mismatch(self, path: Path) -> str | None:
        """Say how the file at `path` differs from the entry's length or hash, or return None.

        A length or hash that the entry does not give is not checked.
        """
        size = path.stat().st_size
        if self.bytes is not None and size != self.bytes:
            return f"has {size:,} bytes, where the sources file says {self.bytes:,}"
        if self.sha256 is not None and (found := sha256_file(path)) != self.sha256:
            return f"has the SHA-256 {found[:12]}…, where the sources file says {self.sha256[:12]}…"
        return None


@dataclass(frozen=True)
class Copy:
    """A verified file on this machine, and the revision that it has at its source, if known."""

    path: Path
    revision: str | None

    @functools.cached_property
    def sha256(self) -> str:
        return sha256_file(self.path)


@contextlib.contextmanager
def local_copy(
    source: SourceFile, output: Path, patience: Patience | None = None
) -> Iterator[Copy]:
    """Yield the verified file of `source`, from which `output` is to be made.

    A local file is used in place. A remote one is downloaded to a hidden name beside `output` and
    removed afterwards. Without a SHA-256 in the sources file, it must be the file of the first
    download that `output` could be made from.
    """
    location = source.location
    if isinstance(location, Path):
        require_file(location)
        if problem := source.mismatch(location):
            raise UserError(f"{location}: {problem}; fetch it again, or correct the entry")
        yield Copy(location, source.revision)
        return
    address = shown(location)
    scratch = output.with_name(f".{output.name}.download")
    commit = download(source, scratch, patience=patience)
    try:
        copy = Copy(scratch, source.revision or commit)
        note = output.with_name(f"{output.name}.first.json")
        if source.sha256 is None:
            check_first(note, address, copy)
        yield copy
        if source.sha256 is None:  # only now is it known to hold what it should
            note_first(note, address, copy)
    finally:
        scratch.unlink(missing_ok=True)


class FirstDownload(TypedDict):
    """Size, hash and commit of the file that an address served the first time."""

    sha256: str
    revision: str | None
    date: str


def read_firsts(note: Path) -> dict[str, FirstDownload]:
    """Address → what is noted of its first download."""
    if not note.is_file():
        return {}
    noted: dict[str, FirstDownload] = read_json(note)
    mend = "delete it, if what it names may be another file than the first time"
    check_shape(note, noted, dict[str, FirstDownload], mend, "a note of first downloads")
    return noted


def check_first(note: Path, address: str, copy: Copy) -> None:
    """Raise `UserError` for another file than `address` served the first time."""
    first = read_firsts(note).get(address)
    if first and first["sha256"] != copy.sha256:
        raise UserError(
            f"{address}: is another file than on {first['date']} (sha256 {copy.sha256[:12]}… now, "
            f"{first['sha256'][:12]}… in {note}); to take the new one, add "
            f"'sha256: {copy.sha256}' to its entry in the sources file"
        )


def note_first(note: Path, address: str, copy: Copy) -> None:
    """Note the hash of the file that `address` served, unless one is noted.

    The note outlives what is made of the file, so that a stage that runs again, for another
    held-out share, gets the same file.
    """
    noted = read_firsts(note)
    if address not in noted:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        noted[address] = {"sha256": copy.sha256, "revision": copy.revision, "date": today}
        write_json(note, noted)
        log.line("noted", f"{note} has the sha256 of {address}; the next download must have it")


def require_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; correct the address in the sources file")


def download(
    source: SourceFile,
    target: Path,
    pause: float = 0.0,
    patience: Patience | None = None,
    check: Callable[[Path], None] | None = None,
) -> str | None:
    """Fetch `source`, whether remote or local, and give it the name `target`.

    Returns the commit that the server says the file is of.

    `pause` is in seconds, between two requests to one host. `check` raises `UserError` for content
    that must not be kept.
    """
    partial = partial_path(target)
    with explain_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_process_at(partial):
            for attempt in range(1, TRIES_OF_A_DAMAGED_FILE + 1):
                commit = fetch(source, partial, pause, patience)
                if not (problem := source.mismatch(partial)):
                    break
                forget(partial)
                if attempt == TRIES_OF_A_DAMAGED_FILE or isinstance(source.location, Path):
                    raise UserError(
                        f"{source.url}: {problem}; it was damaged on the way, or has changed: "
                        "try again, or correct the sources file"
                    )
                log.line("retry", f"{source.url}: {problem}; fetching it once more")
            if check is not None:
                try:
                    check(partial)
                except UserError:
                    forget(partial)
                    raise
            os.replace(partial, target)
            sync(target.parent)
            forget(partial)
    return commit


def partial_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def note_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def forget(partial: Path) -> None:
    for path in (partial, note_path(partial)):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_process_at(partial: Path) -> Iterator[None]:
    """Hold the lock of a partial file. Raises `UserError` in a second process that wants it."""
    path = partial.with_name(f"{partial.name}.lock")
    file = lock_file(path, wait=False)
    if file is None:
        raise UserError(
            f"{partial}: another process is downloading this file; wait until it has ended"
        )
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def fetch(source: SourceFile, partial: Path, pause: float, patience: Patience | None) -> str | None:
    """Make `partial` the whole file, resuming where an earlier attempt stopped.

    Returns the commit that the server says the file is of.
    """
    location = source.location
    if isinstance(location, Path):
        require_file(location)
        shutil.copyfile(location, partial)
        return None
    remote = source.remote(location, patience, pause)
    remote.validator, have = resumable(partial, remote.url)
    for _ in range(remote.patience.attempts):
        try:
            append(remote, partial, have)
            return remote.commit
        except UserError:
            if not partial.stat().st_size:
                forget(partial)
            raise
        except StartOver:
            if have and remote.size == have:  # all bytes had arrived before the interruption
                return remote.commit
            have = 0
            remote.validator = remote.size = None
    raise UserError(
        f"{source.url}: the connection breaks off and cannot be resumed; "
        "try again later, or name another mirror"
    )


def append(remote: RemoteFile, partial: Path, have: int) -> None:
    """Write what `remote` sends from byte `have` on to `partial`."""
    tag = f"download {partial.name[1 : -len('.partial')]}"
    with (
        contextlib.closing(remote.read(have)) as chunks,
        open(partial, "ab") as file,
        log.Progress(tag, None, "MB", 1e-6, done=have) as progress,
    ):
        file.truncate(have)
        noted = False
        for chunk in chunks:
            if not noted:
                progress.total = remote.size
                write_json(note_path(partial), {"url": remote.url, "validator": remote.validator})
                noted = True
            file.write(chunk)
            progress.update(len(chunk))
        file.flush()
        os.fsync(file.fileno())


def resumable(partial: Path, address: str) -> tuple[str | None, int]:
    """Return the validator of a partial file and the number of its bytes.

    Without a validator, which tells versions of the remote file apart, a part cannot be completed:
    then they are None and 0.
    """
    try:
        note = json.loads(read_text(note_path(partial), MOST_NOTE))
        have = partial.stat().st_size
    except (FileNotFoundError, UserError, ValueError):
        return None, 0
    match note:
        case {"url": str(url), "validator": str(validator)} if url == address and have:
            log.line("resume", f"{address}: going on after {have:,} bytes")
            return validator, have
    return None, 0
