"""Measure each step of building a corpus and its tokens: in one job, or in groups of web shards.

    python benchmarks/web_variants.py --pages 'pages/*.parquet' --bytes 1e10 --output /tmp/variants
    python benchmarks/corpus_groups.py /tmp/variants
    python benchmarks/corpus_groups.py /tmp/variants --group-files 4

Each step is a process of its own on two cores, one after another; only `fineweb` runs twice at a
time. The folder takes about three times the text; its files stay, and are used again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Usage = tuple[float, float, float]


def start(*arguments: object) -> tuple[float, subprocess.Popen]:
    command = [sys.executable, "-m", "nanoeuler", *map(str, arguments)]
    return time.perf_counter(), subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def end(began: float, process: subprocess.Popen) -> Usage:
    """Wait for a process; return its wall seconds, processor seconds and peak MB."""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{process.args} failed")
    seconds = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, seconds, usage.ru_maxrss / 1024


def tell(step: str, text: int, used: list[Usage], at_once: int = 1) -> None:
    wall = sum(one[0] for one in used) / at_once
    seconds, peak = sum(one[1] for one in used), max(one[2] for one in used)
    print(
        f"| {step} | {len(used)} | {wall:.1f} | {seconds:.1f} | {text / 1e6 / seconds:.0f} "
        f"| {peak:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of parquet files")
    parser.add_argument("--group-files", type=int, help="shards of a group (default: one job)")
    options = parser.parse_args()
    folder, files = options.folder, options.group_files
    shards = [{"url": str(path)} for path in sorted(folder.glob("*.parquet"))]
    corpus = {"name": "x", "sources": ["fineweb"], "fineweb": {}}
    tokenizer = {"vocab_size": 8192, "sample_bytes": 100_000_000}
    config = json.dumps({"corpus": corpus, "tokenizer": tokenizer})
    sources = json.dumps({"corpus": corpus, "sources": {"fineweb": {"shards": shards}}})
    pages = [folder / f"pages/{number}.txt" for number in range(len(shards))]

    def extract(number: int) -> tuple[float, subprocess.Popen]:
        record = pages[number].with_suffix(".json")
        files = ("--output", pages[number], "--record", record)
        return start("fineweb", "--config", sources, "--shard", number, *files)

    used = []
    for first in range(0, len(pages), 2):
        pair = [extract(number) for number in range(first, min(first + 2, len(pages)))]
        used += [end(*one) for one in pair]
    text = sum(path.stat().st_size for path in pages)
    print(
        "| step | jobs | wall s | processor s | MB/s of a core | peak MB |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    tell("extract", text, used, at_once=2)

    def measure(step: str, *jobs: list[object]) -> None:
        tell(step, text, [end(*start(*job)) for job in jobs])

    output = folder / ("corpus" if files is None else "corpus-in-groups")
    assemble = ["assemble", "--config", config, "--output", output, "--threads", 2]
    if files is None:
        groups = []
        measure("assemble", [*assemble, "--fineweb", *pages])
    else:
        groups = [pages[first : first + files] for first in range(0, len(pages), files)]
        everything = ["--group-files", files, "--fineweb", *pages]

        def of_groups(step: str) -> list[list[object]]:
            return [
                [*assemble, "--step", step, "--group", number, "--fineweb", *group]
                for number, group in enumerate(groups)
            ]

        measure("hold_out", [*assemble, "--step", "hold_out", *everything])
        measure("compare", *of_groups("compare"))
        measure("choose", [*assemble, "--step", "choose", *everything])
        measure("write", *of_groups("write"))
        measure("finish", [*assemble, "--step", "finish"])
    inputs = ["--config", config, "--corpus", output / "manifest.json"]
    learned, tokens = output / "tokenizer.json", output / "tokens"
    measure("bpe", ["bpe", *inputs, "--output", learned, "--threads", 2])
    encode = ["tokenize", *inputs, "--tokenizer", learned, "--threads", 2]
    if not groups:
        measure("tokenize", [*encode, "--output", tokens])
        return
    folders = [output / f"tokens-{number}" for number in range(len(groups))]
    jobs = [[*encode, "--group", number, "--output", part] for number, part in enumerate(folders)]
    measure("tokenize", *jobs)
    measure("join", [*encode, "--groups", *folders, "--output", tokens])


if __name__ == "__main__":
    main()
