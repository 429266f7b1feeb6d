"""The files of extracted web pages: one text after another, and an index of their ends.

    shard-000.txt      the UTF-8 bytes of the pages, with nothing between them
    shard-000.index    for each page its end in the text (little-endian uint64) and its SHA-256
    shard-000.parquet  the ids and urls of the pages, in the same order

Any part can be read without decoding, and the sizes and hashes of all pages without their texts.
"""

import mmap
import os
from pathlib import Path

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_bounded

PAGE = np.dtype([("end", "<u8"), ("sha256", "V32")])


def index_of(text: Path) -> Path:
    return text.with_suffix(".index")


def origins_of(text: Path) -> Path:
    return text.with_suffix(".parquet")


def count_pages(text: Path) -> int:
    """Return the number of pages whose texts lie at `text`, by the size of their index."""
    return index_of(text).stat().st_size // PAGE.itemsize


def read_index(text: Path, stage: str) -> np.ndarray:
    """Read the pages (PAGE) of the shard whose texts lie at `text`, as `stage` has written them.

    Raises `UserError` when a file is missing or the two do not belong together.
    """
    for path in (text, index_of(text)):
        if not path.is_file():
            raise UserError(f"{path}: no such file; extract it first: nanoeuler {stage}")
    size = text.stat().st_size
    raw = read_bounded(index_of(text), (size + 1) * PAGE.itemsize)  # pages are not empty
    pages = np.frombuffer(raw[: len(raw) - len(raw) % PAGE.itemsize], PAGE)
    ends = pages["end"]
    last = int(ends[-1]) if len(ends) else 0
    if len(raw) % PAGE.itemsize or (ends[1:] < ends[:-1]).any() or last != size:
        raise UserError(
            f"{index_of(text)}: not the index of the {size:,} bytes in {text.name}; "
            f"delete both and run the {stage} stage again"
        )
    return pages


def read_pages(text: Path, offsets: np.ndarray, stage: str) -> Batch:
    """Map the pages at offsets[i]:offsets[i + 1] (int64) of the file; only bytes used are read."""
    first = int(offsets[0]) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with open(text, "rb") as file:
        if os.fstat(file.fileno()).st_size < offsets[-1]:
            raise UserError(
                f"{text}: ends before its index does; delete both and run the {stage} stage again"
            )
        size = int(offsets[-1]) - first
        if not size:
            return Batch.between(np.zeros(0, np.uint8), offsets - first)
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=first)
    return Batch.between(np.frombuffer(mapped, np.uint8), offsets - first)
