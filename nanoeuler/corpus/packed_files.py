"""Read a file that may be compressed, block by block: gzip, bzip2, xz or Zstandard.

Its name says so. What it unpacks to is limited, and so is the memory for it: far from what an
honest file needs, and for one that needs more there is a way around it, which the message names.
"""

import bz2
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nanoeuler.errors import UserError

PACKED = (".gz", ".bz2", ".xz", ".zst")
BLOCK = 1 << 20  # bytes that are unpacked at once
LARGEST_WINDOW = 1 << 27  # bytes of memory that a file may ask for
MOST_INFLATION = 100
"""Bytes that may be unpacked from a compressed byte: text has about 5, a bomb up to 1,000."""
SMALL_CONTENT = 50_000_000
"""Bytes that any compressed file may unpack to, however few it has."""


def most_unpacked(size: int) -> int:
    """Return how many bytes may be unpacked from a file of `size` bytes."""
    return max(SMALL_CONTENT, MOST_INFLATION * size)


class UnfitText(UserError):
    """A file that cannot be read as text."""


class Unpacked(io.RawIOBase):
    """The bytes of `file`, unpacked if its name says that they are packed.

    Raises `UnfitText` if it cannot be read, is damaged, or unpacks to more than text would.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.file, self.count = file, 0
        with self.explained():
            self.packed: IO[bytes] = open(file, "rb")  # noqa: SIM115 - closed by close
            self.most = most_unpacked(file.stat().st_size)
            self.opened = unpacker(self.packed, file.suffix.lower())

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self.explained():
            block = self.opened.read(min(len(buffer), BLOCK))
        self.count += len(block)
        if self.opened is not self.packed and self.count > self.most:
            raise UnfitText(
                f"{self.file}: unpacks to more than {self.most:,} bytes, over {MOST_INFLATION} "
                "times its size, as no text does; if it is one, unpack it and name that file"
            )
        buffer[: len(block)] = block
        return len(block)

    def read_fully(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end of the file."""
        blocks = []
        while size > 0 and (block := self.read(min(size, BLOCK))):
            blocks.append(block)
            size -= len(block)
        return b"".join(blocks)

    def close(self) -> None:
        if not self.closed and hasattr(self, "packed"):
            self.packed.close()
        super().close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno is not None:
                raise UnfitText(
                    f"{self.file}: cannot be read ({error.strerror}); "
                    "correct its permissions or leave it out"
                ) from error
            raise self.damaged(error) from error
        except (EOFError, ValueError, zlib.error) as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> UnfitText:
        return UnfitText(
            f"{self.file}: damaged, or not what its name says ({error}); "
            "make or fetch it again, or leave it out"
        )


def unpacker(packed: IO[bytes], suffix: str) -> Any:
    """Return a reader of what is packed in a file with that suffix, or the file itself."""
    match suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=packed)
        case ".bz2":
            return bz2.BZ2File(packed)
        case ".xz":
            return StreamReader(packed, lambda: lzma.LZMADecompressor(memlimit=LARGEST_WINDOW))
        case ".zst":
            zstd = find_zstd()
            window = {zstd.DecompressionParameter.window_log_max: LARGEST_WINDOW.bit_length() - 1}
            return StreamReader(packed, lambda: zstd.ZstdDecompressor(options=window))
    return packed


def find_zstd() -> Any:
    """The module of Python 3.14, or what gives earlier ones the same. (Few files need it.)"""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(name)


class StreamReader(io.RawIOBase):
    """Reads one stream after another, each with a decompressor that knows a limit of memory."""

    def __init__(self, packed: IO[bytes], decompressor: Callable[[], Any]):
        super().__init__()
        self.packed, self.decompressor = packed, decompressor
        self.rest = packed.read(BLOCK)
        self.unpacking: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.unpack(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def unpack(self, size: int) -> bytes:
        """Return at most `size` bytes, and none at the end."""
        while self.rest or self.unpacking is not None:
            self.unpacking = self.unpacking or self.decompressor()
            if self.unpacking.needs_input and not self.rest:
                self.rest = self.packed.read(BLOCK)
                if not self.rest:
                    raise EOFError("it breaks off")
            try:
                block: bytes = self.unpacking.decompress(self.rest, size)
            except Exception as error:  # each format has its own
                raise ValueError(str(error)) from error
            self.rest = b""
            if self.unpacking.eof:  # another stream may follow, after zeros
                self.rest = self.unpacking.unused_data.lstrip(b"\0") or self.packed.read(BLOCK)
                self.unpacking = None
            if block:
                return block
        return b""
