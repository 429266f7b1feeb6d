"""Runs that are killed again and again end with the bytes of a run that nothing disturbed.

    python -m fuzz.torture --kills 200

Trainers of each stage are killed (SIGKILL) at random moments and while they save, and of a trainer
with several ranks one rank, whereupon the others must end; or one rank is suspended (SIGSTOP), the
folder is moved away, or it is lost, but for its mirror. So is the workflow of
tests/workflow/ci.yaml: Snakemake alone, which leaves its trainer at work, and its whole process
group; and so are export, import, evaluation and report. After each kill the same command is given
again.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fuzz import material
from fuzz.material import INPUTS
from fuzz.table import markdown
from fuzz.targets import (
    Counts,
    Failed,
    LostTrainer,
    MovedTrainer,
    SharedTrainer,
    SuspendedTrainer,
    Target,
    Trainer,
    Workflow,
    products,
)

SHARES = {
    "trainer": 0.2,
    "save": 0.2,
    "lost": 0.1,
    "rank": 0.1,
    "suspended": 0.03,
    "moved": 0.05,
    "product": 0.12,
    "snakemake": 0.1,
    "group": 0.1,
}
"""What is killed, and its share of the kills."""
KILLS_PER_RUN = 4
MISSES = 5  # runs in a row that end before they are killed, after which this kind is given up
FINDINGS = 10  # after which everything is given up
HEADER = ("killed", "stage", "kills", "starts", "runs", "equal hashes", "leftovers", "time")


def kill_runs(target: Target, counts: Counts, kills: int, broken: list[str]) -> None:
    """Kill runs of `target` until there are `kills`; what is broken is added to `broken`."""
    began, missed = time.monotonic(), 0
    while counts.kills < kills and len(broken) < FINDINGS:
        before, problem = counts.kills, ""
        try:
            target.run(counts, min(KILLS_PER_RUN, kills - counts.kills))
        except Failed as failure:
            problem = str(failure)
        finally:
            target.stop()
        missed = 0 if counts.kills > before else missed + 1
        if missed == MISSES:
            problem = problem or f"{MISSES} runs ended before they were killed"
        counts.seconds = time.monotonic() - began
        print(
            f"torture killed={counts.what} stage={counts.stage} kills={counts.kills}/{kills} "
            f"runs={counts.runs} equal={counts.equal}",
            flush=True,
        )
        if problem:
            broken.append(problem)
            print(f"BROKEN {counts.what} {counts.stage}: {problem}", flush=True)
        if missed == MISSES:
            return


def torture(kills: int, seed: int, folder: Path, kinds: Iterable[str]) -> tuple[list[Counts], int]:
    """Kill each kind of run its share of `kills` times.

    Returns the counts, and how often a promise was broken.
    """
    rng = random.Random(seed)
    print("torture  making valid inputs, and a run that nothing disturbs", flush=True)
    whole = material.make(folder / "whole")
    workflow: list[Target] = []
    all_counts: list[Counts] = []
    broken: list[str] = []
    for kind in kinds:
        if kind in ("trainer", "save"):
            targets: list[Target] = [Trainer(s, whole, folder / "killed", rng) for s in INPUTS]
        elif kind == "moved":
            targets = [MovedTrainer(s, whole, folder / "killed", rng) for s in INPUTS]
        elif kind == "lost":
            targets = [LostTrainer(s, whole, folder / "killed", rng) for s in INPUTS]
        elif kind == "rank":
            targets = [SharedTrainer(whole, folder / "killed", rng)]
        elif kind == "suspended":
            targets = [SuspendedTrainer(whole, folder / "killed", rng)]
        elif kind == "product":
            targets = [*products(whole, folder / "killed", rng)]
        else:
            targets = workflow = workflow or [Workflow(folder / "workflow", rng)]
        for target in targets:
            all_counts.append(counts := Counts(kind, target.stage))
            kill_runs(target, counts, round(kills * SHARES[kind] / len(targets)), broken)
    return all_counts, len(broken)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.torture", description="Kill runs; exits 1 when a hash differs."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", action="append", choices=list(SHARES), help="only this kind")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left at work or on disk
    kinds = options.what or list(SHARES)
    with tempfile.TemporaryDirectory(prefix="nanoeuler-torture-") as temporary:
        folder = Path(temporary).resolve()
        all_counts, broken = torture(options.kills, options.seed, folder, kinds)
    total = Counts("all", "")
    for name in ("kills", "starts", "runs", "equal", "leftovers", "seconds"):
        setattr(total, name, sum(getattr(counts, name) for counts in all_counts))
    table = markdown(HEADER, [counts.row() for counts in [*all_counts, total]])
    print(f"\nseed {options.seed}:\n\n{table}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
