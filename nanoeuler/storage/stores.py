"""A folder of files somewhere else: at a path, or at an address that fsspec reaches.

    store = open_store("s3://bucket/prefix", "pretrain-3fa91c0d")
    store.write("notes.json", io.BytesIO(b"{}"))
    b"".join(store.parts("notes.json"))

A path needs no further package. Whatever goes wrong is a `StoreError` that names the address, and
never a credential.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from nanoeuler.errors import UserError
from nanoeuler.storage.files import atomic_write
from nanoeuler.storage.temporary import sweep

PART = 8 << 20
"""Bytes that are moved at once: a part of an upload, of which a slow line takes some seconds."""
MOST_PARTS = 5000
"""Parts of a large file; S3 takes 10,000."""
SCHEME = re.compile(r"([a-z0-9+.-]+)://", re.IGNORECASE)
BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"}
"""Where a folder is no more than a part of a name; asked for one, fsspec would make a bucket."""
SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""In the names of environment variables that hold credentials."""
SHORTEST_SECRET, LONGEST_REASON = 8, 300
"""Characters."""


class StoreError(UserError):
    """A store cannot be read or written."""


class Missing(StoreError):
    """There is no such file in it."""


class Store(Protocol):
    """Files in a folder, by their names. Each method raises `StoreError` where it fails."""

    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""

    def parts(self, name: str) -> Iterator[bytes]:
        """The content of a file, `PART` bytes at a time. Raises `Missing`."""

    def write(self, name: str, content: IO[bytes], moved: Callable[[int], object] = int) -> None:
        """Write or replace a file; `moved` is told of the bytes on their way. Object storage and
        disks show all of it or nothing; a server of files may show less until it is done."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""


def open_store(address: str, folder: str) -> Store:
    """The folder `folder` at a path or an address. Raises `StoreError` for an address that holds a
    credential, that nobody understands, or whose package is missing."""
    if has_secret(address):
        raise StoreError(
            "the address holds a password or a token, which logs would keep; take it out, and give "
            "it by the environment or a file of your own (AWS_SECRET_ACCESS_KEY, ~/.aws)"
        )
    scheme = SCHEME.match(address)
    place = address[scheme.end() if scheme else 0 :].rstrip("/")
    if not place:
        raise StoreError(f"{address}: names no bucket, host or folder")
    if scheme is None or scheme[1].lower() == "file":
        return DiskStore(Path(place).expanduser(), folder)
    return RemoteStore(address.rstrip("/"), folder)


def has_secret(address: str) -> bool:
    """Whether an address has a user's password, or parameters such as a signature."""
    scheme = SCHEME.match(address)
    user = address[scheme.end() :].partition("/")[0].rpartition("@")[0] if scheme else ""
    return ":" in user or (scheme is not None and "?" in address)


class DiskStore:
    """At a path: another disk, or one that machines share."""

    def __init__(self, root: Path, folder: str):
        self.root, self.folder = root, root / folder

    def sizes(self) -> dict[str, int]:
        with explained(str(self.root)):
            self.require_parent()
            sweep(self.folder)
            there = self.folder.iterdir() if self.folder.is_dir() else ()
            return {each.name: each.stat().st_size for each in there}

    def parts(self, name: str) -> Iterator[bytes]:
        with explained(str(self.root)):
            self.require_parent()
            with open(self.folder / name, "rb") as file:
                while part := file.read(PART):
                    yield part

    def write(self, name: str, content: IO[bytes], moved: Callable[[int], object] = int) -> None:
        with explained(str(self.root)):
            self.require_parent()
            with atomic_write(self.folder / name, "wb") as file:
                while part := content.read(PART):
                    file.write(part)
                    moved(len(part))

    def remove(self, name: str) -> None:
        with explained(str(self.root)):
            (self.folder / name).unlink(missing_ok=True)

    def require_parent(self) -> None:
        """Refuse to make more than a folder: a disk that is not mounted looks like an empty one."""
        parent = self.root.absolute().parent
        if not parent.is_dir():
            raise UserError(f"there is no folder {parent}; mount its disk, or make it")


class RemoteStore:
    """At an address of object storage, or of another machine, by fsspec."""

    def __init__(self, address: str, folder: str):
        self.address, scheme = address, address.partition("://")[0].lower()
        with explained(address):
            try:
                from fsspec.core import url_to_fs

                self.system, self.folder = url_to_fs(f"{address}/{folder}")
            except ImportError as error:
                if scheme not in ("s3", "s3a"):
                    raise
                raise UserError(
                    "a package is missing; install the extra `s3`: make install EXTRAS=s3, or pip "
                    "install 'nanoeuler[s3]'"
                ) from error
        self.made = scheme in BUCKETS

    def sizes(self) -> dict[str, int]:
        with explained(self.address):
            self.system.invalidate_cache()
            try:
                found = self.system.ls(self.folder, detail=True)
            except FileNotFoundError:
                return {}
            return {each["name"].rpartition("/")[2]: each["size"] or 0 for each in found}

    def parts(self, name: str) -> Iterator[bytes]:
        with explained(self.address):
            self.system.invalidate_cache()
            with self.system.open(f"{self.folder}/{name}", "rb", block_size=PART) as file:
                while part := file.read(PART):
                    yield part

    def write(self, name: str, content: IO[bytes], moved: Callable[[int], object] = int) -> None:
        with explained(self.address):
            if not self.made:
                self.system.makedirs(self.folder, exist_ok=True)
                self.made = True
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            at_once = max(PART, size // MOST_PARTS)
            file = self.system.open(f"{self.folder}/{name}", "wb", block_size=at_once)
            try:
                while part := content.read(at_once):
                    file.write(part)
                    moved(len(part))
            except BaseException:
                with contextlib.suppress(Exception):  # closed, half of it would count as all
                    file.discard()
                raise
            file.close()

    def remove(self, name: str) -> None:
        with explained(self.address), contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.folder}/{name}")


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn every error into a `StoreError` of one line; libraries raise many kinds of them."""
    try:
        yield
    except Exception as error:
        kind = Missing if isinstance(error, FileNotFoundError) else StoreError
        cause = error.__cause__ if isinstance(error, UserError) else None
        text = reason(cause if isinstance(cause, OSError) else error)  # not "free space, run again"
        raise kind(text if text.startswith(address) else f"{address}: {text}") from error


def reason(error: Exception) -> str:
    """What an error says, in a line, without a credential that it may quote."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "…")
    text = re.sub(r"(://)[^/\s]*@", r"\1…@", text)
    text = re.sub(r"\?[^\s\"']+", "?…", text)  # of an address: its signature
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
