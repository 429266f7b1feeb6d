"""Runs campaigns in turn for a time, counts the outcomes, and keeps the cases of findings."""

import multiprocessing
import os
import queue
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import material, worker
from fuzz.table import markdown
from fuzz.worker import Outcome

HANG = 10.0  # seconds
START = 300.0  # seconds that a worker may load for
TURN = 5.0  # seconds that a campaign runs before the next one does
CASES_PER_WORKER = 2_000  # a fresh process: what libraries leak is not blamed on a case
KEPT = 3  # cases kept of one finding
FINDINGS = Path(__file__).parent / "findings"
ENVIRONMENT = threading.Lock()
HEADER = (
    *("reader", "cases", "accepted", "refused", "tracebacks", "hangs", "others"),
    *("slowest", "peak memory"),
)


def load_per_core() -> float:
    """How many processes share a core, at least 1: a case may take as many times as long."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@contextmanager
def one_thread() -> Iterator[None]:
    """A process that starts meanwhile computes NumPy's products with one thread.

    Else its first case that starts the CPU engine, which asks for one, would change the bits of the
    reference's products in all later ones.
    """
    name = "OPENBLAS_NUM_THREADS"  # read as NumPy is loaded
    with ENVIRONMENT:
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            yield
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


class WorkerProcess:
    """The process of one campaign, started when it is needed."""

    def __init__(self, campaign: str, seed: int, folder: Path):
        self.campaign, self.seed, self.folder = campaign, seed, folder
        self.scratch = folder / "cases" / campaign
        self.process: multiprocessing.process.BaseProcess | None = None
        self.cases = 0

    def run(self, case: int) -> Outcome:
        """The outcome of a case. A process that hangs or dies is replaced for the next case."""
        if self.cases >= CASES_PER_WORKER:
            self.stop()
        if self.process is None and not self.start():
            self.stop()
            output = self.scratch / "output.txt"
            printed = output.read_text(errors="replace") if output.exists() else ""
            return Outcome("crash", printed, f"the campaign {self.campaign} cannot start")
        assert self.process is not None
        self.cases += 1
        try:
            self.connection.send(case)
            if self.connection.poll(HANG * load_per_core()):
                return self.connection.recv()
            outcome = Outcome("hang", f"no answer within {HANG:.0f} s", "hang", HANG)
        except (EOFError, ConnectionError):
            self.process.join(5)
            status = self.process.exitcode
            outcome = Outcome("crash", f"the process ended with status {status}", f"crash {status}")
        self.stop()
        return outcome

    def start(self) -> bool:
        """Start the process; returns whether it says that it is ready."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=worker.serve,
            args=(theirs, self.campaign, self.seed, self.folder, self.scratch),
            daemon=True,
        )
        with one_thread():
            self.process.start()
        theirs.close()
        self.cases = 0
        try:
            return self.connection.poll(START) and self.connection.recv() is None
        except EOFError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


@dataclass
class Counts:
    """What one campaign has counted."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    peak: int = 0  # bytes
    slowest: float = 0.0  # seconds
    findings: Counter[str] = field(default_factory=Counter)  # by signature

    @property
    def cases(self) -> int:
        return self.kinds.total()

    def row(self) -> tuple[str, ...]:
        kinds = self.kinds
        columns = [
            kinds["accepted"],
            kinds["refused"],
            kinds["traceback"] + kinds["crash"],
            kinds["hang"],
        ]
        others = self.cases - sum(columns)
        return (
            self.name,
            *(f"{count:,}" for count in (self.cases, *columns, others)),
            f"{self.slowest:.1f} s",
            f"{self.peak / 1e6:,.0f} MB",
        )


class Session:
    """Some campaigns that run in turn."""

    def __init__(self, names: Iterable[str], seed: int, folder: Path, findings: Path = FINDINGS):
        self.seed, self.findings = seed, findings
        self.workers = {name: WorkerProcess(name, seed, folder) for name in names}
        self.counts = {name: Counts(name) for name in self.workers}
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.workers:
            self.waiting.put(name)

    def run(self, seconds: float, jobs: int) -> None:
        """Run `jobs` campaigns at a time until the time is over."""
        began = told = time.monotonic()
        threads = [
            threading.Thread(target=self.take_turns, args=(began + seconds,), daemon=True)
            for _ in range(min(jobs, len(self.workers)))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - told >= 60:
                told += 60
                print(self.progress(time.monotonic() - began, seconds), flush=True)
        for process in self.workers.values():
            process.stop()

    def take_turns(self, end: float) -> None:
        """Run the campaign that has waited longest, then the next, and so on."""
        while time.monotonic() < end:
            name = self.waiting.get()
            turn_ends = min(end, time.monotonic() + TURN)
            try:
                while time.monotonic() < turn_ends:
                    self.run_case(name, self.counts[name].cases)
            finally:
                self.waiting.put(name)

    def run_case(self, name: str, case: int) -> None:
        counts, process = self.counts[name], self.workers[name]
        outcome = process.run(case)
        if outcome.kind == "hang" or "MemoryError" in outcome.signature:
            process.stop()  # once more: the machine may have been busy, or the process full
            outcome = process.run(case)
        if outcome.found:
            self.keep(name, case, outcome)
        counts.kinds[outcome.kind] += 1
        counts.peak = max(counts.peak, outcome.peak)
        counts.slowest = max(counts.slowest, outcome.seconds)

    def keep(self, name: str, case: int, outcome: Outcome) -> None:
        """Keep a case of a finding: its files, what happened, and the command that repeats it."""
        findings = self.counts[name].findings
        findings[outcome.signature] += 1
        if findings[outcome.signature] > KEPT:
            return
        command = f"python -m fuzz --campaign {name} --seed {self.seed} --case {case}"
        folder = self.findings / f"{name}-{self.seed}-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        copy_files(self.workers[name].scratch / "case", folder / "files")
        (folder / "report.txt").write_text(
            f"{outcome.kind}: {outcome.signature}\n{command}\n\n{outcome.detail}\n",
            encoding="utf-8",
            errors="backslashreplace",
        )
        if findings[outcome.signature] == 1:
            print(f"FOUND {outcome.kind}: {outcome.signature!r}\n  {command}", flush=True)

    def progress(self, seconds: float, total: float) -> str:
        kinds = sum((counts.kinds for counts in self.counts.values()), Counter())
        distinct = sum(len(counts.findings) for counts in self.counts.values())
        return (
            f"fuzz minutes={seconds / 60:.0f}/{total / 60:g} cases={kinds.total()} "
            f"accepted={kinds['accepted']} refused={kinds['refused']} findings={self.found} "
            f"distinct_findings={distinct}"
        )

    def table(self) -> str:
        return markdown(HEADER, [counts.row() for counts in self.counts.values()])

    @property
    def found(self) -> int:
        """Cases that ended in a finding."""
        return sum(counts.findings.total() for counts in self.counts.values())


def copy_files(source: Path, target: Path) -> None:
    """Copy the regular files below `source` that have less than 10 MB."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 10_000_000:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def run_campaigns(names: list[str], minutes: float, seed: int, jobs: int) -> int:
    """Run the campaigns, print their table, and return the number of findings."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-fuzz-") as temporary:
        folder = Path(temporary)
        print("fuzz  making valid inputs with the real stages", flush=True)
        material.make(folder)
        what = f"{minutes:g} minutes, seed {seed}, {min(jobs, len(names))} readers at a time"
        print(f"fuzz  damaging them: {what}", flush=True)
        session = Session(names, seed, folder)
        session.run(60 * minutes, jobs)
    print(f"\n{what}:\n\n{session.table()}\n")
    if session.found:
        print(f"{session.found} cases are findings; the first of each are in {FINDINGS}")
    else:
        print("No findings: every input was accepted, or refused in a sentence.")
    return session.found


def replay(name: str, seed: int, case: int) -> Outcome:
    """Run one case, and keep its files."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-fuzz-") as temporary:
        folder = Path(temporary)
        material.make(folder)
        process = WorkerProcess(name, seed, folder)
        try:
            return process.run(case)
        finally:
            process.stop()
            copy_files(process.scratch / "case", FINDINGS / f"{name}-{seed}-{case}" / "files")
