"""A copy of a stage's checkpoints on another machine, from which a fresh one goes on.

    s3://bucket/prefix/pretrain-3fa91c0d52b8e671/
        newest.json   the checkpoints of the last copy: their files' names, bytes and hashes
        before.json   those of the copy before
        e3b0c442…     a file of theirs, named by its SHA-256

The folder is named by stage and fingerprint: another training never finds it. Files named by their
hash do not change, and `newest.json` is written last, so a copy that is broken off leaves the one
before. What neither of the two pointers names is deleted.

A thread copies while training, and its checkpoints, go on. Where it is slower than they come, it
leaves some out and takes the newest. Trouble with a mirror never stops training: a line in the log
says so, and the next checkpoint is another attempt.
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import (
    MOST_JSON,
    atomic_write,
    explain_os_errors,
    link_or_copy,
    parse_json,
    sha256_file,
)
from nanoeuler.storage.folders import atomic_folder, content_of, files_of_ours
from nanoeuler.storage.integrity import Origin, check_seal, seal
from nanoeuler.storage.stores import Missing, StoreError, open_store, reason
from nanoeuler.storage.temporary import temporary_beside
from nanoeuler.training.checkpoint import OPTIMIZER, STATE, WEIGHTS, Checkpoints
from nanoeuler.training.job import Job

NEWEST, BEFORE = "newest.json", "before.json"
METRICS = "metrics.jsonl"
VERSION = 1
HASH = re.compile("[0-9a-f]{64}")
PATIENCE_SECONDS = 120.0
"""How long the end of a stage waits for a copy of which no byte moves. Machines that are taken away
say so two minutes before, or less."""

Pointer = dict[str, Any]
"""The content of `newest.json`."""
Listed = dict[str, Any]
"""What it says of a checkpoint, or of a file."""


class Damaged(Exception):
    """A file of the mirror is not what its name says."""


class Mirror:
    """The mirror of a job's checkpoints, and the thread that copies them there."""

    outbox: Path
    """Files that are still to be copied, by their hashes."""

    def __init__(self, address: str, job: Job, checkpoints: Checkpoints):
        """Raises `StoreError` for an address where nothing could ever be copied."""
        self.address, self.job, self.checkpoints = address, job, checkpoints
        self.store = open_store(address, f"{job.stage}-{job.fingerprint[:16]}")
        self.changed = threading.Condition()
        self.wanted: Pointer | None = None  # what to copy next
        self.copying: Pointer | None = None
        self.ended = False
        self.moved_at = time.monotonic()  # when bytes were on their way last
        self.copied: set[str] = set()  # files that the mirror has since the last copy
        self.damaged: set[str] = set()  # those that `fetch` found to be so

    @contextlib.contextmanager
    def at_work(self) -> Iterator["Mirror"]:
        """Copy what `take` notes, and wait for the last of it."""
        outbox = self.checkpoints.folder / "mirror"
        with contextlib.ExitStack() as stack:
            with explain_os_errors(outbox):
                self.outbox = stack.enter_context(temporary_beside(outbox, folder=True))
            threading.Thread(target=self.work, daemon=True).start()
            try:
                yield self
            finally:
                self.wait()

    # ---- from here to the mirror

    def take(self) -> None:
        """Have the checkpoints of this moment copied, in the place of those that are still waiting.

        Their files are linked into the outbox, since training may delete them before.
        """
        with self.changed:
            try:
                self.wanted = self.gather()
            except (OSError, UserError) as error:
                self.tell(error)
            self.tidy()  # or a slow copy would let the outbox grow
            self.moved_at = time.monotonic()
            self.changed.notify_all()

    def gather(self) -> Pointer:
        """The pointer to the present checkpoints, whose files are in the outbox or copied."""
        found = []
        for step in self.checkpoints.steps():
            folder = self.checkpoints.path(step)
            hashes = content_of(folder / STATE).get("sha256")
            with contextlib.suppress(FileNotFoundError):  # a damaged checkpoint
                if isinstance(hashes, dict):
                    hashes = {**hashes, STATE: sha256_file(folder / STATE)}
                    files = {name: self.post(folder / name, hashes[name]) for name in hashes}
                    found.append({"step": step, "files": files})
        if not found:
            raise UserError(f"{self.checkpoints.folder}: no checkpoint is there")
        measured, metrics = self.outbox / METRICS, None
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.job.output / METRICS, measured)  # lines are being added to it
            measured = measured.rename(self.outbox / sha256_file(measured))
            metrics = self.post(measured, measured.name)
        return self.pointer(found, metrics)

    def post(self, path: Path, sha256: str) -> Listed:
        """Put a file into the outbox; returns what a pointer says of it."""
        posted, size = self.outbox / sha256, path.stat().st_size
        whole = posted.exists() and posted.stat().st_size == size  # not copied to a full disk
        if not whole and sha256 not in self.copied:
            link_or_copy(path, posted)
        return {"sha256": sha256, "bytes": size}

    def tidy(self) -> None:
        """Delete what needs no copy any more."""
        needed = sizes(self.wanted).keys() | sizes(self.copying).keys()
        for path in self.outbox.glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def pointer(self, checkpoints: list[Listed], metrics: Listed | None) -> Pointer:
        job = {"stage": self.job.stage, "fingerprint": self.job.fingerprint}
        return seal({"version": VERSION, **job, "checkpoints": checkpoints, "metrics": metrics})

    def work(self) -> None:
        """Copy, until the end."""
        while True:
            with self.changed:
                self.copying = None
                self.tidy()
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.wanted is not None or self.ended)
                if self.wanted is None:
                    return
                self.copying, self.wanted = self.wanted, None
            try:
                self.copy(self.copying)
            except Exception as error:  # of whatever kind: training goes on
                self.copied.clear()
                self.tell(error)

    def copy(self, pointer: Pointer) -> None:
        """Make the mirror hold what `pointer` names, and then say so in it."""
        began, amount = time.monotonic(), 0
        needed, there, before = sizes(pointer), self.store.sizes(), self.read(NEWEST)
        if before and before["checkpoints"] == pointer["checkpoints"] and not self.damaged:
            return  # a start with nothing new
        kept = needed.keys() | sizes(before or self.read(BEFORE)).keys()
        for name in there.keys() - kept:  # first: they may be what fills a disk
            if HASH.fullmatch(name):
                self.store.remove(name)

        def moved(count: int) -> None:
            nonlocal amount
            amount, self.moved_at = amount + count, time.monotonic()

        for name, size in needed.items():
            if there.get(name) != size or name in self.damaged:
                with open(self.outbox / name, "rb") as file:
                    self.store.write(name, file, moved)
        if before is not None:
            self.write(BEFORE, before)
        self.write(NEWEST, pointer)
        self.damaged -= needed.keys()
        seconds = time.monotonic() - began
        log.line("mirror", "", step=last_step(pointer), copied=log.size(amount), seconds=seconds)
        self.copied = set(needed)

    def write(self, name: str, pointer: Pointer) -> None:
        self.store.write(name, io.BytesIO(json.dumps(pointer, indent=2).encode()))

    def tell(self, error: Exception) -> None:
        log.line(
            "mirror",
            f"a checkpoint was not copied ({reason(error)}); training goes on, and the next "
            "checkpoint or start is another attempt",
        )

    def wait(self) -> None:
        """Wait for the copy of the last checkpoint as long as bytes move, and end the thread."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
            if self.copying or self.wanted:
                log.line("mirror", f"copying the last checkpoint to {self.address}")
            while self.copying or self.wanted:
                left = self.moved_at + PATIENCE_SECONDS - time.monotonic()
                if left <= 0:
                    self.tell(StoreError(f"{self.address}: no byte for {PATIENCE_SECONDS:.0f} s"))
                    return
                self.changed.wait(left)

    # ---- from the mirror to here

    def fetch(self, step: int | None) -> bool:
        """Fetch the mirror's checkpoints, if training went further there than to `step`, where it
        would resume here; None: nowhere. Returns whether there is one now that goes further.

        Raises `StoreError` for a mirror that cannot be used and might have what is missing here.
        """
        try:
            pointers = [self.read(NEWEST), self.read(BEFORE)]
            if pointers == [None, None]:
                if NEWEST in self.store.sizes():
                    raise StoreError(f"{self.address}: both pointers to checkpoints are damaged")
                self.write(NEWEST, self.pointer([], None))  # a mistake in the address shows now
            for pointer in filter(None, pointers):
                if last_step(pointer) <= (-1 if step is None else step):
                    break
                if self.fetch_from(pointer):
                    return True
        except StoreError as error:
            if step is None:
                raise StoreError(
                    f"checkpoint_mirror: {error}; mend that, or set checkpoint_mirror: null to "
                    f"train from the beginning without it, since {self.checkpoints.folder} has no "
                    "checkpoint"
                ) from error
            log.line("mirror", f"{error}; going on from the checkpoint that is here")
        return False

    def fetch_from(self, pointer: Pointer) -> bool:
        """Fetch what is not here of a pointer's checkpoints; whether any of them can be resumed."""
        total = sum(sizes(pointer).values())
        log.line("mirror", f"fetching checkpoints from {self.address}", bytes=log.size(total))
        found = False
        with log.Progress("mirror", total, "MB", 1e-6) as progress:
            for checkpoint in pointer["checkpoints"]:  # the newest last, if this is broken off
                whole = self.fetch_checkpoint(checkpoint, progress)
                found = found or (whole and OPTIMIZER in checkpoint["files"])
            path = self.job.output / METRICS
            if found and pointer["metrics"] and not path.is_symlink():
                try:
                    with atomic_write(path, "wb") as file:
                        file.writelines(self.checked(pointer["metrics"], progress))
                except Damaged as error:
                    log.line("mirror", f"{METRICS} is left out: {error}")
        return found

    def fetch_checkpoint(self, checkpoint: Listed, progress: log.Progress) -> bool:
        """Fetch a checkpoint, if it is not here; False where it is damaged there."""
        step, files = checkpoint["step"], checkpoint["files"]
        folder = self.checkpoints.path(step)
        if folder.exists() and self.checkpoints.read_state(step) is not None:
            return True
        if files_of_ours(folder) is None:  # damaged
            self.checkpoints.remove(step)
        try:
            with atomic_folder(folder, parents=False) as temporary:
                for name in (WEIGHTS, OPTIMIZER, STATE):
                    if name in files:
                        with open(temporary / name, "wb") as file:
                            file.writelines(self.checked(files[name], progress))
        except Damaged as error:
            log.line("mirror", f"step {step} is left out: {error}")
            return False
        return True

    def checked(self, file: Listed, progress: log.Progress) -> Iterator[bytes]:
        """The parts of a file of the mirror. Raises `Damaged` in the end where they are not it."""
        name, left, digest = file["sha256"], file["bytes"], hashlib.sha256()
        with contextlib.suppress(Missing):
            for part in self.store.parts(name):
                digest.update(part)
                left -= len(part)
                if left < 0:
                    break
                progress.update(len(part))
                yield part
        if digest.hexdigest() != name:
            self.damaged.add(name)
            raise Damaged(f"{self.address}: {name} is gone, or has other bytes than its name says")

    def read(self, name: str) -> Pointer | None:
        """A pointer of the mirror; None where there is none that is whole and this job's."""
        content = b""
        try:
            for part in self.store.parts(name):
                content += part
                if len(content) > MOST_JSON:
                    raise ValueError("too large")
            pointer = parse_json(content.decode())
            check_seal(Path(name), pointer, Origin("a trainer", "it is left out"))
        except Missing:
            return None
        except StoreError:
            raise
        except (ValueError, AttributeError, UserError) as error:
            log.line("mirror", f"{self.address}: {name} is damaged and left out ({error})")
            return None
        if pointer["version"] > VERSION:
            raise StoreError(f"{self.address}: a newer version of nanoeuler wrote {name}")
        if pointer["fingerprint"] != self.job.fingerprint:
            raise StoreError(f"{self.address}: {name} is of other settings; give another address")
        return pointer


def sizes(pointer: Pointer | None) -> dict[str, int]:
    """The bytes of each file that a pointer names."""
    if pointer is None:
        return {}
    files = [file for each in pointer["checkpoints"] for file in each["files"].values()]
    files += [pointer["metrics"]] if pointer["metrics"] else []
    return {file["sha256"]: file["bytes"] for file in files}


def last_step(pointer: Pointer) -> int:
    """The last step from which training could resume; -1 without one."""
    steps = [each["step"] for each in pointer["checkpoints"] if OPTIMIZER in each["files"]]
    return max(steps, default=-1)
