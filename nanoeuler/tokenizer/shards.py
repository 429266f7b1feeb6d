"""Store tokens as plain arrays that are memory-mapped, with a small manifest that is written last.

    store = TokenStore.open("data/corpora/sample/tokens-512/manifest.json")
    store.tokens("train")[0:128]            # int32 (128,)

A shard is an array of ids without a header, little-endian: uint16 for vocabularies of up to 65,536
ids, else uint32. It is compared with its hash in the manifest before its first token is read.
"""

import hashlib
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json, read_json, sha256_text, write_json
from nanoeuler.storage.integrity import Origin, check_file, check_size
from nanoeuler.tokenizer.tokenizer import Tokenizer

SHARD_TOKENS = 1 << 28  # 512 MB of uint16
MANIFEST = "manifest.json"
REMEDY = "run `nanoeuler tokenize` again"


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smaller of the two dtypes of shards that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenSequence:
    """The tokens of some shards as one sequence, of which only the slices asked for are read."""

    def __init__(self, shards: list[np.ndarray]):
        self.shards = shards
        self.starts = [0, *accumulate(len(shard) for shard in shards)]  # (shards + 1,)

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, wanted: slice) -> np.ndarray:
        """Return a copy, int32 (stop - start,). Bounds are those of Python's slices, step is 1."""
        if not isinstance(wanted, slice) or wanted.step not in (None, 1):
            raise TypeError(f"a TokenSequence is read by slices [start:stop], not by {wanted!r}")
        start, stop, _ = wanted.indices(len(self))
        result = np.empty(max(stop - start, 0), np.int32)
        for shard, first in zip(self.shards, self.starts, strict=False):
            low, high = max(start, first), min(stop, first + len(shard))
            if low < high:
                result[low - start : high - start] = shard[low - first : high - first]
        return result


class TokenStore:
    """The tokens of a corpus, by split and source."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        self.path, self.manifest = path, manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.tokenizer_fingerprint: str = manifest["tokenizer"]
        self.vocab_size: int = manifest["vocab_size"]
        self.dtype = token_dtype(self.vocab_size)

    @classmethod
    def open(cls, path: str | Path) -> "TokenStore":
        """Read the manifest, and check that every shard has the size that it gives.

        Raises `UserError` naming the file that does not.
        """
        path = Path(path)
        manifest = read_json(path)
        try:
            store = cls(path, manifest)
            consistent = manifest["fingerprint"] == manifest_fingerprint(manifest)
            consistent &= manifest["dtype"] == store.dtype.name
            sizes = {
                path.parent / shard["file"]: shard["tokens"] * store.dtype.itemsize
                for sources in manifest["splits"].values()
                for entry in sources.values()
                for shard in entry["shards"]
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: not a manifest of tokens ({error!r} is missing or wrong); {REMEDY}"
            ) from error
        if not consistent:
            raise UserError(
                f"{path}: damaged: its content and its fingerprint do not fit; {REMEDY}"
            )
        for shard, size in sizes.items():
            check_size(shard, size, path, REMEDY)
        return store

    def check_tokenizer(self, tokenizer: Tokenizer, path: str | Path) -> None:
        """Raise `UserError` unless the tokens were made with `tokenizer`, read from `path`."""
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise UserError(
                f"{self.path}: these tokens were made with another tokenizer "
                f"({self.tokenizer_fingerprint[:12]}, {self.vocab_size} ids) "
                f"than {path} ({tokenizer.fingerprint[:12]}, {tokenizer.vocab_size} ids); "
                f"{REMEDY} or give the one that belongs to them"
            )

    def sources(self, split: str) -> list[str]:
        """Return the names of the sources that have documents in this split."""
        entries = self.manifest["splits"][split]
        return [source for source, entry in entries.items() if entry["tokens"]]

    def held_out_sources(self) -> list[str]:
        """Return those of the validation split. Raises `UserError` where there are none."""
        found = self.sources("validation")
        if not found:
            raise UserError(
                f"{self.path}: has no held-out text; "
                "raise corpus.validation_share, or add documents to the corpus"
            )
        return found

    def tokens(self, split: str, source: str | None = None) -> TokenSequence:
        """Return the tokens of one source, or of all of them one after another.

        Raises `UserError` for a shard that is not the one that was written.
        """
        shards = [shard for entry in self.entries(split, source) for shard in entry["shards"]]
        return TokenSequence([self.map_shard(shard) for shard in shards])

    def map_shard(self, shard: dict[str, Any]) -> np.ndarray:
        path = self.path.parent / shard["file"]
        remedy = f"delete {self.path.parent} and run it again"
        check_file(path, shard.get("sha256"), Origin("`nanoeuler tokenize`", remedy))
        return np.memmap(path, self.dtype, mode="r", shape=(shard["tokens"],))

    def bytes(self, split: str, source: str | None = None) -> int:
        """Return the UTF-8 bytes of the documents, in which `</s>` does not count."""
        return sum(entry["bytes"] for entry in self.entries(split, source))

    def entries(self, split: str, source: str | None) -> list[dict[str, Any]]:
        sources = self.manifest["splits"][split]
        return list(sources.values()) if source is None else [sources[source]]


class ShardWriter:
    """Writes one source's tokens to `<stem>-000.bin`, `<stem>-001.bin`, … one after another."""

    def __init__(self, folder: Path, stem: str, dtype: np.dtype, shard_tokens: int = SHARD_TOKENS):
        self.folder, self.stem = folder, stem
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.shards: list[dict[str, Any]] = []  # their entries in the manifest
        self.room = 0  # tokens that the last shard still has room for

    def write(self, ids: np.ndarray) -> None:
        """Append ids (tokens,)."""
        while len(ids):
            if self.room == 0:
                self.start_shard()
            head, ids = ids[: self.room], ids[self.room :]
            content = head.astype(self.dtype).tobytes()
            with open(self.folder / self.shards[-1]["file"], "ab") as file:
                file.write(content)
            self.hash.update(content)
            self.room -= len(head)
            self.shards[-1]["tokens"] += len(head)
            self.shards[-1]["sha256"] = self.hash.hexdigest()

    def start_shard(self) -> None:
        self.shards.append(
            {"file": f"{self.stem}-{len(self.shards):03d}.bin", "tokens": 0, "sha256": ""}
        )
        self.room, self.hash = self.shard_tokens, hashlib.sha256()

    def entry(self, documents: int, size: int) -> dict[str, Any]:
        """Return the source's entry in the manifest, once all tokens are written."""
        return {
            "documents": documents,
            "tokens": sum(shard["tokens"] for shard in self.shards),
            "bytes": size,
            "shards": self.shards,
        }


def write_manifest(
    folder: Path, tokenizer: Tokenizer, corpus_fingerprint: str, splits: dict[str, dict[str, Any]]
) -> None:
    """Write the manifest of the shards in `folder`, last: its presence means that all are whole."""
    manifest = {
        "version": 1,
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "tokenizer": tokenizer.fingerprint,
        "corpus": corpus_fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "splits": splits,
    }
    write_json(folder / MANIFEST, manifest | {"fingerprint": manifest_fingerprint(manifest)})


def manifest_fingerprint(manifest: dict[str, Any]) -> str:
    """Return the sha256 of the manifest, which includes the hashes of the shards."""
    content = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return sha256_text(canonical_json(content))
