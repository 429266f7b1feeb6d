"""Hashes are compared, found once while a file stays the same, and never taken on trust."""

import json
import os
import time
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.storage import integrity
from nanoeuler.storage.files import sha256_file
from nanoeuler.storage.integrity import (
    HashedReading,
    Origin,
    check_file,
    check_note,
    check_seal,
    seal,
    write_note,
)

ORIGIN = Origin("`nanoeuler tokenize`", "delete it and run it again", "https://example.org/a")
LONG_AGO = 1_700_000_000


@pytest.fixture
def large(tmp_path, monkeypatch) -> Path:
    """A file whose hash is kept; it takes no room, as it is a hole."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "SETTLED_SECONDS", 0.0)
    path = tmp_path / "shard.bin"
    with open(path, "wb") as file:
        file.truncate(integrity.KEPT_BYTES)
    time.sleep(0.01)
    return path


def notes(tmp_path) -> list[Path]:
    return list((tmp_path / "cache" / "nanoeuler" / "sha256").glob("*"))


def forget() -> None:
    """As in another process."""
    integrity.remembered.cache_clear()


def test_another_file_is_refused_with_its_origin(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a")
    expected = check_file(path, None, ORIGIN)
    assert check_file(path, expected, ORIGIN) == expected == sha256_file(path)
    path.write_bytes(b"b")
    with pytest.raises(UserError) as caught:
        check_file(path, expected, ORIGIN)
    assert str(caught.value) == (
        f"{path}: its bytes are not those that `nanoeuler tokenize` wrote from "
        f"https://example.org/a (sha256 {sha256_file(path)[:12]}… now, {expected[:12]}… then); "
        "delete it and run it again"
    )
    for wrong in (5, [expected], expected[:-1]):
        with pytest.raises(UserError, match="not those"):
            check_file(path, wrong, ORIGIN)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.bin: no such file; delete it"):
        check_file(path, expected, ORIGIN)


def test_the_hash_of_a_large_file_is_found_once_by_all_processes(large, tmp_path):
    expected = sha256_file(large)
    assert check_file(large, expected, ORIGIN) == expected
    (note,) = notes(tmp_path)
    written = note.stat().st_mtime_ns
    forget()
    check_file(large, expected, ORIGIN)
    assert note.stat().st_mtime_ns == written


def test_a_file_is_compared_while_it_is_read_and_its_hash_is_kept(large, tmp_path):
    expected = sha256_file(large)
    half = bytes(integrity.KEPT_BYTES // 2)
    wrong = HashedReading(large, expected, ORIGIN)
    wrong.update(half + b"x")
    with pytest.raises(UserError, match=r"shard\.bin: its bytes are not those"):
        wrong.finish()
    assert not notes(tmp_path)
    reading = HashedReading(large, expected, ORIGIN)
    reading.update(half)
    reading.update(half)
    reading.finish()
    (note,) = notes(tmp_path)
    assert note.read_text() == expected
    assert HashedReading(large, expected, ORIGIN).hash is None  # known
    HashedReading(large, None, ORIGIN).finish()  # nothing to compare with
    with pytest.raises(UserError, match="not those"):
        HashedReading(large, "0" * 64, ORIGIN).finish()


def test_a_changed_file_is_read_again_whatever_its_time_of_change_says(large):
    expected = check_file(large, sha256_file(large), ORIGIN)
    status = large.stat()
    with open(large, "r+b") as file:
        file.write(b"x")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert large.stat().st_mtime_ns == status.st_mtime_ns
    with pytest.raises(UserError, match="not those"):
        check_file(large, expected, ORIGIN)


def test_a_damaged_or_old_note_of_a_hash_blames_no_file(large, tmp_path):
    expected = check_file(large, sha256_file(large), ORIGIN)
    (note,) = notes(tmp_path)
    for content in (b"0" * 64, b"", b"\xff\xfe"):
        note.write_bytes(content)
        forget()
        assert check_file(large, expected, ORIGIN) == expected
    note.write_text(expected)
    os.utime(note, (LONG_AGO, LONG_AGO))
    forget()
    check_file(large, expected, ORIGIN)
    assert note.stat().st_mtime > LONG_AGO


def test_without_a_folder_to_keep_hashes_in_files_are_compared_all_the_same(large, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    expected = sha256_file(large)
    assert check_file(large, expected, ORIGIN) == expected


def test_a_seal_survives_json_and_shows_every_change(tmp_path):
    content = seal({"step": 90, "rate": 0.1, "none": None, "pair": (1, 2), "names": {3: "x"}})
    path = tmp_path / "state.json"
    path.write_text(json.dumps(content, indent=2))
    check_seal(path, json.loads(path.read_text()), ORIGIN)
    for key in content:
        changed = json.loads(path.read_text()) | {key: 91}
        with pytest.raises(UserError, match=r"state\.json: its bytes are not those"):
            check_seal(path, changed, ORIGIN)
    with pytest.raises(UserError, match="none noted"):
        check_seal(path, {"step": 90}, ORIGIN)


def test_a_note_beside_a_file_is_that_of_sha256sum(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    check_note(path, ORIGIN)
    write_note(path)
    assert (tmp_path / "tokenizer.json.sha256").read_text() == (
        f"{sha256_file(path)}  tokenizer.json\n"
    )
    check_note(path, ORIGIN)
    path.write_text("[]")
    with pytest.raises(UserError, match="not those"):
        check_note(path, ORIGIN)
