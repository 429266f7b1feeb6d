"""Runs campaigns in turn under one time limit, counts, and keeps what they find."""

import multiprocessing
import os
import queue
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import material, worker
from fuzz.worker import Outcome

HANG = 10.0  # seconds
START = 300.0  # seconds that a worker may load for
SLICE = 5.0  # seconds that a campaign has until it is the next one's turn
CASES_PER_WORKER = 2_000  # so that what a library leaks is not taken for the case's
KEPT = 3  # cases kept of one finding
FINDINGS = Path(__file__).parent / "findings"


def crowd() -> float:
    """How many processes share a core, 1 at least: as much longer a case may take."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Worker:
    """A process of one campaign, started when it is needed."""

    def __init__(self, campaign: str, seed: int, folder: Path):
        self.campaign, self.seed, self.folder = campaign, seed, folder
        self.scratch = folder / "cases" / campaign
        self.process: multiprocessing.process.BaseProcess | None = None
        self.cases = 0

    def start(self) -> bool:
        """Whether the process can start."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=worker.serve,
            args=(theirs, self.campaign, self.seed, self.folder, self.scratch),
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.cases = 0
        return self.connection.poll(START) and self.answered()

    def answered(self) -> bool:
        """Whether the process says that it is ready."""
        try:
            return self.connection.recv() is None
        except EOFError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None

    def run(self, case: int) -> Outcome:
        """The outcome of a case; a process that hangs or dies is replaced for the next one."""
        if self.process is None or self.cases >= CASES_PER_WORKER:
            self.stop()
            if not self.start():
                self.stop()
                said = self.scratch / "said.txt"
                text = said.read_text(errors="replace") if said.exists() else ""
                return Outcome("crash", text, f"the campaign {self.campaign} cannot start")
        assert self.process is not None
        self.cases += 1
        try:
            self.connection.send(case)
            if self.connection.poll(HANG * crowd()):
                return self.connection.recv()
            outcome = Outcome("hang", f"no answer within {HANG:.0f} s", "hang", HANG)
        except (EOFError, ConnectionError):
            self.process.join(5)
            status = self.process.exitcode
            outcome = Outcome("crash", f"the process ended with status {status}", f"crash {status}")
        self.stop()
        return outcome


@dataclass
class Tally:
    """The counts of one campaign."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    peak: int = 0  # bytes
    slowest: float = 0.0  # seconds
    findings: Counter[str] = field(default_factory=Counter)  # by place

    def row(self) -> tuple[str, ...]:
        kinds = self.kinds
        other = sum(kinds.values()) - sum(kinds[kind] for kind in ("accepted", "refused"))
        other -= sum(kinds[kind] for kind in ("traceback", "crash", "hang"))
        counts = (
            sum(kinds.values()),
            kinds["accepted"],
            kinds["refused"],
            kinds["traceback"] + kinds["crash"],
            kinds["hang"],
            other,
        )
        return (
            self.name,
            *(f"{count:,}" for count in counts),
            f"{self.slowest:.1f} s",
            f"{self.peak / 1e6:,.0f} MB",
        )


HEADER = (
    *("reader", "cases", "accepted", "refused", "tracebacks", "hangs", "other findings"),
    *("slowest case", "peak memory"),
)


class Campaigns:
    """All campaigns of a run, for a time."""

    def __init__(self, names: Iterable[str], seed: int, folder: Path, findings: Path = FINDINGS):
        self.seed, self.folder, self.findings = seed, folder, findings
        self.workers = {name: Worker(name, seed, folder) for name in names}
        self.tallies = {name: Tally(name) for name in self.workers}
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.workers:
            self.waiting.put(name)

    def run(self, seconds: float, jobs: int) -> None:
        """Let `jobs` campaigns at a time have their turns until the time is over."""
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self.take_turns, args=(end,), daemon=True)
            for _ in range(min(jobs, len(self.workers)))
        ]
        for thread in threads:
            thread.start()
        began = told = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - told >= 60:
                told += 60
                print(self.progress(time.monotonic() - began, seconds), flush=True)
        for running in self.workers.values():
            running.stop()

    def take_turns(self, end: float) -> None:
        while time.monotonic() < end:
            try:
                name = self.waiting.get_nowait()
            except queue.Empty:
                return
            turn = min(end, time.monotonic() + SLICE)
            try:
                while True:
                    self.run_case(name, sum(self.tallies[name].kinds.values()))
                    if time.monotonic() >= turn:
                        break
            finally:
                self.waiting.put(name)

    def run_case(self, name: str, case: int) -> None:
        tally, running = self.tallies[name], self.workers[name]
        outcome = running.run(case)
        if outcome.kind == "hang" or "MemoryError" in outcome.place:
            running.stop()  # the machine may have been busy, or the process full
            outcome = running.run(case)
        self.keep(name, case, outcome, running.scratch / "case")
        tally.kinds[outcome.kind] += 1
        tally.peak = max(tally.peak, outcome.peak)
        tally.slowest = max(tally.slowest, outcome.seconds)

    def keep(self, name: str, case: int, outcome: Outcome, files: Path) -> None:
        """Save the first cases of a finding: its files, what happened, and how to see it again."""
        if not outcome.found:
            return
        findings = self.tallies[name].findings
        findings[outcome.place] += 1
        if findings[outcome.place] > KEPT:
            return
        command = f"python -m fuzz --campaign {name} --seed {self.seed} --case {case}"
        folder = self.findings / f"{name}-{self.seed}-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        copy_files(files, folder / "files")
        (folder / "report.txt").write_text(
            f"{outcome.kind}: {outcome.place}\n{command}\n\n{outcome.detail}\n",
            encoding="utf-8",
            errors="backslashreplace",
        )
        if findings[outcome.place] == 1:
            print(f"fuzz  FOUND {outcome.kind}: {outcome.place!r}  {command}", flush=True)

    def progress(self, seconds: float, total: float) -> str:
        kinds = sum((tally.kinds for tally in self.tallies.values()), Counter())
        distinct = sum(len(tally.findings) for tally in self.tallies.values())
        counts = " ".join(f"{kind.replace(' ', '_')}={count}" for kind, count in kinds.items())
        return (
            f"fuzz minutes={seconds / 60:.1f}/{total / 60:.0f} cases={sum(kinds.values())} "
            f"{counts} distinct_findings={distinct}"
        )

    def table(self) -> str:
        return markdown(HEADER, [tally.row() for tally in self.tallies.values()])

    @property
    def found(self) -> int:
        return sum(sum(tally.findings.values()) for tally in self.tallies.values())


def copy_files(source: Path, target: Path) -> None:
    """Copy the regular files below `source`, as far as they can be read."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 10_000_000:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; all columns but the first are aligned to the right."""
    columns = list(header)
    rule = ["---"] + ["--:"] * (len(columns) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *map(list, rows)))


def run_campaigns(names: list[str], minutes: float, seed: int, jobs: int) -> int:
    """Run the campaigns, print their table, and return the number of findings."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-fuzz-") as temporary:
        folder = Path(temporary)
        print("fuzz  making valid inputs with the real stages", flush=True)
        material.make(folder)
        campaigns = Campaigns(names, seed, folder)
        campaigns.run(60 * minutes, jobs)
        print(f"\n{minutes:g} minutes, seed {seed}, {jobs} at a time:\n\n{campaigns.table()}")
        if campaigns.found:
            print(f"\n{campaigns.found} cases of findings; the first of each are in {FINDINGS}")
        return campaigns.found


def replay(name: str, seed: int, case: int) -> Outcome:
    """Run one case, and keep its files."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-fuzz-") as temporary:
        folder = Path(temporary)
        material.make(folder)
        alone = Worker(name, seed, folder)
        try:
            outcome = alone.run(case)
            copy_files(alone.scratch / "case", FINDINGS / f"{name}-{seed}-{case}" / "files")
            return outcome
        finally:
            alone.stop()
