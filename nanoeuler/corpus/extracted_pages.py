"""Web pages as extraction leaves them: one text after another, and where each ends.

    shard-000.txt      the pages' UTF-8 bytes with nothing between
    shard-000.index    of each page its end in the text (little-endian uint64) and the SHA-256 of its text
    shard-000.parquet  its id and url, in the same order

Nothing has to be decoded to read a part of it, nor anything read to know every page's size and hash.
"""

import mmap
import os
from pathlib import Path

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.errors import UserError

PAGE = np.dtype([("end", "<u8"), ("sha256", "V32")])


def index_of(text: Path) -> Path:
    return text.with_suffix(".index")


def origins_of(text: Path) -> Path:
    return text.with_suffix(".parquet")


def read_index(text: Path) -> np.ndarray:
    """The pages (PAGE) of the shard whose texts lie at `text`. Raises `UserError` when a file is missing or they don't belong together."""
    for path in (text, index_of(text)):
        if not path.is_file():
            raise UserError(f"{path}: no such file; extract it first: nanoeuler fineweb")
    raw = index_of(text).read_bytes()
    size = text.stat().st_size
    pages = np.frombuffer(raw[: len(raw) - len(raw) % PAGE.itemsize], PAGE)
    ends = pages["end"]
    if (
        len(raw) % PAGE.itemsize
        or (ends[1:] < ends[:-1]).any()
        or (int(ends[-1]) if len(ends) else 0) != size
    ):
        raise UserError(
            f"{index_of(text)}: not the index of the {size:,} bytes in {text.name}; "
            "delete both and run the fineweb stage again"
        )
    return pages


def read_pages(text: Path, offsets: np.ndarray) -> Batch:
    """The pages whose texts lie at offsets[i]:offsets[i + 1] (int64) of the file, mapped: of those that are not looked at, nothing is read."""
    first = int(offsets[0]) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with open(text, "rb") as file:
        if os.fstat(file.fileno()).st_size < offsets[-1]:
            raise UserError(
                f"{text}: ends before its index does; delete both and run the fineweb stage again"
            )
        size = int(offsets[-1]) - first
        content = np.frombuffer(
            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=first) if size else b"",
            np.uint8,
        )
    return Batch.between(content, offsets - first)
