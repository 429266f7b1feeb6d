"""Checkpoints share their folder with other people's files, and with what kills have left."""

import socket

import pytest

from nanoeuler.training.checkpoint import OPTIMIZER, STATE, WEIGHTS, Checkpoints


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    for name in ("step-00000010", "step-00000020", "step-00000030", "step-123456789"):
        (tmp_path / name).mkdir()
        for file in (WEIGHTS, OPTIMIZER, STATE):
            (tmp_path / name / file).write_text("")
    return Checkpoints(tmp_path)


def test_folders_that_are_named_otherwise_are_left_alone(checkpoints):
    others = ("step-abc", "step-", "step-9", "step-00000040.bak", "step-0000001٣")
    for name in others:
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "mine.txt").write_text("hi")
    (checkpoints.folder / "step-00000099").write_text("a file")
    assert checkpoints.steps() == [10, 20, 30, 123456789]
    assert checkpoints.newest() is None  # all are damaged, which is told
    checkpoints.remove_after(10)
    checkpoints.set_aside("0123456789")
    assert all((checkpoints.folder / name / "mine.txt").exists() for name in others)


def test_a_checkpoint_is_deleted_without_what_others_put_into_it(checkpoints):
    (checkpoints.path(10) / "notes.txt").write_text("hi")
    checkpoints.remove_all_but({30})
    assert [path.name for path in checkpoints.path(10).iterdir()] == ["notes.txt"]
    assert not checkpoints.path(20).exists()
    assert checkpoints.path(30).exists()


def test_what_a_killed_trainer_left_is_swept(checkpoints):
    left = checkpoints.folder / f".step-00000040.{socket.gethostname()}.0123abcd.part"
    left.mkdir()
    (left / WEIGHTS).write_text("half")
    checkpoints.sweep()
    assert not left.exists()
    assert len(checkpoints.steps()) == 4
