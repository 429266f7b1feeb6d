"""Local files, files without a known hash, and addresses."""

import hashlib
import json
import urllib.parse
from pathlib import Path

import pytest
from downloads import CONTENT, QUICK, SHA256

from nanoeuler.corpus.addresses import resolve
from nanoeuler.corpus.download import SourceFile, download, local_copy
from nanoeuler.errors import UserError


def test_local_files_are_copied_or_used_in_place(tmp_path, target):
    file = tmp_path / "ein Text.txt"
    file.write_bytes(CONTENT)
    for url in (
        str(file),
        "file://" + urllib.parse.quote(str(file)),
        "file://localhost" + urllib.parse.quote(str(file)),
    ):
        download(SourceFile(url, sha256=SHA256), target)
        assert target.read_bytes() == CONTENT
        with local_copy(SourceFile(url), tmp_path / "made") as found:
            assert found.path == file
    assert file.exists()
    with pytest.raises(UserError, match=r"nowhere\.txt: no such file"):
        download(SourceFile(str(tmp_path / "nowhere.txt")), target)
    with pytest.raises(UserError, match="has 640,000 bytes"):
        download(SourceFile(str(file), bytes=1), target)
    with (
        pytest.raises(UserError, match="SHA-256"),
        local_copy(SourceFile(str(file), sha256="0" * 64), tmp_path / "made"),
    ):
        pass


def test_a_remote_file_is_removed_after_use(server, address, tmp_path):
    with local_copy(SourceFile(address, sha256=SHA256), tmp_path / "made", QUICK) as found:
        assert found.path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_without_a_known_hash_the_next_download_must_be_the_file_of_the_first(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    commit = "0123456789" * 4
    source = SourceFile("hf://datasets/o/n/pairs.json", commit)
    server.put("datasets/o/n/pairs.json", b"<html>")
    with pytest.raises(UserError, match="no records"), local_copy(source, tmp_path / "made", QUICK):
        raise UserError("no records")
    assert list(tmp_path.iterdir()) == []  # a page in the file's place is not taken for it
    server.put("datasets/o/n/pairs.json", b"first")
    for _ in range(2):
        with local_copy(source, tmp_path / "made", QUICK) as found:
            assert (found.path.read_bytes(), found.revision) == (b"first", commit)
    server.put("datasets/o/n/pairs.json", b"other")
    other = hashlib.sha256(b"other").hexdigest()
    with (
        pytest.raises(UserError, match=rf"another file than on 2.*add 'sha256: {other}' to its"),
        local_copy(source, tmp_path / "made", QUICK),
    ):
        pass
    known = SourceFile(source.url, commit, sha256=other)
    with local_copy(known, tmp_path / "made", QUICK) as found:
        assert found.path.read_bytes() == b"other"
    assert [path.name for path in tmp_path.iterdir()] == ["made.first.json"]


def test_the_commit_that_a_server_names_is_noted(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.commit = "fedcba9876" * 4
    server.put("datasets/o/n/pairs.json", b"first")
    with local_copy(SourceFile("hf://datasets/o/n/pairs.json"), tmp_path / "made", QUICK) as found:
        assert found.revision == server.commit
    (noted,) = json.loads((tmp_path / "made.first.json").read_text()).values()
    assert noted["revision"] == server.commit
    assert noted["sha256"] == hashlib.sha256(b"first").hexdigest()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "hf://datasets/o/n/a/b.parquet",
            "https://huggingface.co/datasets/o/n/resolve/rev/a/b.parquet",
        ),
        (
            "hf://datasets/o/n@v1.0/b.parquet",
            "https://huggingface.co/datasets/o/n/resolve/v1.0/b.parquet",
        ),
        ("https://host/ä b%20c?d=1", "https://host/%C3%A4%20b%20c?d=1"),
        ("data/x.parquet", Path("data/x.parquet")),
    ],
)
def test_addresses(url, expected, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert resolve(url, "rev") == expected


@pytest.mark.parametrize(
    "url",
    [
        "hf://models/o/n/x",
        "hf://datasets/o/n",
        "hf://datasets/o//x",
        "s3://bucket/x",
        "file://host/x",
        "file:x://",
        "http:///x",
        "http://[::1/x",
    ],
)
def test_addresses_that_cannot_be_read_are_refused(url):
    with pytest.raises(UserError, match="; "):
        resolve(url)
