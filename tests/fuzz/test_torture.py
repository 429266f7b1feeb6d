"""The torture tells equal weights from others; the full disk fails each operation once."""

import random
import subprocess
import sys

import pytest

from fuzz import full_disk, material, targets
from fuzz.material import ROOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return material.make(tmp_path_factory.mktemp("whole"), ["pretrain"])


def test_a_killed_trainer_ends_with_equal_weights_and_another_result_is_seen(whole, tmp_path):
    trainer = targets.Trainer("pretrain", whole, tmp_path / "killed", random.Random(1))
    counts = targets.Counts("trainer", "pretrain")
    trainer.run(counts, 1)
    assert (counts.runs, counts.equal, counts.starts) == (1, 1, 2)
    trainer.expected = {}
    with pytest.raises(targets.Failed, match="the weights differ"):
        trainer.run(counts, 0)


def test_a_killed_rank_ends_the_others_and_the_run_ends_with_equal_weights(whole, tmp_path):
    trainer = targets.SharedTrainer(whole, tmp_path / "killed", random.Random(3))
    counts = targets.Counts("rank", "pretrain")
    trainer.run(counts, 2)
    assert (counts.runs, counts.equal, counts.starts) == (1, 1, 3)


def test_each_operation_of_a_stage_fails_once():
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.full_disk", "--stage", "instructions"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    [row] = [
        line for line in done.stdout.splitlines() if line.startswith("| instructions | ENOSPC")
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    operations, refused, unharmed, tracebacks, half, equal = map(int, cells[2:8])
    assert operations > 10
    assert refused + unharmed == equal == operations, done.stdout
    assert (tracebacks, half) == (0, 0)


def test_half_a_file_is_no_whole_one():
    whole = {"/x/model/config.json": b'{"a": 1, "b": [2]}', "/x/model/weights": b"1234"}
    assert full_disk.is_whole("/x/model/weights", b"1234", whole)
    assert not full_disk.is_whole("/x/model/weights", b"12", whole)
    assert full_disk.is_whole("/x/model/config.json", b'{"a": 7, "b": [9]}', whole)
    assert not full_disk.is_whole("/x/model/config.json", b'{"a": 7', whole)
    assert not full_disk.is_whole("/x/model/other", b"", whole)
