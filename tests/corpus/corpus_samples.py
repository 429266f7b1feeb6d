"""Write books and pages like earlier stages do, and run `nanoeuler assemble` on them."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np

from nanoeuler.cli import main
from nanoeuler.corpus.extracted_pages import PAGE, index_of

LICENCES = {
    "gutenberg": {"licence": "public domain in the USA"},
    "fineweb": {"licence": "ODC-By 1.0", "shards": []},
}


def write_book(folder: Path, number: int, title: str, text: str, kept: bool = True) -> str:
    path = folder / f"pg{number}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if kept else "", encoding="utf-8")
    record = {
        "version": 1,
        "id": number,
        "title": title,
        "author": "",
        "kept": kept,
        "reason": None if kept else "copyrighted: not in the public domain",
    }
    path.with_suffix(".json").write_text(json.dumps(record))
    return str(path)


def write_pages(path: Path, texts: list[str]) -> str:
    """Write pages like the extraction does, without their origins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = [text.encode() for text in texts]
    pages = np.empty(len(raw), PAGE)
    pages["end"] = np.cumsum([len(text) for text in raw], dtype=np.uint64)
    pages["sha256"] = np.array([hashlib.sha256(text).digest() for text in raw], "V32")
    path.write_bytes(b"".join(raw))
    index_of(path).write_bytes(pages.tobytes())
    return str(path)


def page_text(shard: int, number: int) -> str:
    return f"Page {shard}-{number} about “lamps”. " * (1 + number % 7)


def run(tmp_path, *arguments, sources=(), output="corpus", share=0.1, **corpus):
    """Assemble without dropping any documents, unless `corpus` says otherwise.

    The texts of the tests repeat themselves.
    """
    corpus = {"deduplicate": {"web": "none"}, "decontaminate": False, **corpus}
    config = {
        "corpus": {"name": "demo", "sources": list(sources), "validation_share": share, **corpus},
        "sources": LICENCES,
    }
    return main(
        ["assemble", "--config", json.dumps(config), *arguments, "--output", str(tmp_path / output)]
    )


def read(folder: Path, split: str, source: str) -> list[str]:
    raw, offsets = (
        (folder / split / f"{source}.txt").read_bytes(),
        np.fromfile(folder / split / f"{source}.offsets", "<u8").tolist(),
    )
    assert offsets[0] == 0
    assert offsets[-1] == len(raw)
    return [raw[start:stop].decode() for start, stop in itertools.pairwise(offsets)]


def manifest_of(tmp_path, output="corpus"):
    return json.loads((tmp_path / output / "manifest.json").read_text())


def alternating(train: list[str], validation: list[str]) -> str:
    """Put the pieces of a text together again; they must alternate, and the first is shorter or
    longer by one where the text begins or ends with it."""
    assert abs(len(train) - len(validation)) <= 1
    starts = len(validation) > len(train)
    one, other = (validation, train) if starts else (train, validation)
    pieces = [piece for pair in itertools.zip_longest(one, other, fillvalue="") for piece in pair]
    return "".join(pieces)
