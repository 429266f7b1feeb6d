"""Runs that are killed again and again end with the bytes of a run that nothing disturbed.

    python -m fuzz.torture --kills 200

Trainers of each stage are killed (SIGKILL) at random moments and while they save. The workflow of
tests/workflow/ci.yaml is killed, too: Snakemake alone, which leaves its trainer at work, and its
whole process group. After each kill the same command is given again.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import material
from fuzz.material import CONFIG, INPUTS, PARENTS, ROOT
from fuzz.runner import markdown

SHARES = {"trainer": 0.45, "save": 0.3, "snakemake": 0.125, "group": 0.125}
"""What is killed, and its share of the kills."""
KILLS_OF_ONE_RUN = 4
MISSES = 5  # runs in a row that no kill hits, after which a kind of kill is given up
FREQUENT = 0.0005  # minutes between checkpoints: most of the time goes into saving
LONGEST = 900.0  # seconds that one attempt may take
WORKFLOW = ("--cores", "2", "--configfile", "tests/workflow/ci.yaml")
OFTEN = "{checkpoint_minutes: 0.002}"
OVERRIDES = ("--config", *(f"{stage}={OFTEN}" for stage in INPUTS))
MODELS = ("pretrain", "sft", "sft_scratch", "dpo")


class Failed(Exception):
    """A promise was broken; the text says how."""


@dataclass
class Tally:
    """The counts of one kind of kill."""

    what: str
    stage: str
    kills: int = 0
    attempts: int = 0
    runs: int = 0
    equal: int = 0
    unlocked: int = 0  # times that Snakemake asked for --unlock
    left: int = 0  # folders and files that killed writers had left when the run had ended
    seconds: float = 0.0

    def row(self) -> tuple[str, ...]:
        counts = (self.kills, self.attempts, self.runs, self.equal, self.left)
        return self.what, self.stage, *map(str, counts), f"{self.seconds:.0f} s"


HEADER = ("killed", "stage", "kills", "starts", "runs", "equal hashes", "leftovers", "time")


@dataclass
class Attempt:
    """A command that is at work, in a process group of its own."""

    command: list[str]
    folder: Path
    process: subprocess.Popen = field(init=False)

    def __post_init__(self) -> None:
        self.said = self.folder / "said.txt"
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=material.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def end(self) -> int:
        try:
            return self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.kill_group()
            raise Failed(f"no end within {LONGEST:.0f} s\n{self.text}") from None
        except BaseException:  # the harness is stopped
            self.kill_group()
            raise

    def kill(self) -> bool:
        """Kill the process alone; whether it was still at work."""
        self.process.kill()
        return self.process.wait() == -signal.SIGKILL

    def kill_group(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait() == -signal.SIGKILL

    @property
    def text(self) -> str:
        return self.said.read_text(errors="replace")[-4_000:]


class Trainers:
    """Kills trainers of one stage."""

    def __init__(self, stage: str, whole: Path, scratch: Path, rng: random.Random):
        self.stage, self.scratch, self.rng = stage, scratch, rng
        self.data, self.whole = whole / "data", whole / "run"
        self.expected = sha256(self.whole / stage / "model/model.safetensors")
        self.seconds = 1.0  # that an undisturbed run takes

    def command(self, run: Path) -> list[str]:
        config: dict[str, Any] = json.loads(json.dumps(CONFIG))
        config[self.stage]["checkpoint_minutes"] = FREQUENT
        return material.nanoeuler(*material.training_command(self.stage, self.data, run, config))

    def fresh(self) -> Path:
        shutil.rmtree(self.scratch, ignore_errors=True)
        run = self.scratch / "run"
        run.mkdir(parents=True)
        if self.stage in PARENTS:
            parent = PARENTS[self.stage]
            shutil.copytree(self.whole / parent / "model", run / parent / "model")
        return run

    def run(self, tally: Tally, kills: int) -> None:
        """One run, killed up to `kills` times before it is let go to its end."""
        run = self.fresh()
        command = self.command(run)
        for _ in range(kills):
            attempt = Attempt(command, self.scratch)
            tally.attempts += 1
            if tally.what == "save":
                wait_for_save(attempt, run / self.stage, self.rng)
            else:
                patience = self.rng.uniform(0.1, 1.1) * self.seconds
                with contextlib.suppress(subprocess.TimeoutExpired):
                    attempt.process.wait(patience)
            if attempt.kill():
                tally.kills += 1
        attempt, began = Attempt(command, self.scratch), time.monotonic()
        tally.attempts += 1
        if attempt.end() != 0:
            raise Failed(f"the command does not end well\n{attempt.text}")
        self.seconds = max(self.seconds, time.monotonic() - began)
        tally.runs += 1
        found = sha256(run / self.stage / "model/model.safetensors")
        if found != self.expected:
            raise Failed(f"the weights differ: {found} instead of {self.expected}\n{attempt.text}")
        tally.equal += 1
        tally.left += len(leftovers(run))


def wait_for_save(attempt: Attempt, stage: Path, rng: random.Random) -> None:
    """Return in the midst of a save or an export, or when the process has ended."""
    skipped = rng.choice((0, 0, 1, 3, 8))
    seen = {path.name for path in leftovers(stage)}  # of writers that were killed before
    skipped += len(seen)
    while attempt.process.poll() is None:
        for path in leftovers(stage):
            if path.name not in seen:
                seen.add(path.name)
                if len(seen) > skipped:
                    time.sleep(rng.choice((0.0, 0.0, 0.001, 0.003)))
                    return
        time.sleep(0.0003)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files and folders of writers below `folder`, whether at work or dead."""
    found: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # they come and go while we look
        for path in folder.rglob(".*"):
            if path.name.endswith((".part", ".old")):
                found.append(path)
    return found


class Workflow:
    """Kills Snakemake while it runs the whole of tests/workflow/ci.yaml."""

    def __init__(self, scratch: Path, rng: random.Random):
        self.scratch, self.rng = scratch, rng
        self.checkout = scratch / "checkout"
        self.command = [sys.executable, "-m", "snakemake", *WORKFLOW, *OVERRIDES]
        self.fresh()
        began = time.monotonic()
        self.finish(Tally("", ""))
        self.seconds = time.monotonic() - began
        self.expected = self.hashes()

    def fresh(self) -> None:
        if not self.checkout.exists():
            for part in ("workflow", "profiles", "nanoeuler", "config"):
                shutil.copytree(ROOT / part, self.checkout / part)  # machine code included
            shutil.copy(ROOT / "Snakefile", self.checkout)
            (self.checkout / "tests/workflow").mkdir(parents=True)
            shutil.copy(ROOT / WORKFLOW[-1], self.checkout / WORKFLOW[-1])
        for made in ("results", "data", ".snakemake", "logs"):
            shutil.rmtree(self.checkout / made, ignore_errors=True)

    def hashes(self) -> dict[str, str]:
        run = self.checkout / "results/ci"
        return {name: sha256(run / name / "model/model.safetensors") for name in MODELS}

    def run(self, tally: Tally, kills: int) -> None:
        """One run of the workflow, killed up to `kills` times before it is let go to its end."""
        self.fresh()
        for _ in range(kills):
            self.ready(tally)
            attempt = Attempt(self.command, self.checkout)
            tally.attempts += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                attempt.process.wait(3 + self.rng.uniform(0, 0.5) * self.seconds)
            killed = attempt.kill() if tally.what == "snakemake" else attempt.kill_group()
            tally.kills += killed
        self.finish(tally)
        tally.runs += 1
        if self.hashes() != self.expected:
            raise Failed(f"the weights differ: {self.hashes()} instead of {self.expected}")
        tally.equal += 1
        tally.left += len(leftovers(self.checkout / "results"))

    def ready(self, tally: Tally) -> None:
        """Do what a user is told after a kill: wait for a stage at work, unlock."""
        self.wait_for_stages()
        unlock = [sys.executable, "-m", "snakemake", *WORKFLOW, "--unlock"]
        if any((self.checkout / ".snakemake/locks").glob("*")):
            tally.unlocked += 1
            if Attempt(unlock, self.checkout).end() != 0:
                raise Failed("snakemake --unlock fails")

    def finish(self, tally: Tally) -> None:
        self.ready(tally)
        attempt = Attempt(self.command, self.checkout)
        tally.attempts += 1
        if attempt.end() != 0:
            raise Failed(f"snakemake does not end well\n{attempt.text}")

    def wait_for_stages(self) -> None:
        """Wait until the stages that a killed Snakemake has left have ended."""
        deadline = time.monotonic() + LONGEST
        while any(processes_in(self.checkout)):
            if time.monotonic() > deadline:
                raise Failed("a stage that Snakemake has left does not end")
            time.sleep(0.05)

    def kill_left(self) -> None:
        for number in processes_in(self.checkout):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def processes_in(folder: Path) -> Iterator[int]:
    """The processes that work in `folder` (Linux)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd") == str(folder) and not is_zombie(process):
                yield int(process.name)


def is_zombie(process: Path) -> bool:
    return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tell(tallies: list[Tally], kills: int, over: threading.Event) -> None:
    """Print the progress each minute."""
    while not over.wait(60):
        if tallies:
            now, done = tallies[-1], sum(tally.kills for tally in tallies)
            print(
                f"torture {now.what} {now.stage} kills={done}/{kills} "
                f"runs={sum(tally.runs for tally in tallies)} "
                f"equal={sum(tally.equal for tally in tallies)}",
                flush=True,
            )


def torture(
    kills: int, seed: int, folder: Path, chosen: Iterable[str] = tuple(SHARES)
) -> tuple[list[Tally], list[str]]:
    """Kill `kills` processes, or the share of the chosen kinds of kills.

    Returns the counts, and what was broken.
    """
    rng = random.Random(seed)
    whole = material.make(folder / "whole")
    tallies: list[Tally] = []
    broken: list[str] = []
    workflow: Workflow | None = None
    over = threading.Event()
    threading.Thread(target=tell, args=(tallies, kills, over), daemon=True).start()
    for what in chosen:
        share = SHARES[what]
        on_stages = what in ("trainer", "save")
        if not on_stages and workflow is None:
            workflow = Workflow(folder / "workflow", rng)
        for stage in INPUTS if on_stages else ("all",):
            wanted = round(kills * share / (len(INPUTS) if on_stages else 1))
            target: Trainers | Workflow | None = workflow
            if on_stages or target is None:
                target = Trainers(stage, whole, folder / "killed", rng)
            tallies.append(tally := Tally(what, stage))
            began, missed = time.monotonic(), 0
            while tally.kills < wanted:
                before = tally.kills
                try:
                    target.run(tally, min(KILLS_OF_ONE_RUN, wanted - tally.kills))
                    missed = 0 if tally.kills > before else missed + 1
                    if missed == MISSES:
                        raise Failed(f"{MISSES} runs ended before they were killed")
                except Failed as failure:
                    broken.append(f"{what} {stage}, seed {seed}: {failure}")
                    print(f"torture  BROKEN {broken[-1]}", flush=True)
                    tally.runs += 1
                    if len(broken) >= 10:
                        return tallies, broken
                    if missed == MISSES:
                        break
                finally:
                    if isinstance(target, Workflow):
                        target.kill_left()
                tally.seconds = time.monotonic() - began
    over.set()
    return tallies, broken


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.torture", description="Kill runs; exits 1 when a hash differs."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", action="append", choices=list(SHARES), help="only this kind")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left at work or on disk
    chosen = options.what or list(SHARES)
    with tempfile.TemporaryDirectory(prefix="nanoeuler-torture-") as temporary:
        folder = Path(temporary).resolve()
        tallies, broken = torture(options.kills, options.seed, folder, chosen)
    total = Tally("all", "")
    for name in ("kills", "attempts", "runs", "equal", "left", "unlocked", "seconds"):
        setattr(total, name, sum(getattr(tally, name) for tally in tallies))
    print(f"\nseed {options.seed}:\n\n{markdown(HEADER, [t.row() for t in [*tallies, total]])}")
    print(f"\nSnakemake's lock was in the way {total.unlocked} times.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
