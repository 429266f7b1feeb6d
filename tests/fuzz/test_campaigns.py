"""A campaign finds planted mistakes, tells their kinds apart, and repeats them from a seed."""

import ctypes
import importlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from fuzz import campaigns, runner, worker
from fuzz.campaigns.arguments import stages
from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.mutation import SCALARS, Mutator, to_json
from nanoeuler import log
from nanoeuler.cli import build_parser
from nanoeuler.errors import UserError


class Planted(Campaign):
    """Draws a number, and ends in the way that has this number."""

    def run(self, mutate: Mutator, folder: Path) -> None:
        (folder / "input").write_text("x")
        way = mutate.rng.randrange(8)
        if way == 0:
            raise UserError("input: it is wrong; mend it")
        if way == 1:
            raise ValueError("nobody has caught this")
        if way == 2:
            raise BrokenPromise("the hash was not compared")
        if way == 3:
            log.line("error", "from a server: \x1b[31m")
            os.write(1, b"\x1b[31m")
        if way == 4:
            time.sleep(30)
        if way == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if way == 6:
            raise UserError("x" * 5_000)


class Threads(Campaign):
    """Says how many threads NumPy's BLAS has, where it is OpenBLAS."""

    def run(self, mutate: Mutator, folder: Path) -> None:
        library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
        names = "scipy_openblas_get_num_threads64_", "openblas_get_num_threads"
        count = next((getattr(library, name) for name in names if hasattr(library, name)), None)
        raise UserError(f"threads: {count() if count else 1}")


KINDS = ("refused", "traceback", "broken promise", "unprintable", "hang", "crash")
KINDS += ("endless sentence", "accepted")


def serve_planted(*arguments):
    """Run `worker.serve` with one more campaign."""
    campaigns.CAMPAIGNS |= {"planted": Planted, "threads": Threads}
    worker.serve(*arguments)


def test_every_kind_of_finding_is_told_apart_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(runner.worker, "serve", serve_planted)
    monkeypatch.setattr(runner, "HANG", 1.0)
    monkeypatch.setattr(runner, "load_per_core", lambda: 3.0)
    session = runner.Session(["planted"], 3, tmp_path, tmp_path / "findings")
    cases: dict[int, int] = {}  # way to the number of a case that goes it
    for case in range(100):
        cases.setdefault(worker.random_of(3, "planted", case).randrange(8), case)
    for case in cases.values():
        session.run_case("planted", case)
    session.workers["planted"].stop()
    assert dict(session.counts["planted"].kinds) == dict.fromkeys(KINDS, 1)
    assert session.found == 6
    found = {
        folder.name: (folder / "report.txt").read_text().splitlines()
        for folder in (tmp_path / "findings").iterdir()
    }
    assert len(found) == 6
    report = found[f"planted-3-{cases[1]}"]
    assert report[0].startswith("traceback: ValueError")
    assert report[1] == f"python -m fuzz --campaign planted --seed 3 --case {cases[1]}"
    assert "| planted | 8 | 1 | 1 | 2 | 1 | 3 |" in session.table()


def test_a_reader_computes_with_one_thread_from_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(runner.worker, "serve", serve_planted)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    process = runner.WorkerProcess("threads", 1, tmp_path)
    assert process.run(1).detail == "threads: 1"
    process.stop()


def test_a_seed_gives_the_same_mutations_again():
    value = {"a": [1, 2.5, "text", None], "b": {"c": True}}

    def draw(seed: int) -> list[object]:
        mutate = Mutator(random.Random(seed))
        values = [to_json(mutate.value(value)) for _ in range(50)]
        return values + [mutate.bytes(b"0123456789" * 9) for _ in range(50)]

    assert draw(1) == draw(1) != draw(2)


def test_mutations_change_and_leave_the_original_alone():
    mutate = Mutator(random.Random(1))
    value = {"a": [1, 2.5, "text", None], "b": {"c": True}}
    whole = to_json(value)
    changed = [to_json(mutate.value(value)) for _ in range(200)]
    assert sum(text != whole for text in changed) > 180
    assert to_json(value) == whole
    assert to_json([*SCALARS])


def test_every_subcommand_is_tried_or_named():
    known = set(dict(stages(build_parser())))
    assert {("pretrain",), ("gutenberg", "fetch"), ("chat",), ("report",)} <= known


def test_no_case_reaches_another_machine():
    with pytest.raises(OSError, match="no other machine"):
        worker.refuse_other_machines("socket.connect", (None, ("192.0.2.1", 80)))
    worker.refuse_other_machines("socket.connect", (None, ("127.0.0.1", 80)))
