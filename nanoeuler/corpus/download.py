"""Download a file: resumable and verified, and the target's name is only given to a whole file.

The bytes received so far lie beside the target under a hidden name, with a note of their address
and of the file's version. After Ctrl-C, kill -9 or a lost connection the next attempt resumes
there. Only a complete and verified file takes the target's name.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.addresses import resolve
from nanoeuler.corpus.limits import LARGEST_DOWNLOAD
from nanoeuler.corpus.remote_file import Patience, RemoteFile, StartOver
from nanoeuler.errors import UserError
from nanoeuler.files import explain_os_errors, sha256_file, sync, write_json
from nanoeuler.locks import lock_file

TRIES_OF_A_DAMAGED_FILE = 2


@dataclass(frozen=True)
class Source:
    """A file as an entry of the sources file describes it.

    `largest` is the most bytes of a download whose size is not given.
    """

    url: str
    revision: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    largest: int = LARGEST_DOWNLOAD

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], revision: str | None = None) -> "Source":
        revision = entry.get("revision") or revision
        return cls(entry["url"], revision, entry.get("bytes"), entry.get("sha256"))

    def remote(self, address: str, patience: Patience | None, pause: float = 0.0) -> RemoteFile:
        """Return the file at `address`, where `location` says that it is."""
        return RemoteFile(address, pause, patience, self.bytes, self.largest)

    @property
    def location(self) -> str | Path:
        """The web address (text) or local path (`Path`) of the file."""
        return resolve(self.url, self.revision)

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


@contextlib.contextmanager
def local_copy(source: Source, scratch: Path, patience: Patience | None = None) -> Iterator[Path]:
    """Yield the verified file of `source` on this machine.

    A local file is used in place. A remote one is downloaded to `scratch` and removed afterwards.
    """
    location = source.location
    if isinstance(location, Path):
        require_file(location)
        if problem := source.mismatch(location):
            raise UserError(f"{location}: {problem}; fetch it again, or correct the entry")
        yield location
        return
    download(source, scratch, patience=patience)
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def require_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; correct the address in the sources file")


def download(
    source: Source,
    target: Path,
    pause: float = 0.0,
    patience: Patience | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Fetch `source`, whether remote or local, and give it the name `target`.

    `pause` is in seconds, between two requests to one host. `check` raises `UserError` for content
    that must not be kept.
    """
    partial = partial_path(target)
    with explain_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_process_at(partial):
            for attempt in range(1, TRIES_OF_A_DAMAGED_FILE + 1):
                fetch(source, partial, pause, patience)
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


def fetch(source: Source, partial: Path, pause: float, patience: Patience | None) -> None:
    """Make `partial` the whole file, resuming where an earlier attempt stopped."""
    location = source.location
    if isinstance(location, Path):
        require_file(location)
        shutil.copyfile(location, partial)
        return
    remote = source.remote(location, patience, pause)
    remote.validator, have = resumable(partial, location)
    for _ in range(remote.patience.attempts):
        try:
            append(remote, source, partial, have)
            return
        except UserError:
            if not partial.stat().st_size:
                forget(partial)
            raise
        except StartOver:
            if have and remote.size == have:  # all bytes had arrived before the interruption
                return
            have = 0
            remote.validator = remote.size = None
    raise UserError(
        f"{source.url}: the connection breaks off and cannot be resumed; "
        "try again later, or name another mirror"
    )


def append(remote: RemoteFile, source: Source, partial: Path, have: int) -> None:
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


def resumable(partial: Path, location: str) -> tuple[str | None, int]:
    """Return the validator of a partial file and the number of its bytes.

    Without a validator, which tells versions of the remote file apart, a part cannot be completed:
    then they are None and 0.
    """
    try:
        note = json.loads(note_path(partial).read_text(encoding="utf-8"))
        have = partial.stat().st_size
    except (FileNotFoundError, ValueError):
        return None, 0
    match note:
        case {"url": str(url), "validator": str(validator)} if url == location and have:
            log.line("resume", f"{location}: going on after {have:,} bytes")
            return validator, have
    return None, 0
