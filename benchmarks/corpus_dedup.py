"""Measure web pages from parquet files to a corpus without duplicates: speed, quality, scaling.

    python benchmarks/web_variants.py --pages 'pages/*.parquet' --bytes 1e8 \\
        --output /tmp/variants/100
    python benchmarks/corpus_dedup.py peers /tmp/variants/100 --peer-python other-venv/bin/python
    python benchmarks/corpus_dedup.py quality /tmp/variants/100
    python benchmarks/corpus_dedup.py scaling /tmp/variants/{10,100,1000}

All runs are fresh processes on two cores. Wall time is counted from the start of the first to the
end of the last. Peers are rensa, the fastest MinHash on PyPI (Rust), datatrove, with which FineWeb
was made, and datasketch, the most used one (Python and NumPy), which run in an environment of their
own with pyarrow (corpus_dedup_peer.py). Quality is compared with brute force.
"""

import argparse
import collections
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nanoeuler.corpus.batches import Batch  # noqa: E402
from nanoeuler.corpus.extracted_pages import read_index  # noqa: E402
from nanoeuler.corpus.near_duplicates import find_near_copies  # noqa: E402
from nanoeuler.corpus.signatures import SHINGLE, sign  # noqa: E402
from nanoeuler.corpus.word_hashes import hash_words  # noqa: E402
from nanoeuler.tokenizer.corpus_text import Corpus  # noqa: E402

THRESHOLD = 0.8
PEERS = ("rensa", "datatrove", "datasketch")


class Cost(NamedTuple):
    wall: float  # seconds
    processor: float  # seconds, of its processes together
    peak: int  # resident bytes of the largest process


def run(*command: str) -> Cost:
    """Run a command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)[:200]} failed: {errors.decode()}")
    peak = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, peak)


def ours(folder: Path, decontaminate: bool) -> dict[str, Any]:
    """Extract every shard in two parallel processes, and assemble the corpus.

    Returns seconds of both, peak bytes, text read, and the hashes of all pages and of those left.
    """
    shards = sorted(folder.glob("*.parquet"))
    fineweb = {"shards": [{"url": str(shard)} for shard in shards]}
    corpus = {"name": "x", "sources": ["fineweb"], "decontaminate": decontaminate, "fineweb": {}}
    config = json.dumps({"corpus": corpus, "sources": {"fineweb": fineweb}})
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        began = time.perf_counter()
        extract = (
            'seq 0 $1 | xargs -P 2 -I@N@ $0 -m nanoeuler fineweb --config "$2" --shard @N@ '
            "--output $3/@N@.txt --record $3/@N@.json"
        )
        extraction = run(
            "bash", "-c", extract, sys.executable, str(len(shards) - 1), config, scratch
        )
        between = time.perf_counter()
        pages = [f"{scratch}/{number}.txt" for number in range(len(shards))]
        assemble = [sys.executable, "-m", "nanoeuler", "assemble", "--config", config]
        output = ["--output", f"{scratch}/corpus", "--threads", "2"]
        assembly = run(*assemble, "--fineweb", *pages, *output)
        ended = time.perf_counter()
        entry = json.loads(Path(scratch, "corpus/manifest.json").read_text())["sources"]["fineweb"]
        every = {
            bytes(page["sha256"]).hex() for text in pages for page in read_index(Path(text), "")
        }
        kept = {
            hashlib.sha256(text.data[start:stop]).hexdigest()
            for texts in Corpus(f"{scratch}/corpus/manifest.json").texts.values()
            for text in texts
            for start, stop in text.borders()
        }
    return {
        "extract": between - began,
        "assemble": ended - between,
        "seconds": ended - began,
        "processor": extraction.processor + assembly.processor,
        "peak": max(extraction.peak, assembly.peak),
        "every": every,
        "kept": kept,
    } | entry["read"]


def peers(options: argparse.Namespace) -> None:
    ours(options.folder, decontaminate=False)  # compiles, and reads the files into memory
    peer = str(Path(__file__).with_name("corpus_dedup_peer.py"))
    rounds: dict[str, list[Cost]] = collections.defaultdict(list)
    for number in range(options.rounds):
        found = ours(options.folder, decontaminate=False)
        rounds["nanoeuler"].append(Cost(found["seconds"], found["processor"], found["peak"]))
        for library in PEERS:
            if library == "rensa" or number == 0:
                with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
                    command = options.peer_python, peer, library, str(options.folder), scratch
                    rounds[library].append(run(*command))
                    kept = set(json.loads(Path(scratch, "result.json").read_text())["kept"])
                dropped, theirs = found["every"] - found["kept"], found["every"] - kept
                print(
                    f"{library}: {len(found['every']):,} different pages; both drop "
                    f"{len(dropped & theirs):,}, nanoeuler alone {len(dropped - theirs):,}, "
                    f"{library} alone {len(theirs - dropped):,}",
                    flush=True,
                )
    for name, costs in rounds.items():
        rates = [found["bytes"] / 1e6 / cost.wall for cost in costs]
        ratios = [
            cost.wall / own.wall for cost, own in zip(costs, rounds["nanoeuler"], strict=False)
        ]
        per_core = statistics.median(found["documents"] / cost.processor for cost in costs)
        print(
            f"{name}: {statistics.median(rates):.1f} MB/s ({min(rates):.1f} to {max(rates):.1f}, "
            f"n = {len(rates)}), {statistics.median(ratios):.2f} times nanoeuler's time "
            f"({min(ratios):.2f} to {max(ratios):.2f}); {per_core:,.0f} pages/s a core, "
            f"{max(cost.peak for cost in costs) / 1e6:,.0f} MB in the largest process"
        )


def quality(options: argparse.Namespace) -> None:
    """Compare the duplicates found by signatures with those found by comparing all sets.

    A duplicate has a similarity of `THRESHOLD` or more to an earlier document that is kept.
    """
    with duckdb.connect() as connection:
        query = "select encode(text) from read_parquet(?) limit ?"
        values = [str(options.folder / "*.parquet"), options.documents]
        texts = [text for (text,) in connection.execute(query, values).fetchall()]
    batch = Batch.of(texts)
    hashes, borders = hash_words(batch)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        found = find_near_copies(sign(hashes, borders), THRESHOLD, 1, Path(scratch))
    holders: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    sizes, likest = [], np.zeros(len(texts))
    for document in range(len(texts)):
        words = hashes[borders[document] : borders[document + 1]].tolist()
        starts = range(max(1, len(words) - SHINGLE + 1)) if words else range(0)
        shingles = {tuple(words[at : at + SHINGLE]) for at in starts}
        sharing = [earlier for shingle in shingles for earlier in holders[shingle]]
        sizes.append(len(shingles))
        for earlier, both in collections.Counter(sharing).items():
            similarity = both / (sizes[earlier] + len(shingles) - both)
            likest[document] = max(likest[document], similarity)
        if not found[document]:
            for shingle in shingles:
                holders[shingle].append(document)
    for least in (THRESHOLD, THRESHOLD + 0.05):
        of_these = likest >= least
        print(
            f"of {of_these.sum():,} documents of similarity {least:.2f} or more to an earlier one, "
            f"{found[of_these].mean():.2%} are dropped (recall)"
        )
    for least in (THRESHOLD, THRESHOLD - 0.05):
        print(
            f"of {found.sum():,} dropped, {(likest[found] >= least).mean():.2%} are "
            f"of similarity {least:.2f} or more to a kept one (precision)"
        )
    unlike = likest < THRESHOLD - 0.1
    print(
        f"of {unlike.sum():,} documents of similarity below {THRESHOLD - 0.1:.1f} to all kept, "
        f"{found[unlike].sum()} are dropped"
    )


def scaling(options: argparse.Namespace) -> None:
    ours(options.folders[0], decontaminate=True)  # compiles
    print("| text MB | documents | extract s | assemble s | MB/s | peak MB |")
    print("|---|---|---|---|---|---|")
    for folder in options.folders:
        rounds = [ours(folder, decontaminate=True) for _ in range(options.rounds)]
        rounds.sort(key=lambda each: each["seconds"])
        found = rounds[len(rounds) // 2]  # the median, or the slower one of the middle
        size = found["bytes"] / 1e6
        peak = max(each["peak"] for each in rounds) / 1e6
        slowest, fastest = (size / each["seconds"] for each in (rounds[-1], rounds[0]))
        print(
            f"| {size:,.0f} | {found['documents']:,} | {found['extract']:.1f} | "
            f"{found['assemble']:.1f} | {size / found['seconds']:.0f} "
            f"({slowest:.0f} to {fastest:.0f}, n = {len(rounds)}) | {peak:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(required=True)
    for function in (peers, quality, scaling):
        kind = kinds.add_parser(function.__name__)
        kind.set_defaults(function=function)
        if function is scaling:
            kind.add_argument("folders", type=Path, nargs="+")
        else:
            kind.add_argument("folder", type=Path)
        if function is peers:
            kind.add_argument("--peer-python", required=True)
        if function is quality:
            kind.add_argument("--documents", type=int, default=10_000)
        else:
            kind.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for folder in vars(options).get("folders") or [options.folder]:
        if not any(folder.glob("*.parquet")):
            parser.error(f"{folder}: no .parquet files there; make some with web_variants.py")
    options.function(options)
