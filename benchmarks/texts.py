"""Read the documents of a benchmark, and write them as a corpus like `nanoeuler assemble` does."""

import argparse
import gzip
import os
import platform
import statistics
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import numpy as np

from nanoeuler.storage.files import sha256_file, write_json
from nanoeuler.system.provenance import cpu_name
from nanoeuler.tokenizer.corpus_text import Corpus


def parse(description: str, repeats: int) -> argparse.Namespace:
    """The options of a comparison with the library `tokenizers`, whose threads this sets."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("text", type=Path)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=repeats)
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    return options


def documents(path: Path) -> list[bytes]:
    """Read UTF-8 documents from a file or a folder of files.

    A .txt or .txt.gz file is one document; a .parquet file has them in its column `text`.
    """
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    found: list[bytes] = []
    for file in paths:
        if file.suffix == ".parquet":
            import duckdb

            rows = duckdb.execute("select text from read_parquet(?)", [str(file)]).fetchall()
            found += [text.encode() for (text,) in rows]
        elif file.name.endswith((".txt", ".txt.gz")):
            content = file.read_bytes()
            if file.suffix == ".gz":
                content = gzip.decompress(content)
            found.append(content.decode("utf-8", "replace").encode())
    if not found:
        raise SystemExit(f"{path}: no .txt, .txt.gz or .parquet there")
    return [document for document in found if document]


def write_corpus(folder: Path, found: Iterable[bytes]) -> Path:
    """Write all documents to the training split of one source; return the manifest's path."""
    entries = {}
    for split, part in (("train", found), ("validation", [])):
        text, offsets = folder / split / "text.txt", folder / split / "text.offsets"
        text.parent.mkdir(parents=True)
        with open(text, "wb") as file:
            ends = [0, *accumulate(map(file.write, part))]
        np.array(ends, "<u8").tofile(offsets)
        entries[split] = {
            "documents": len(ends) - 1,
            "bytes": ends[-1],
            "text": f"{split}/text.txt",
            "offsets": f"{split}/text.offsets",
        }
    manifest = {
        "version": 1,
        "name": "benchmark",
        "sources": {"text": {"licence": "none"} | entries},
        "fingerprint": sha256_file(folder / "train/text.txt"),
    }
    write_json(folder / "manifest.json", manifest)
    return folder / "manifest.json"


def texts_of(corpus: Path) -> Iterator[str]:
    """The documents of a corpus of `write_corpus`."""
    (text,) = Corpus(corpus).texts["train"]
    for start, stop in text.borders():
        yield text.data[start:stop].decode()


def describe(*packages: str) -> str:
    """Name the machine and the versions that a number belongs to."""
    versions = " ".join(f"{package} {version(package)}" for package in packages)
    python = platform.python_version()
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {python}, {versions}"


def summary(name: str, seconds: list[float], megabytes: float) -> str:
    rates = [megabytes / second for second in seconds]
    median = f"median {statistics.median(rates):7.2f} MB/s"
    return f"{name:12} n={len(rates)}  {median}  ({min(rates):.2f} to {max(rates):.2f})"


def ratios(name: str, ours: list[float], theirs: list[float]) -> str:
    """Tell how many times as fast ours is, by pairs of consecutive runs."""
    pairs = [their / our for our, their in zip(ours, theirs, strict=True)]
    median = f"median ratio {statistics.median(pairs):6.2f}"
    return f"{name:12} n={len(pairs)}  {median}  ({min(pairs):.2f} to {max(pairs):.2f})"


def write_parquet(lines: Path, path: Path) -> None:
    """Write pages in FineWeb-Edu's schema, from JSON lines with `id` and `text`."""
    import duckdb

    duckdb.sql(
        f"""
        copy (
            select text, id, 'https://example.org/' || id as url, 'en' as language,
                   0.99::double as language_score, 3::bigint as int_score
            from read_json(
                '{lines}', format = 'newline_delimited',
                columns = {{id: 'varchar', text: 'varchar'}}, maximum_object_size = 100000000
            )
        ) to '{path}' (format parquet, compression zstd, row_group_size 1000)
        """
    )
