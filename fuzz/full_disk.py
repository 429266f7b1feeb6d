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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import material
from fuzz.faulty_files import Counter, install
from fuzz.material import CONFIG, INPUTS, PARENTS
from fuzz.runner import markdown

ERRORS = {errno.ENOSPC: 1, errno.EIO: 3}
"""An error, and of how many operations it fails one: a broken disk is tried at every third."""
LONGEST = 60  # seconds that a stage may take
UNCOMPARED = ("metrics.jsonl", "log.txt", "lock.json", "state.json")
"""Files that grow, or that say when and where they were made."""
HEADER = (
    *("stage", "error", "operations", "refused", "unharmed", "tracebacks", "half files"),
    *("equal afterwards", "leftovers"),
)


@dataclass
class Tally:
    """The counts of one stage under one error."""

    stage: str
    error: str
    operations: int
    refused: int = 0
    unharmed: int = 0  # the stage ended well all the same
    tracebacks: int = 0
    half: int = 0
    equal: int = 0
    left: int = 0
    broken: list[str] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        counts = (self.refused, self.unharmed, self.tracebacks, self.half, self.equal, self.left)
        return self.stage, self.error, str(self.operations), *map(str, counts)


def short_config() -> dict[str, Any]:
    """Runs of a few steps with one checkpoint on the way."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    config["pretrain"] |= {"tokens": 4 * 128, "validate_every": 2}
    for stage in ("sft", "dpo"):
        config[stage] |= {"batch_tokens": 20 * 320, "epochs": 2, "validate_every": 2}
    return config


class Stage:
    """A stage, what it needs, and the files that it leaves when nothing fails."""

    def __init__(self, name: str, arguments: list[str], root: Path, outputs: list[Path]):
        self.name, self.root, self.outputs = name, root, outputs
        self.arguments = [*arguments, "--log", str(root / "logs" / name / "log.txt")]

    def clear(self) -> None:
        for path in [*self.outputs, self.root / "logs"]:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
            for left in path.parent.glob(f".{path.name}.*"):
                shutil.rmtree(left, ignore_errors=True)

    def files(self) -> dict[str, bytes]:
        """The files under final names, by path, without those that nobody compares."""
        found = {}
        for output in self.outputs:
            for path in [output, *output.rglob("*")]:
                inside = path.relative_to(output.parent).parts
                hidden = any(part.startswith(".") for part in inside)
                if path.is_file() and path.name not in UNCOMPARED and not hidden:
                    found[str(path)] = path.read_bytes()
        return found

    def leftovers(self) -> int:
        names = [path.name for output in self.outputs for path in output.rglob(".*")]
        names += [
            path.name
            for output in self.outputs
            if output.parent.exists()
            for path in output.parent.glob(f".{output.name}.*")
        ]
        return len(names)


def stages_of(root: Path) -> list[Stage]:
    """The stages in their order; each works on what those before it have left in `root`."""
    data, run = root / "data", root / "run"
    stages = []
    for arguments in material.data_commands(data):
        output = Path(arguments[arguments.index("--output") + 1])
        stages.append(Stage(arguments[0], arguments, root, [output]))
    for name in INPUTS:
        arguments = material.training_command(name, data, run, short_config())
        stages.append(Stage(name, arguments, root, [run / name]))
    model = str(run / PARENTS["dpo"] / "model")
    evaluation = run / "evaluation"
    arguments = [
        *("evaluate", "--config", '{"evaluate": {"prompts": ["Say fox."], "max_new_tokens": 4}}'),
        *("--model", model, "--tokens", str(data / "tokens/manifest.json")),
        *("--output", str(evaluation / "sft.json"), "--items", str(evaluation / "items.jsonl")),
        *("--device", "reference"),
    ]
    stages.append(Stage("evaluate", arguments, root, [evaluation]))
    return stages


def run(stage: Stage, counter: Counter, fail_at: int | None, number: int) -> tuple[int, str, str]:
    """Run a stage in a forked process: its exit status, what it printed, and what was failed."""
    said = stage.root / "said.txt"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 70
        try:
            signal.alarm(LONGEST)
            descriptor = os.open(said, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            counter.done, counter.fail_at, counter.number = 0, fail_at, number
            from nanoeuler.cli import main

            status = main(stage.arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            counter.fail_at = None
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(writer, f"{counter.done} {counter.failed}".encode())
            os._exit(status)
    os.close(writer)
    _, ended = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(ended), said.read_text(errors="replace"), told


def try_operation(
    stage: Stage, counter: Counter, tally: Tally, fail_at: int, number: int, whole: dict[str, bytes]
) -> None:
    """Fail one operation of a stage, then run it again, and count what came of it."""
    stage.clear()
    status, said, told = run(stage, counter, fail_at, number)
    what = f"{stage.name}, {tally.error} at operation {fail_at} ({told.partition(' ')[2]})"
    if "Traceback" in said or status not in (0, 1):
        tally.tracebacks += 1
        tally.broken.append(f"{what}: exit status {status}\n{said[-1_500:]}")
    elif status == 0:
        tally.unharmed += 1
    elif "error  " in said:
        tally.refused += 1
    else:
        tally.broken.append(f"{what}: exit status {status} without a sentence\n{said[-1_500:]}")
    half = [path for path, content in stage.files().items() if not whole_file(path, content, whole)]
    if half:
        tally.half += 1
        tally.broken.append(f"{what}: left half of {half[0]}")
    tally.left += stage.leftovers()
    status, said, _ = run(stage, counter, None, number)
    if status == 0 and all(
        same(path, content, stage.files().get(path)) for path, content in whole.items()
    ):
        tally.equal += 1
    else:
        tally.broken.append(f"{what}: another result afterwards, status {status}\n{said[-1_500:]}")


def whole_file(path: str, content: bytes, whole: dict[str, bytes]) -> bool:
    """Whether a file is what an undisturbed run leaves, or one that such a run removes later."""
    if path in whole:
        return same(path, content, whole[path])
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
    """A JSON value without its numbers and texts."""
    if isinstance(value, dict):
        return {key: skeleton(item) for key, item in value.items()}
    return [skeleton(item) for item in value] if isinstance(value, list) else type(value).__name__


def fill_disks(root: Path, counter: Counter, chosen: list[str]) -> list[Tally]:
    """Fail every operation of the chosen stages, one at a time."""
    material.write_records(root / "data")
    tallies = []
    stages = stages_of(root)
    last = max((n for n, stage in enumerate(stages) if stage.name in chosen), default=len(stages))
    for stage in stages[: last + 1]:
        stage.clear()
        run(stage, counter, None, 0)  # what is made once on a machine is there
        stage.clear()
        status, said, told = run(stage, counter, None, 0)
        if status:
            raise SystemExit(f"{stage.name} fails without a fault:\n{said}")
        whole, operations = stage.files(), int(told.split()[0])
        for number, every in ERRORS.items() if not chosen or stage.name in chosen else ():
            tally = Tally(stage.name, errno.errorcode[number], operations)
            tallies.append(tally)
            told_at = time.monotonic()
            for fail_at in range(1, operations + 1, every):
                try_operation(stage, counter, tally, fail_at, number, whole)
                if time.monotonic() - told_at > 60 or fail_at + every > operations:
                    told_at = time.monotonic()
                    print(
                        f"full_disk {stage.name} {tally.error} operation={fail_at}/{operations} "
                        f"refused={tally.refused} equal={tally.equal} broken={len(tally.broken)}",
                        flush=True,
                    )
            for text in tally.broken[:3]:
                print(f"full_disk  BROKEN {text}", flush=True)
        stage.clear()
        run(stage, counter, None, 0)
    return tallies


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
        sys.dont_write_bytecode = True
        counter = install(None)
        preload()
        tallies = fill_disks(root, counter, options.stage)
    print(f"\n{markdown(HEADER, [tally.row() for tally in tallies])}")
    return 1 if any(tally.broken for tally in tallies) else 0


def preload() -> None:
    """Import what stages import when they run, so that a forked process need not."""
    import nanoeuler.backend.reference
    import nanoeuler.config.settings
    import nanoeuler.corpus.assemble
    import nanoeuler.evaluation.evaluate
    import nanoeuler.tokenizer.stages
    import nanoeuler.training.dpo
    import nanoeuler.training.sft  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
