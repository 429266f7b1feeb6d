"""The index of a corpus's tokens: where each run of tokens stands, in its documents.

    data/corpora/<name>/index-<vocabulary>/
        manifest.json               written last: the tokens it is of, files and hashes
        <split>-<source>.starts     where the source's documents begin, little-endian uint64
        <split>-<source>-000.order  suffix array of a part of the source, int32 (suffix_array.py)
        <split>-<source>-000.tokens the part's tokens, if they lie in two shards

A part has whole documents, of some `PART` tokens. A search goes through the parts one after
another, so that no array is larger than memory, and what it finds never crosses a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import sha256_file, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours
from nanoeuler.storage.integrity import Origin, check_file, read_sealed, seal
from nanoeuler.storage.spilled import blocks, map_file
from nanoeuler.system.threads import ordered_map
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import MANIFEST, TokenSequence, TokenStore
from nanoeuler.tracing.suffix_array import find, longest_matches, suffix_array

PART = 1 << 25
"""Tokens of a part: 0.6 GB of memory while it is sorted, and ten of them a second-long search."""
MOST_THREADS = 6
"""Parts that are sorted at a time, in less than 4 GB."""
MEMORISED = 50
"""Tokens of a span that counts as memorised: too many to have been put together anew (Carlini et
al. 2023, Quantifying memorization across neural language models)."""
ORIGIN = Origin("`nanoeuler index`", "run it again")


class Place(NamedTuple):
    """Where a span stands: its first token in the source's sequence, and its document there."""

    split: str
    source: str
    first: int
    document: int


@dataclass(frozen=True)
class Part:
    """Some documents of a source: `tokens` from its token `first` on, and their suffix array."""

    split: str
    source: str
    first: int
    tokens: np.ndarray
    order: np.ndarray

    def find(self, span: np.ndarray) -> np.ndarray:
        """The source's tokens (int64) at which `span` begins, in no order."""
        low, high = find(self.tokens, self.order, span)
        return self.first + self.order[low:high].astype(np.int64)


class Index:
    """The index of a `TokenStore`."""

    def __init__(self, folder: Path, store: TokenStore):
        self.folder, self.store = folder, store
        self.path = folder / MANIFEST
        self.manifest = read_sealed(
            self.path, ORIGIN, "an index of tokens", "splits", "run `nanoeuler index` again"
        )
        if self.manifest["tokens"] != store.fingerprint:
            raise UserError(
                f"{self.path}: an index of other tokens ({self.manifest['tokens'][:12]}) than "
                f"{store.path} ({store.fingerprint[:12]}); run `nanoeuler index` again"
            )

    @cached_property
    def parts(self) -> list[Part]:
        """All parts, of which a search reads what it needs. Raises `UserError` for damaged ones."""
        return [
            Part(split, source, entry["first"], self.tokens_of(sequence, entry), order)
            for split, sources in self.manifest["splits"].items()
            for source, found in sources.items()
            for sequence in [self.store.tokens(split, source)]
            for entry in found["parts"]
            for order in [self.read(entry["order"], np.dtype("<i4"))]
        ]

    def tokens_of(self, sequence: TokenSequence, entry: dict[str, Any]) -> np.ndarray:
        if entry["tokens"]:
            return self.read(entry["tokens"], self.store.dtype)
        shard, offset = shard_of(sequence, entry["first"])
        return shard[offset : offset + entry["order"]["length"]]

    def starts(self, split: str, source: str) -> np.ndarray:
        """Where the documents of a source begin in its tokens, uint64 (documents,)."""
        return self.read(self.manifest["splits"][split][source]["starts"], np.dtype("<u8"))

    def offset(self, source: str) -> int:
        """Where the tokens of a source begin in the whole text for training."""
        entries = self.store.manifest["splits"]["train"]
        before = list(entries)[: list(entries).index(source)]
        return sum(entries[name]["tokens"] for name in before)

    def read(self, entry: dict[str, Any], dtype: np.dtype) -> np.ndarray:
        path = self.folder / entry["file"]
        check_file(path, entry["sha256"], ORIGIN)
        return np.memmap(path, dtype, mode="r", shape=(entry["length"],))

    def place(self, part: Part, first: int) -> Place:
        """The place of the token `first` of a part's source."""
        starts = self.starts(part.split, part.source)
        document = int(np.searchsorted(starts, np.uint64(first), side="right")) - 1
        return Place(part.split, part.source, first, document)


def matches(parts: list[Part], query: np.ndarray) -> np.ndarray:
    """Lengths (q,) int64 of the longest beginning of each query[i:] that stands in some part."""
    lengths = np.zeros(len(query), np.int64)
    for part in parts:
        longest_matches(part.tokens, part.order, query, lengths)
    return lengths


def memorised(parts: list[Part], ids: np.ndarray) -> int:
    """How many of the tokens `ids` are in spans of `MEMORISED` or more that stand in some part."""
    inside = np.zeros(len(ids), bool)
    lengths = matches(parts, ids)
    for first in np.flatnonzero(lengths >= MEMORISED).tolist():
        inside[first : first + int(lengths[first])] = True
    return int(inside.sum())


def shard_of(sequence: TokenSequence, first: int) -> tuple[np.ndarray, int]:
    """The shard that has the token `first`, and where in it."""
    number = int(np.searchsorted(sequence.starts, first, side="right")) - 1
    return sequence.shards[number], first - sequence.starts[number]


# ---- making it


def build_index(
    tokens: Path, tokenizer_path: Path, output: Path, threads: int = 1, size: int = PART
) -> None:
    """Write the index of a corpus's tokens to the folder `output`, in parts of `size` tokens.

    Raises `UserError` where the tokenizer is not theirs.
    """
    require_ours(output)
    store, tokenizer = TokenStore.open(tokens), Tokenizer.load(tokenizer_path)
    store.check_tokenizer(tokenizer, tokenizer_path)
    end_id = tokenizer.end_id
    splits: dict[str, dict[str, Any]] = {}
    total = sum(len(store.tokens(split)) for split in store.manifest["splits"])
    with (
        atomic_folder(output) as folder,
        log.Progress("index", total, "tokens") as progress,
    ):
        jobs = []
        for split in store.manifest["splits"]:
            splits[split] = {}
            for source in store.sources(split):
                stem = f"{split}-{source}"
                path = folder / f"{stem}.starts"
                with open(path, "wb") as file:
                    for some in document_starts(store, split, source, end_id):
                        file.write(some.data)
                starts = map_file(path, "<u8")
                found = splits[split][source] = {"starts": entry_of(path, len(starts)), "parts": []}
                length = store.manifest["splits"][split][source]["tokens"]
                for number, (first, stop) in enumerate(cut(starts, length, size)):
                    path = folder / f"{stem}-{number:03d}"
                    sort = partial(sort_part, store, split, source, first, stop, path)
                    jobs.append((found["parts"], stop - first, sort))
        entries = ordered_map(lambda job: job[2](), jobs, min(threads, MOST_THREADS))
        for (parts, length, _), entry in zip(jobs, entries, strict=True):
            parts.append(entry)
            progress.update(length)
        write_json(
            folder / MANIFEST,
            seal({"version": 1, "tokens": store.fingerprint, "splits": splits}),
        )
    log.line("index", tokens=total, parts=len(jobs), output=output)


def document_starts(
    store: TokenStore, split: str, source: str, end_id: int
) -> Iterator[np.ndarray]:
    """Yield where the documents of a source begin, with their `</s>`: uint64, some at a time."""
    before = 0
    for shard in store.manifest["splits"][split][source]["shards"]:
        tokens = store.map_shard(shard)
        for rows in blocks(tokens):
            found = before + rows.start + np.flatnonzero(tokens[rows] == end_id)
            yield found.astype("<u8")
        before += len(tokens)


def cut(starts: np.ndarray, total: int, size: int) -> Iterator[tuple[int, int]]:
    """First token and end of parts of whole documents, of at most `size` tokens or one document."""
    first = 0
    while first < total:
        after = int(np.searchsorted(starts, np.uint64(first), side="right"))
        last = int(np.searchsorted(starts, np.uint64(first + size), side="right"))
        stop = total if total <= first + size else int(starts[last - 1])
        if stop <= first:
            stop = int(starts[after]) if after < len(starts) else total
        yield first, stop
        first = stop


def sort_part(
    store: TokenStore, split: str, source: str, first: int, stop: int, path: Path
) -> dict[str, Any]:
    """Write the suffix array of tokens [first, stop) of a source; returns the manifest's entry."""
    sequence = store.tokens(split, source)
    tokens = sequence[first:stop]
    shard, offset = shard_of(sequence, first)
    whole = offset + len(tokens) <= len(shard)
    order = write(Path(f"{path}.order"), suffix_array(tokens).astype("<i4", copy=False))
    copy = None if whole else write(Path(f"{path}.tokens"), tokens.astype(store.dtype))
    return {"first": first, "order": order, "tokens": copy}


def write(path: Path, array: np.ndarray) -> dict[str, Any]:
    array.tofile(path)
    return entry_of(path, len(array))


def entry_of(path: Path, length: int) -> dict[str, Any]:
    return {"file": path.name, "length": length, "sha256": sha256_file(path)}
