"""Measure the search for near-duplicates at any number of pages, whose signatures are made up.

    python benchmarks/corpus_merge.py 2000000 8000000 32000000 --folder /tmp

Each size is a fresh process with two threads. Of the pages, 9 % repeat one anywhere before them, as
in a sample of the web, and 1 % come from 20 templates, whose slots are longer than a walk. Pages
are made from seeds, a million at a time, and written as they come; this time does not count.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nanoeuler.corpus.near_duplicates import HASHES, find_near_copies  # noqa: E402
from nanoeuler.storage.spilled import map_file  # noqa: E402

BLOCK = 1_000_000
COPIES, CHANGED = 0.09, 0.25  # at most, of a copy's bytes: some are too far from the original
OF_TEMPLATES, TEMPLATES, CHANGED_IN_TEMPLATE = 0.01, 20, 0.3
THRESHOLD, THREADS = 0.8, 2


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


def measure(pages: int, folder: Path) -> None:
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
            sizes = (entry.stat().st_size for entry in os.scandir(inside) if entry.is_file())
            most["disk"] = max(most["disk"], sum(sizes))

    with tempfile.TemporaryDirectory(dir=folder) as inside:
        path = Path(inside, "signatures")
        write_signatures(path, pages)
        signatures = map_file(path, np.uint8).reshape(-1, HASHES)
        watching = threading.Thread(target=watch)
        watching.start()
        began, cpu = time.perf_counter(), time.process_time()
        near = find_near_copies(signatures, THRESHOLD, THREADS, Path(inside))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        done.set()
        watching.join()
        print(
            f"| {pages:,} | {int(near.sum()):,} | {seconds:.0f} | {cpu:.0f} | "
            f"{cpu / pages * 1e6:.1f} | {most['anonymous'] / 1e6:,.0f} | {most['all'] / 1e6:,.0f} |"
            f" {most['disk'] / 1e9:.2f} | {most['disk'] / pages:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", type=int, nargs="+")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if len(options.pages) == 1:
        measure(options.pages[0], options.folder)
    else:
        print(
            "| pages | near-duplicates | wall s | processor s | µs a page | MB of its own | "
            "MB with cached files | disk GB | bytes a page |\n|" + "---|" * 9,
            flush=True,
        )
        for pages in options.pages:
            command = [sys.executable, __file__, str(pages), "--folder", str(options.folder)]
            subprocess.run(command, check=True)
