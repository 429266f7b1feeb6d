import json
import subprocess
from pathlib import Path

import pytest

from nanoeuler.system import provenance


@pytest.fixture(autouse=True)
def _fresh():
    provenance.checkout.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_provenance_is_plain_json_and_names_code_software_and_machine():
    collected = provenance.collect()
    assert json.loads(json.dumps(collected)) == collected
    assert {
        "nanoeuler",
        "commit",
        "dirty",
        "date",
        "python",
        "packages",
        "platform",
        "cpu",
        "cores",
        "device",
    } <= set(collected)
    assert "numpy" in collected["packages"]
    assert collected["cores"] >= 1
    assert provenance.collect("NVIDIA H200")["device"] == "NVIDIA H200"


def test_a_checkout_is_dirty_once_a_tracked_file_changes(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "untracked").write_text("data")
    assert provenance.checkout(tmp_path) == {
        "commit": git(tmp_path, "rev-parse", "HEAD"),
        "dirty": False,
    }
    provenance.checkout.cache_clear()
    (tmp_path / "file").write_text("two")
    assert provenance.checkout(tmp_path)["dirty"] is True


def test_without_a_checkout_or_a_commit_there_is_none(tmp_path):
    assert provenance.checkout(tmp_path / "plain") == {"commit": None, "dirty": None}
    git(tmp_path, "init")
    assert provenance.checkout(tmp_path) == {"commit": None, "dirty": None}


def test_without_git_installed_commit_is_none(tmp_path, monkeypatch):
    git(tmp_path, "init")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.checkout(tmp_path) == {"commit": None, "dirty": None}
