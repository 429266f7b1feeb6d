"""Measure the steps of a corpus of FineWeb-Edu's sample/10BT, with a part of as many made-up pages.

    python benchmarks/corpus_sample.py --share 0.1 --folder /tmp

The sample has 9.67 M pages of 10 G tokens. The stand-in has that share of as many pages, with
lengths of the same mean and the spread of English pages (log-normal, σ = 1), words by Zipf's law,
9 % copies with up to 4 % of their words changed, and 2 % pages of code. It is made from
seeds, shard by shard: a Parquet file is deleted once its pages are extracted, so that all of them
never exist. Making them does not count. Every step is a process of its own with two threads
(extraction: one), and is said to take half of its processor time on two cores that are busy all
the time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from texts import write_parquet

ROOT = Path(__file__).resolve().parents[1]
PAGES = 9_672_101
SHARD = 100_000  # pages
GROUP = 8  # shards
PAGE_WORDS, SPREAD = 750, 1.0  # mean of words; standard deviation of the logarithm
SHORTEST, LONGEST = 40, 16_000  # words
WORDS, ENDINGS = 60_000, (["", ",", ".", ".\n\n", "’s"], [0.88, 0.05, 0.05, 0.015, 0.005])
COPIES, CHANGED, CODE = 0.09, 0.04, 0.02
POOL, KEPT_OF = 20_000, 20  # earlier pages that are copied: every so many-th
GOAL = 600  # seconds
LAST_OF_GOAL = "choose"


def vocabulary() -> np.ndarray:
    """Words with each ending: the rarer, the longer."""
    dice = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    sizes = np.clip(dice.normal(2.2 + np.log(np.arange(1, WORDS + 1)) / 1.6, 1), 1, 14)
    spelled = ["".join(dice.choice(letters[:22], int(size))) for size in sizes]
    return np.array([word + ending for ending in ENDINGS[0] for word in spelled], object)


def shards(pages: int) -> Iterator[list[str]]:
    words = vocabulary()
    pool: list[np.ndarray] = []
    for first in range(0, pages, SHARD):
        dice = np.random.Generator(np.random.SFC64(first))
        texts = []
        for number in range(min(SHARD, pages - first)):
            if pool and dice.random() < COPIES:
                page = pool[dice.integers(len(pool))].copy()
                changed = dice.random(len(page)) < dice.uniform(0, CHANGED)
                page[changed] = dice.integers(0, WORDS, int(changed.sum()))
            else:
                mean = np.log(PAGE_WORDS) - SPREAD**2 / 2
                size = int(np.clip(dice.lognormal(mean, SPREAD), SHORTEST, LONGEST))
                page = (WORDS ** dice.random(size)).astype(np.int64)  # Zipf's law
                page += WORDS * dice.choice(len(ENDINGS[0]), size, p=ENDINGS[1])
                if number % KEPT_OF == 0 and len(pool) < POOL:
                    pool.append(page)
            between = " = " if dice.random() < CODE else " "
            texts.append(between.join(words[page]))
        yield texts


def write_pages(texts: list[str], path: Path) -> None:
    lines = path.with_suffix(".lines")
    with open(lines, "w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": f"{path.stem}-{number}", "text": text}) + "\n")
    write_parquet(lines, path)
    lines.unlink()


@dataclass
class Cost:
    """What the processes of a step took."""

    processor: float = 0.0  # seconds
    wall: float = 0.0
    peak: int = 0  # bytes of its own
    mapped: int = 0  # bytes with cached files that it looks at

    def note_memory(self, status: Path) -> None:
        lines = (line.split(":", 1) for line in status.read_text().splitlines())
        found = {name: 1024 * int(value.split()[0]) for name, value in lines if "kB" in value}
        self.peak = max(self.peak, found.get("RssAnon", 0))
        self.mapped = max(self.mapped, found.get("VmHWM", 0))


class Steps:
    """Runs nanoeuler's commands in a folder, and notes what each step takes."""

    def __init__(self, folder: Path, config: dict):
        self.folder, self.config = folder, json.dumps(config)
        self.costs: dict[str, Cost] = {}

    def run(self, step: str, *words: object) -> None:
        command = [sys.executable, "-m", "nanoeuler", *map(str, words), "--config", self.config]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        began = time.perf_counter()
        with open(self.folder / "errors", "w+") as errors:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=errors)
            cost = self.costs.setdefault(step, Cost())
            while True:
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                cost.note_memory(Path(f"/proc/{process.pid}/status"))
                time.sleep(0.02)
        if status:
            said = (self.folder / "errors").read_text()
            raise SystemExit(f"{' '.join(command)[:300]} failed: {said}")
        cost.wall += time.perf_counter() - began
        cost.processor += usage.ru_utime + usage.ru_stime


def measure(pages: int, folder: Path) -> None:
    names = [f"{first // SHARD:03d}" for first in range(0, pages, SHARD)]
    files = [{"url": str(folder / f"{name}.parquet")} for name in names]
    fineweb = {"max_bytes_per_shard": 4_000_000_000}
    config = {
        "corpus": {
            "name": "x", "sources": ["fineweb"], "validation_share": 0.001, "decontaminate": True,
            "deduplicate": {"web": "near", "threshold": 0.8}, "fineweb": fineweb,
        },
        "sources": {"fineweb": {"shards": files}},
        "tokenizer": {"vocab_size": 32_768, "sample_bytes": 100_000_000},
    }  # fmt: skip
    steps = Steps(folder, config)
    began = time.perf_counter()
    for name, texts in zip(names, shards(pages), strict=True):
        write_pages(texts, folder / f"{name}.parquet")
        text = folder / f"{name}.txt"
        record = text.with_suffix(".json")
        steps.run("extract", "fineweb", "--shard", int(name), "--output", text, "--record", record)
        (folder / f"{name}.parquet").unlink()
    texts = [folder / f"{name}.txt" for name in names]
    size = sum(text.stat().st_size for text in texts)
    print(f"{pages:,} pages, {size / 1e9:.2f} GB, in {time.perf_counter() - began:.0f} s\n")
    together = min(GROUP, -(-len(texts) // 2))  # several groups
    groups = [texts[first : first + together] for first in range(0, len(texts), together)]

    def assemble(step: str, given: list[Path], *words: object) -> None:
        words = (*words, "--fineweb", *given, "--threads", 2, "--output", "corpus")
        steps.run(step, "assemble", "--step", step, *words)

    assemble("hold_out", texts, "--group-files", together)
    for number, group in enumerate(groups):
        assemble("compare", group, "--group", number)
    assemble("choose", texts, "--group-files", together)
    for number, group in enumerate(groups):
        assemble("write", group, "--group", number)
    assemble("finish", texts)
    corpus = ("--corpus", "corpus/manifest.json")
    steps.run("learn_bpe", "bpe", *corpus, "--output", "tokenizer.json", "--threads", 2)
    for number in range(len(groups)):
        words = ("--tokenizer", "tokenizer.json", "--threads", 2, "--output", f"tokens/{number}")
        steps.run("tokenize", "tokenize", "--group", number, *corpus, *words)
    tell(steps.costs, pages)
    entry = json.loads((folder / "corpus/manifest.json").read_text())["sources"]["fineweb"]
    tokens = sum(
        source["tokens"]
        for manifest in folder.glob("tokens/*/manifest.json")
        for split in json.loads(manifest.read_text())["splits"].values()
        for source in split.values()
    )
    kept = entry["train"]["documents"] + entry["validation"]["documents"]
    print(f"\n{kept:,} pages are left, of {tokens:,} tokens; dropped: {entry['dropped']}")


def tell(costs: dict[str, Cost], pages: int) -> None:
    """Print the steps, and what they would take of all pages on two cores."""
    print("| step | processor s | wall s | MB | with cached files | all pages, two cores, s |")
    print("|---|---|---|---|---|---|")
    seconds, own, mapped = 0.0, 0, 0
    for step, cost in costs.items():
        times = 1 if step == "learn_bpe" else PAGES / pages  # its sample does not grow
        seconds += cost.processor * times / 2
        own, mapped = max(own, cost.peak), max(mapped, cost.mapped)
        print(
            f"| `{step}` | {cost.processor:.1f} | {cost.wall:.1f} | {cost.peak / 1e6:,.0f} | "
            f"{cost.mapped / 1e6:,.0f} | {cost.processor * times / 2:.0f} |"
        )
        if step in (LAST_OF_GOAL, list(costs)[-1]):
            name = "clean, deduplicate, count" if step == LAST_OF_GOAL else "all steps"
            print(
                f"| *{name}*: {PAGES / seconds / 2:,.0f} pages/s a core | | | {own / 1e6:,.0f} | "
                f"{mapped / 1e6:,.0f} | {seconds:.0f}: {'within' if seconds <= GOAL else 'misses'} "
                f"{GOAL} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=0.1, help="of the sample's pages")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if options.share * PAGES <= SHARD:
        parser.error(f"--share: take more than {SHARD / PAGES:.4f}, which is a single shard")
    with tempfile.TemporaryDirectory(dir=options.folder) as inside:
        measure(round(options.share * PAGES), Path(inside))
