"""The text that a benchmark reads, as documents, and as a corpus in the layout of `nanoeuler assemble`."""

import gzip
import os
import platform
import statistics
from collections.abc import Iterable
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import numpy as np

from nanoeuler.files import sha256_file, write_json


def documents(path: Path) -> list[bytes]:
    """UTF-8 documents of a file or of a folder's files: .txt and .txt.gz, one document each, and .parquet by its column `text`."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    found: list[bytes] = []
    for file in paths:
        if file.suffix == ".parquet":
            import duckdb

            found += [
                text.encode()
                for (text,) in duckdb.execute(
                    "select text from read_parquet(?)", [str(file)]
                ).fetchall()
            ]
        elif file.name.endswith((".txt", ".txt.gz")):
            content = (
                gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            )
            found.append(content.decode("utf-8", "replace").encode())
    if not found:
        raise SystemExit(f"{path}: no .txt, .txt.gz or .parquet there")
    return [document for document in found if document]


def write_corpus(folder: Path, found: Iterable[bytes]) -> Path:
    """All documents in the training split of one source. Returns the path of the manifest."""
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
    fingerprint = sha256_file(folder / "train/text.txt")
    write_json(
        folder / "manifest.json",
        {
            "version": 1,
            "name": "benchmark",
            "sources": {"text": {"licence": "none"} | entries},
            "fingerprint": fingerprint,
        },
    )
    return folder / "manifest.json"


def describe(*packages: str) -> str:
    """The machine and the versions that a number belongs to."""
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next(
        (line.split(":")[1].strip() for line in about if line.startswith("model name")),
        platform.machine(),
    )
    versions = " ".join(f"{package} {version(package)}" for package in packages)
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def summary(name: str, seconds: list[float], megabytes: float) -> str:
    rates = [megabytes / second for second in seconds]
    return f"{name:12} n={len(rates)}  median {statistics.median(rates):7.2f} MB/s  ({min(rates):.2f} to {max(rates):.2f})"


def ratios(name: str, ours: list[float], theirs: list[float]) -> str:
    """How many times as fast ours was, by pairs of runs beside each other."""
    pairs = [their / our for our, their in zip(ours, theirs, strict=True)]
    return f"{name:12} n={len(pairs)}  median ratio {statistics.median(pairs):6.2f}  ({min(pairs):.2f} to {max(pairs):.2f})"
