"""Another user of the machine is told in a sentence where nothing can be written."""

import contextlib
import os
import shutil
import stat
from pathlib import Path

import pytest
from checkouts import ROOT

from nanoeuler.storage.files import sha256_file

NOBODY = 65534
MODEL = ROOT / "models" / "stories"


@contextlib.contextmanager
def second_user(folder):
    """This process may read `folder` and not write to it: as another user, or by its modes."""
    user = os.geteuid()
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if user == 0:  # whom modes do not bind
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


@pytest.mark.parametrize(
    "arguments",
    [
        ("accept", "model"),
        ("export", "model", "--format", "hf", "--output", "out"),
        ("refine", "model", "--output", "out"),
    ],
)
def test_where_nothing_can_be_written_a_sentence_says_so(tmp_path, monkeypatch, command, arguments):
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o055)  # pytest's are private
    for folder in ("own", "theirs"):
        shutil.copytree(MODEL, tmp_path / folder / "model")
    monkeypatch.chdir(tmp_path / "own")
    assert command(*arguments)[0] == 0  # loads what a second user may not be able to read
    monkeypatch.chdir(tmp_path / "theirs")
    with second_user(tmp_path / "theirs"):
        status, _, said = command(*arguments)
    assert status == 1
    *_, sentence = said.strip().splitlines()
    assert sentence.startswith("error  ")
    assert "no permission there" in sentence
    assert "Traceback" not in said
    written = [path.name for path in Path().rglob("*") if path.is_file()]
    assert sorted(written) == sorted(path.name for path in MODEL.iterdir())
    assert sha256_file("model/model.safetensors") == sha256_file(MODEL / "model.safetensors")
