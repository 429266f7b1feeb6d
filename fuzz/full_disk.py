"""Every write of every stage fails once, as on a full or a broken disk.

    python -m fuzz.full_disk

Each stage runs on small data with a file layer that fails one operation: the first, then the
second, and so on to the last. The stage must end with a sentence and leave no half file under a
final name, or end well if the operation did not matter. Then the same command runs again, without
a fault, and must end with the bytes of a run that nothing disturbed.
"""

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzz import faulty_files, material
from fuzz.faulty_files import Fault
from fuzz.material import CONFIG, INPUTS, PARENTS
from fuzz.table import markdown
from nanoeuler.config.data_settings import Evaluate
from nanoeuler.storage.folders import MARKER

ERRORS = {errno.ENOSPC: 1, errno.EIO: 3}
"""An error, and of how many operations it fails one: a broken disk is tried at every third."""
LONGEST = 60  # seconds that a stage may take
UNCOMPARED = ("metrics.jsonl", "log.txt", "lock.json", "state.json")
"""Files that grow, or that say when and where they were made."""
EVALUATE = Evaluate(prompts=["Say fox."], max_new_tokens=4, validation_tokens=500)
HEADER = (
    *("stage", "error", "operations", "refused", "unharmed", "tracebacks", "half files"),
    *("equal afterwards", "leftovers"),
)
Files = dict[str, bytes]
"""Contents by path."""


@dataclass
class Counts:
    """What has been counted for one stage under one error."""

    stage: str
    error: str
    operations: int
    refused: int = 0
    unharmed: int = 0  # the stage ended well all the same
    tracebacks: int = 0
    half: int = 0
    equal: int = 0
    leftovers: int = 0
    broken: list[str] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        counts = (self.refused, self.unharmed, self.tracebacks, self.half)
        numbers = (self.operations, *counts, self.equal, self.leftovers)
        return self.stage, self.error, *map(str, numbers)


@dataclass
class Stage:
    """A command, and the file or folder that it writes."""

    name: str
    arguments: list[str]
    output: Path
    log: Path

    def clear(self) -> None:
        """Remove the output, the logs, and what failed writers have left."""
        for path in [self.output, self.log.parents[1], *self.hidden()]:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)

    def hidden(self) -> list[Path]:
        """Temporary files and folders beside the output."""
        return list(self.output.parent.glob(f".{self.output.name}.*"))

    def files(self) -> Files:
        """The files under final names that are compared."""
        found = {}
        for path in [self.output, *self.output.rglob("*")]:
            inside = path.relative_to(self.output.parent).parts
            hidden = any(part.startswith(".") for part in inside)
            if path.is_file() and path.name not in UNCOMPARED and not hidden:
                found[str(path)] = path.read_bytes()
        return found

    def leftovers(self) -> int:
        inside = [path for path in self.output.rglob(".*") if path.name != MARKER]
        return len([*inside, *self.hidden()])


def stages_of(root: Path) -> list[Stage]:
    """The stages in their order; each works on what those before it have left in `root`."""
    data, run = root / "data", root / "run"
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))  # a few steps, and one checkpoint
    config["pretrain"] |= {"tokens": 4 * 128, "validate_every": 2}
    for stage in ("sft", "dpo", "rl"):
        config[stage] |= {"batch_tokens": 20 * 320, "epochs": 2, "validate_every": 2}
    evaluation = run / "evaluation"
    commands = [
        *material.data_commands(data),
        *(material.training_command(stage, data, run, config) for stage in INPUTS),
        [
            *("evaluate", "--config", json.dumps({"evaluate": asdict(EVALUATE)})),
            *("--model", str(run / PARENTS["dpo"] / "model")),
            *("--tokens", str(data / "tokens/manifest.json")),
            *("--output", str(evaluation / "sft.json")),
            *("--items", str(evaluation / "items.jsonl")),
            *("--device", "reference"),
        ],
    ]
    stages = []
    for name, *options in commands:
        output = Path(options[options.index("--output") + 1])
        log = root / "logs" / name / "log.txt"
        arguments = [name, *options, "--log", str(log)]
        stages.append(Stage(name, arguments, evaluation if name == "evaluate" else output, log))
    return stages


@dataclass
class Ended:
    """How a process ended, what it printed, how many operations it did, and which one failed."""

    status: int
    printed: str
    operations: int
    failed: str


def run(stage: Stage, fault: Fault, fail_at: int | None = None, error_number: int = 0) -> Ended:
    """Run a stage in a forked process, in which one operation may fail."""
    with tempfile.TemporaryFile() as printed:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            status = 70
            try:
                signal.alarm(LONGEST)
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                fault.start(fail_at, error_number)
                from nanoeuler.cli import main

                status = main(stage.arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                fault.fail_at = None
                sys.stdout.flush()
                sys.stderr.flush()
                os.write(writer, f"{fault.count} {fault.failed}".encode())
                os._exit(status)
        os.close(writer)
        _, wait_status = os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            operations, _, failed = pipe.read().partition(" ")
        printed.seek(0)
        return Ended(
            os.waitstatus_to_exitcode(wait_status),
            printed.read().decode(errors="replace"),
            int(operations or 0),
            failed,
        )


def try_operation(
    stage: Stage, fault: Fault, counts: Counts, fail_at: int, error_number: int, expected: Files
) -> None:
    """Fail one operation of a stage, then run it again, and count what came of it."""
    stage.clear()
    ended = run(stage, fault, fail_at, error_number)
    what = f"{stage.name}, {counts.error} at operation {fail_at} ({ended.failed})"
    output = f"exit status {ended.status}\n{ended.printed[-1_500:]}"
    if "Traceback" in ended.printed or ended.status not in (0, 1):
        counts.tracebacks += 1
        counts.broken.append(f"{what}: {output}")
    elif ended.status == 0:
        counts.unharmed += 1
    elif "error  " in ended.printed:
        counts.refused += 1
    else:
        counts.broken.append(f"{what}: no sentence, {output}")
    files = stage.files()
    half = [path for path, content in files.items() if not is_whole(path, content, expected)]
    if half:
        counts.half += 1
        counts.broken.append(f"{what}: left half of {half[0]}")
    counts.leftovers += stage.leftovers()
    again = run(stage, fault)
    files = stage.files()
    if again.status == 0 and all(same(p, content, files.get(p)) for p, content in expected.items()):
        counts.equal += 1
    else:
        output = f"exit status {again.status}\n{again.printed[-1_500:]}"
        counts.broken.append(f"{what}: another result afterwards, {output}")


def is_whole(path: str, content: bytes, expected: Files) -> bool:
    """Whether a file is what an undisturbed run leaves, or one that such a run removes later."""
    if path in expected:
        return same(path, content, expected[path])
    return "/checkpoints" in path


def same(path: str, content: bytes, other: bytes | None) -> bool:
    """Whether two files are equal; JSON may differ in dates and durations."""
    if other is None:
        return False
    if path.endswith(".json") and not path.endswith("tokenizer.json"):
        try:
            return skeleton(json.loads(content)) == skeleton(json.loads(other))
        except ValueError:
            return False
    return content == other


def skeleton(value: Any) -> Any:
    """A JSON value with the name of its type in place of each number and text."""
    if isinstance(value, dict):
        return {key: skeleton(item) for key, item in value.items()}
    return [skeleton(item) for item in value] if isinstance(value, list) else type(value).__name__


def fill_disk(stage: Stage, fault: Fault, operations: int, expected: Files) -> list[Counts]:
    """Fail the operations of a stage, one at a time, with each error."""
    all_counts = []
    for error_number, every in ERRORS.items():
        counts = Counts(stage.name, errno.errorcode[error_number], operations)
        all_counts.append(counts)
        told = time.monotonic()
        for fail_at in range(1, operations + 1, every):
            try_operation(stage, fault, counts, fail_at, error_number, expected)
            if time.monotonic() - told > 60 or fail_at + every > operations:
                told = time.monotonic()
                print(
                    f"full_disk stage={stage.name} error={counts.error} "
                    f"operation={fail_at}/{operations} refused={counts.refused} "
                    f"equal={counts.equal} broken={len(counts.broken)}",
                    flush=True,
                )
        for text in counts.broken[:3]:
            print(f"BROKEN {text}", flush=True)
    return all_counts


def fill_disks(root: Path, fault: Fault, chosen: list[str]) -> list[Counts]:
    """Fail every operation of the chosen stages, one at a time; by default, of all stages."""
    material.write_records(root / "data")
    stages = stages_of(root)
    chosen = chosen or [stage.name for stage in stages]
    last = max(index for index, stage in enumerate(stages) if stage.name in chosen)
    all_counts = []
    for stage in stages[: last + 1]:
        run(stage, fault)  # what is made once on a machine is there
        stage.clear()
        undisturbed = run(stage, fault)
        if undisturbed.status:
            raise SystemExit(f"{stage.name} fails without a fault:\n{undisturbed.printed}")
        if stage.name in chosen:
            all_counts += fill_disk(stage, fault, undisturbed.operations, stage.files())
            stage.clear()
            run(stage, fault)  # for the stages after it
    return all_counts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.full_disk",
        description="Fail every write of every stage once; exits 1 when a stage breaks.",
    )
    parser.add_argument("--stage", action="append", default=[], help="only this one; repeatable")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nanoeuler-full-disk-") as temporary:
        root = Path(temporary).resolve()
        for name in ("home", "temporary"):
            (root / name).mkdir()
        # before NumPy is loaded: a process with threads must not be forked
        os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(root / "temporary")}
        os.environ |= {"HOME": str(root / "home"), "XDG_CACHE_HOME": str(root / "home/.cache")}
        tempfile.tempdir = None
        sys.dont_write_bytecode = True
        fault = faulty_files.install()
        preload()
        all_counts = fill_disks(root, fault, options.stage)
    print(f"\n{markdown(HEADER, [counts.row() for counts in all_counts])}")
    return 1 if any(counts.broken for counts in all_counts) else 0


def preload() -> None:
    """Import what stages import when they run, so that a forked process need not."""
    import nanoeuler.backend.reference
    import nanoeuler.config.settings
    import nanoeuler.corpus.assemble
    import nanoeuler.evaluation.evaluate
    import nanoeuler.tokenizer.stages
    import nanoeuler.training.stages.dpo
    import nanoeuler.training.stages.sft  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
