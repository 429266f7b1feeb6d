"""Measure how a corpus compares all of its pages, at any number of them: their hashes are made up.

    python benchmarks/corpus_merge.py choose 2000000 8000000 24000000 --folder /tmp
    python benchmarks/corpus_merge.py hold_out 10000000 100000000
    python benchmarks/corpus_merge.py quote 16000000 64000000 256000000 --cells 24

`choose` seeks near-duplicates by signatures. Of the pages, 9 % repeat one anywhere before them, as
in a sample of the web, and 1 % come from 20 templates, whose slots are longer than a walk. They are
made from seeds, a million at a time, and written as they come; this time does not count. `hold_out`
decides what is held out or a copy by hashes and sizes, which are made as they are read. `quote`
sorts so many runs of words of held-out text, of which each word is a new one, and then looks for
them in 1 GB of other such text, of which 1 % of the documents quote 20 words. With `--cells`, the
filter in memory has at most 2 to that power, so that it is full with less text. Each size is a
fresh process with two threads.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nanoeuler.corpus import contamination  # noqa: E402
from nanoeuler.corpus.batches import Batch  # noqa: E402
from nanoeuler.corpus.contamination import Measured, Runs, hash_runs  # noqa: E402
from nanoeuler.corpus.document_sources import Outline, Reader  # noqa: E402
from nanoeuler.corpus.near_duplicates import find_near_copies  # noqa: E402
from nanoeuler.corpus.signatures import HASHES  # noqa: E402
from nanoeuler.corpus.survey import COPY, survey  # noqa: E402
from nanoeuler.storage.spilled import map_file  # noqa: E402
from nanoeuler.system.threads import ordered_map  # noqa: E402

BLOCK = 1_000_000
COPIES, CHANGED = 0.09, 0.25  # at most, of a copy's bytes: some are too far from the original
OF_TEMPLATES, TEMPLATES, CHANGED_IN_TEMPLATE = 0.01, 20, 0.3
OUTLINE = 10_000  # pages
THRESHOLD, SHARE, THREADS = 0.8, 0.001, 2
WORDS, WORD_BYTES = 750, 6.05  # of a page; of a word, with what separates it from the next
FEWEST = 1_000_000
TRAINING, QUOTING, QUOTED = 10**9, 100, 20  # bytes; one in so many documents; words of a quotation


def write_signatures(path: Path, pages: int) -> None:
    templates = np.random.default_rng(0).integers(0, 256, (TEMPLATES, HASHES), np.uint8)
    with open(path, "wb") as file:
        for first in range(0, pages, BLOCK):
            random = np.random.Generator(np.random.SFC64(first + 1))
            made = random.integers(0, 256, (min(BLOCK, pages - first), HASHES), np.uint8)
            before = map_file(path, np.uint8).reshape(-1, HASHES) if first else made.copy()
            for share, sources, most in (
                (OF_TEMPLATES, templates, CHANGED_IN_TEMPLATE),
                (COPIES, before, CHANGED),
            ):
                rows = np.flatnonzero(random.random(len(made)) < share)
                of_rows = sources[np.sort(random.integers(0, len(sources), len(rows)))]
                changed = random.random(of_rows.shape) < random.uniform(0, most, (len(rows), 1))
                made[rows] = np.where(changed, made[rows], of_rows)
            file.write(made.data)
            file.flush()


class MadeUp(Reader):
    """Hashes of pages, of which 1 % are copies of others; there is no text of them."""

    name, kind, licence = "made up", "web", ""

    def __init__(self, pages: int):
        self.pages, self.left_out, self.seen = pages, {}, None

    def size(self) -> int:
        return 4_000 * self.pages

    def outlines(self) -> Iterator[Callable[[], Outline]]:
        return (partial(self.outline, first) for first in range(0, self.pages, OUTLINE))

    def outline(self, first: int) -> Outline:
        random = np.random.Generator(np.random.SFC64(first))
        hashes = random.integers(0, 2**64, min(OUTLINE, self.pages - first), np.uint64)
        hashes[::100] %= np.uint64(self.pages // 1000 + 1)
        sizes = random.integers(100, 8_000, len(hashes))
        return Outline(hashes * np.uint64(0x9E3779B97F4A7C15), sizes, hashes, hashes)

    def batches(self) -> Iterator[Callable[[], Batch]]:
        return iter(())

    def origins(self) -> list[dict[str, Any]]:
        return []


def made_up_words(seed: int, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashed words of some pages, and their borders."""
    random = np.random.Generator(np.random.SFC64(seed))
    return random.integers(0, 2**64, WORDS * pages, np.uint64), np.arange(pages + 1) * WORDS


def write_runs(folder: Path, runs: int) -> Runs:
    """Write the runs of words of some pages: about so many of `GRAM` words, and more of `PART`."""
    pages, at_once = runs // (WORDS - contamination.GRAM + 1), 1_000
    with open(folder / "grams", "wb") as grams, open(folder / "parts", "wb") as parts:
        for first in range(0, pages, at_once):
            made = hash_runs(*made_up_words(first, min(at_once, pages - first)))
            grams.write(made.grams.data)
            parts.write(made.parts.data)
    return Runs(map_file(folder / "grams", np.uint64), map_file(folder / "parts", np.uint64))


def count_quoting(measured: Measured, pages: int) -> int:
    """Count the documents of 1 GB of text with quotations; `pages` are held out."""
    at_once = 1_000
    held_out, _ = made_up_words(0, min(at_once, pages))

    def work(seed: int) -> int:
        words, borders = made_up_words(seed, at_once)
        for document in range(0, at_once, QUOTING):
            place = document * WORDS + 100
            words[place : place + QUOTED] = held_out[document * WORDS :][:QUOTED]
        return len(np.unique(measured.find(words, borders)[0]))

    batches = int(TRAINING / WORD_BYTES / WORDS / at_once)
    seeds = range(2**40, 2**40 + batches)
    return sum(ordered_map(work, seeds, THREADS))


def measure(step: str, pages: int, folder: Path) -> None:
    """Print a row of the table, with the most memory and disk of any moment."""
    most = {"anonymous": 0, "all": 0, "disk": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            status = dict(
                line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
            )
            for key, name in (("anonymous", "RssAnon"), ("all", "VmRSS")):
                most[key] = max(most[key], 1024 * int(status[name].split()[0]))
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                sizes = [path.stat().st_size for path in Path(inside).rglob("*") if path.is_file()]
                most["disk"] = max(most["disk"], sum(sizes))

    with tempfile.TemporaryDirectory(dir=folder) as inside:
        path = Path(inside, "signatures")
        if step == "choose":
            write_signatures(path, pages)
            signatures = map_file(path, np.uint8).reshape(-1, HASHES)
        if step == "quote":
            (Path(inside) / "runs").mkdir()
            runs = write_runs(Path(inside) / "runs", pages)
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            began, cpu = time.perf_counter(), time.process_time()
            if step == "choose":
                found = int(find_near_copies(signatures, THRESHOLD, THREADS, Path(inside)).sum())
            elif step == "quote":
                measured = Measured([("held-out text", runs)], Path(inside))
                sorted_in = time.process_time() - cpu
                found = count_quoting(measured, pages // WORDS)
                sought_in = time.process_time() - cpu - sorted_in
            else:
                surveyed = survey(MadeUp(pages), SHARE, True, THREADS, Path(inside))
                found = surveyed.count(COPY)["documents"]
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        finally:
            done.set()
            watching.join()
        if step == "quote":
            print(
                f"| {pages:,} | {pages * WORD_BYTES / 1e9:.2f} | {sorted_in:.0f} | "
                f"{sorted_in / pages * 1e6:.2f} | {pages / len(measured.part_filter):.1f} | "
                f"{sought_in:.1f} | {found:,} | {most['anonymous'] / 1e6:,.0f} | "
                f"{most['all'] / 1e6:,.0f} | {most['disk'] / 1e9:.2f} |",
                flush=True,
            )
            return
        print(
            f"| {pages:,} | {found:,} | {seconds:.0f} | {cpu:.0f} | "
            f"{cpu / pages * 1e6:.1f} | {most['anonymous'] / 1e6:,.0f} | {most['all'] / 1e6:,.0f} |"
            f" {most['disk'] / 1e9:.2f} | {most['disk'] / pages:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["choose", "hold_out", "quote"])
    parser.add_argument("pages", type=int, nargs="+", help="or runs of words, for `quote`")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--cells", type=int, help="of the filter: so many times 2, multiplied")
    options = parser.parse_args()
    if min(options.pages) < FEWEST:
        parser.error(f"pages: take {FEWEST:,} or more")
    if options.cells is not None and not 0 <= options.cells <= 29:
        parser.error("--cells: take 0 to 29")
    if options.cells is not None:
        contamination.MOST_CELLS = 1 << options.cells
    if len(options.pages) == 1:
        measure(options.step, options.pages[0], options.folder)
    else:
        columns = (
            "runs | GB of text | processor s to sort | µs a run | runs a cell | processor s to "
            "seek | quoting | MB of its own | MB with cached files | disk GB"
            if options.step == "quote"
            else "pages | duplicates | wall s | processor s | µs a page | MB of its own | "
            "MB with cached files | disk GB | bytes a page"
        )
        print(f"| {columns} |\n|{'---|' * len(columns.split('|'))}", flush=True)
        for pages in options.pages:
            command = [sys.executable, __file__, options.step, str(pages)]
            if options.cells is not None:
                command += ["--cells", str(options.cells)]
            subprocess.run([*command, "--folder", str(options.folder)], check=True)
