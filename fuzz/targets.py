"""Runs that can be killed, started again, and compared with one that nothing disturbed."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import material
from fuzz.material import CONFIG, INPUTS, PARENTS, ROOT
from nanoeuler.storage.files import canonical_json, sha256_file, sha256_text
from nanoeuler.training.distributed.ranks import STOPPED_SECONDS
from tests.evaluation.fabricated import fabricate

FREQUENT = 0.0005  # minutes between checkpoints: most of the time goes into saving
LONGEST = 900.0  # seconds that one command may take
RANKS = 3
RANKS_END_WITHIN = 30.0  # seconds
WORKFLOW = ("--cores", "2", "--configfile", "tests/workflow/ci.yaml")
OVERRIDES = ("--config", *(f"{stage}={{checkpoint_minutes: 0.002}}" for stage in INPUTS))
MODELS = ("pretrain", "sft", "sft_scratch", "dpo")
TIMES = {"seconds", "provenance", "seal"}
"""Keys of an evaluation that tell when and how long it was made."""


class Failed(Exception):
    """A promise was broken; the text says how."""


@dataclass
class Counts:
    """What has been counted for one kind of kill of one target."""

    what: str
    stage: str
    kills: int = 0
    starts: int = 0
    runs: int = 0
    equal: int = 0
    leftovers: int = 0  # temporary files and folders that are there when a run has ended
    seconds: float = 0.0

    def row(self) -> tuple[str, ...]:
        counts = (self.kills, self.starts, self.runs, self.equal, self.leftovers)
        return self.what, self.stage, *map(str, counts), f"{self.seconds:.0f} s"


@dataclass
class Command:
    """A command that runs in `folder`, in a process group of its own."""

    arguments: list[str]
    folder: Path
    process: subprocess.Popen = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / "output.txt"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=material.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> None:
        """Wait until the command has ended, but no longer than this."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def finish(self) -> None:
        """Wait for the end. Raises `Failed` when the command fails or takes too long."""
        problem = f"no end within {LONGEST:.0f} s"
        try:
            self.wait(LONGEST)
        finally:  # also when the harness is stopped
            if self.process.poll() is None:
                self.kill_group()
            else:
                problem = f"exit status {self.process.returncode}"
        if self.process.returncode:
            raise Failed(f"{problem}\n{self.output.read_text(errors='replace')[-4_000:]}")

    def kill(self) -> bool:
        """Kill the process alone; returns whether it was still running."""
        self.process.kill()
        return self.process.wait() == -signal.SIGKILL

    def kill_group(self) -> bool:
        """Kill all its processes; returns whether the first one was still running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait() == -signal.SIGKILL


class Target(ABC):
    """A run that can be killed, started again, and compared with an undisturbed one."""

    stage: str
    folder: Path  # where its commands run
    seconds: float  # that an undisturbed run takes
    expected: dict[str, str]  # the hashes of its models

    @abstractmethod
    def reset(self) -> None:
        """Remove what an earlier run has left."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts the run, or resumes it, when nothing is in its way."""

    @abstractmethod
    def kill(self, command: Command, what: str) -> bool:
        """Wait for a moment to kill the command; returns whether it was still running."""

    @abstractmethod
    def hashes(self) -> dict[str, str]:
        """The hashes of the run's models."""

    def start(self) -> Command:
        return Command(self.command(), self.folder)

    def run_undisturbed(self) -> None:
        """A first run, which tells how long one takes and what it ends with."""
        began = time.monotonic()
        self.start().finish()
        self.seconds = time.monotonic() - began
        self.expected = self.hashes()

    def run(self, counts: Counts, kills: int) -> None:
        """One run, killed up to `kills` times and then left alone. Raises `Failed`."""
        self.reset()
        counts.runs += 1
        for _ in range(kills):
            counts.starts += 1
            counts.kills += self.kill(self.start(), counts.what)
        counts.starts += 1
        command, began = self.start(), time.monotonic()
        command.finish()
        self.seconds = max(self.seconds, time.monotonic() - began)
        try:
            found = self.hashes()
        except FileNotFoundError as error:
            raise Failed(f"{error.filename} is missing") from error
        if found != self.expected:
            raise Failed(f"the weights differ: {found} instead of {self.expected}")
        counts.equal += 1
        counts.leftovers += len(leftovers(self.folder))

    def stop(self) -> None:
        """Kill what a run has left at work."""
        for process in processes_in(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


class Trainer(Target):
    """The trainer of one stage; `whole` is the folder of `material.make`."""

    def __init__(self, stage: str, whole: Path, folder: Path, rng: random.Random):
        self.stage, self.folder, self.rng = stage, folder, rng
        self.data, self.undisturbed = whole / "data", whole / "run"
        self.seconds = 1.0  # until a run has taken longer
        self.expected = self.hashes(self.undisturbed)
        self.config: dict[str, Any] = json.loads(json.dumps(CONFIG))
        self.config[stage]["checkpoint_minutes"] = FREQUENT

    @property
    def results(self) -> Path:
        return self.folder / "run"

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.results.mkdir(parents=True)
        if parent := PARENTS.get(self.stage):
            shutil.copytree(self.undisturbed / parent / "model", self.results / parent / "model")

    def command(self) -> list[str]:
        arguments = material.training_command(self.stage, self.data, self.results, self.config)
        return material.nanoeuler(*arguments)

    def kill(self, command: Command, what: str) -> bool:
        if what == "save":
            wait_for_save(command, self.results / self.stage, self.rng)
        else:
            command.wait(self.rng.uniform(0.1, 1.1) * self.seconds)
        return command.kill()

    def hashes(self, results: Path | None = None) -> dict[str, str]:
        model = (results or self.results) / self.stage / "model/model.safetensors"
        return {self.stage: sha256_file(model)}


class MovedTrainer(Trainer):
    """A trainer whose folder is moved away while it works, and then back."""

    def kill(self, command: Command, what: str) -> bool:
        metrics = self.results / self.stage / "metrics.jsonl"
        before = metrics.stat().st_mtime_ns if metrics.exists() else 0
        while command.process.poll() is None:  # before its first step, there is little to move
            if metrics.exists() and metrics.stat().st_mtime_ns != before:
                break
            time.sleep(0.001)
        command.wait(self.rng.uniform(0.0, 0.3) * self.seconds)
        away = self.folder / "away"
        self.results.rename(away)
        command.wait(LONGEST)
        if self.results.exists():
            made = {path.name for path in self.results.rglob("*")}
            if made & {"metrics.jsonl", "model"}:  # more than a checkpoint that was under way
                raise Failed(f"in the place of the moved folder, a new one was made: {made}")
            shutil.rmtree(self.results)
        away.rename(self.results)
        said = command.output.read_text(errors="replace")
        if "Traceback" in said:
            raise Failed(said[-4_000:])
        return command.process.returncode != 0


class LostTrainer(Trainer):
    """A trainer whose results are lost with each kill, but for their mirror."""

    def __init__(self, stage: str, whole: Path, folder: Path, rng: random.Random):
        super().__init__(stage, whole, folder, rng)
        self.config["checkpoint_mirror"] = str(folder / "mirror")

    def kill(self, command: Command, what: str) -> bool:
        killed = super().kill(command, what)
        shutil.rmtree(self.results / self.stage, ignore_errors=True)
        return killed


class SharedTrainer(Trainer):
    """A pretraining run of several ranks, any of which may be killed."""

    def __init__(self, whole: Path, folder: Path, rng: random.Random):
        super().__init__("pretrain", whole, folder, rng)
        self.reset()
        self.run_undisturbed()  # its hashes are not those of one process

    def command(self) -> list[str]:
        return [*super().command(), "--ranks", str(RANKS)]

    def kill(self, command: Command, what: str) -> bool:
        command.wait(self.rng.uniform(0.1, 1.1) * self.seconds)
        ranks = sorted(processes_in(self.folder))
        if not ranks:
            return False
        with contextlib.suppress(ProcessLookupError):
            self.strike(ranks, command.process.pid)
        within = RANKS_END_WITHIN + STOPPED_SECONDS * (what == "suspended")
        command.wait(within)
        deadline = time.monotonic() + RANKS_END_WITHIN
        while any(processes_in(self.folder)):
            if time.monotonic() > deadline:
                raise Failed(f"a rank goes on {within:.0f} s after another was {what}")
            time.sleep(0.01)
        return command.process.wait() != 0

    def strike(self, ranks: list[int], first: int) -> None:
        """Hit one of the ranks, of which `first` leads."""
        os.kill(self.rng.choice(ranks), signal.SIGKILL)


class SuspendedTrainer(SharedTrainer):
    """One any of whose ranks but the first may be suspended."""

    def strike(self, ranks: list[int], first: int) -> None:
        others = [rank for rank in ranks if rank != first]
        if others:
            os.kill(self.rng.choice(others), signal.SIGSTOP)


class Product(Target):
    """A command that writes its results to out/ at once, and can only be given again."""

    def __init__(self, stage: str, arguments: list[str], folder: Path, rng: random.Random):
        self.stage, self.arguments, self.folder, self.rng = stage, arguments, folder, rng
        self.reset()
        self.run_undisturbed()

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def command(self) -> list[str]:
        out = self.folder / "out"
        if out.exists() and self.stage in ("export", "import"):  # which write to no such folder
            if self.hashes() != self.expected:
                raise Failed("a killed command has left a half result")
            shutil.rmtree(out)
        return material.nanoeuler(*self.arguments)

    def kill(self, command: Command, what: str) -> bool:
        if self.rng.random() < 0.5:
            wait_for_save(command, self.folder, self.rng)
        else:
            command.wait(self.rng.uniform(0.1, 1.1) * self.seconds)
        return command.kill()

    def hashes(self) -> dict[str, str]:
        """Of all its files, or of an evaluation's results without the time that it took."""
        found = {}
        for file in sorted((self.folder / "out").rglob("*")):
            if file.is_file():
                found[file.name] = sha256_file(file)
            if file.name == "evaluation.json":
                content = json.loads(file.read_text())
                kept = {key: content[key] for key in content.keys() - TIMES}
                found[file.name] = sha256_text(canonical_json(kept))
        return found


def products(whole: Path, folder: Path, rng: random.Random) -> Iterator[Product]:
    """Those of a run that nothing disturbed, and a report of made-up results."""
    data, model = whole / "data", str(whole / "run/sft/model")
    config, run = fabricate(whole / "fabricated")
    measured = {"prompts": ["The fox"], "validation_tokens": 500, "max_new_tokens": 8}
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 0.95}
    settings = {
        "seed": 1,
        "pretrain": {"document_mask": True},
        "evaluate": measured | sampling,
    }
    foreign = str(whole / "foreign")
    export = ["export", model, "--format", "hf", "--output"]
    subprocess.run(material.nanoeuler(*export, foreign), env=material.environment(), check=True)
    commands = {
        "export": [*export, "out"],
        "import": ["import", foreign, "--output", "out"],
        "evaluate": [
            *("evaluate", "--config", json.dumps(settings), "--model", model),
            *("--tokens", str(data / "tokens/manifest.json"), "--device", "reference"),
            *("--output", "out/evaluation.json", "--items", "out/items.jsonl"),
        ],
        "report": [
            *("report", "--config", json.dumps(config), "--run", str(run)),
            *("--output", "out/report.html", "--metrics", "out/metrics.json"),
            *("--table", "out/table.md", "--card", "out/README.md"),
        ],
    }
    for stage, arguments in commands.items():
        yield Product(stage, arguments, folder, rng)


def wait_for_save(command: Command, folder: Path, rng: random.Random) -> None:
    """Return in the midst of a save or an export, or when the command has ended."""
    seen = {path.name for path in leftovers(folder)}  # of writers that were killed before
    awaited = len(seen) + 1 + rng.choice((0, 0, 1, 3, 8))
    while command.process.poll() is None:
        seen |= {path.name for path in leftovers(folder)}
        if len(seen) >= awaited:
            time.sleep(rng.choice((0.0, 0.0, 0.001, 0.003)))
            return
        time.sleep(0.0003)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files and folders below `folder`, of writers at work and of dead ones."""
    found: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # they come and go while we look
        for path in folder.rglob(".*"):
            if path.name.endswith((".part", ".old")):
                found.append(path)
    return found


class Workflow(Target):
    """Snakemake, which runs the whole of tests/workflow/ci.yaml in a copy of this checkout."""

    stage = "all"

    def __init__(self, folder: Path, rng: random.Random):
        self.folder, self.rng = folder, rng
        for part in ("workflow", "profiles", "nanoeuler", "config"):
            shutil.copytree(ROOT / part, folder / part)  # machine code included
        for file in ("Snakefile", WORKFLOW[-1]):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        self.run_undisturbed()

    def reset(self) -> None:
        for made in ("results", "data", ".snakemake", "logs"):
            shutil.rmtree(self.folder / made, ignore_errors=True)

    def command(self) -> list[str]:
        """Snakemake, when a stage that the last one has left at work has ended."""
        deadline = time.monotonic() + LONGEST
        while any(processes_in(self.folder)):
            if time.monotonic() > deadline:
                raise Failed("a stage that Snakemake has left does not end")
            time.sleep(0.05)
        return [sys.executable, "-m", "snakemake", *WORKFLOW, *OVERRIDES]

    def kill(self, command: Command, what: str) -> bool:
        command.wait(self.rng.uniform(0, 0.6) * self.seconds)
        return command.kill() if what == "snakemake" else command.kill_group()

    def hashes(self) -> dict[str, str]:
        run = self.folder / "results/ci"
        return {name: sha256_file(run / name / "model/model.safetensors") for name in MODELS}


def processes_in(folder: Path) -> Iterator[int]:
    """The processes whose working folder is `folder` (Linux)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if os.readlink(process / "cwd") == str(folder) and state != "Z":
                yield int(process.name)
