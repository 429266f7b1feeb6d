"""Compiled functions: the cache on disk and what is said."""

import subprocess
import sys
from pathlib import Path

import pytest

CALLER = "from nanoeuler.compiling import compiled\nfrom callee import double\n\n\n@compiled()\ndef twice(x):\n    return double(x) + 1\n"
CALLEE = "from nanoeuler.compiling import compiled\n\n\n@compiled()\ndef double(x):\n    return {factor} * x\n"
MAIN = "from nanoeuler import log\nlog.start()\nfrom caller import twice\nprint(twice(5))\n"


def run(folder: Path) -> tuple[str, str]:
    checkout = Path(__file__).parents[1]
    command = [sys.executable, "-c", MAIN]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": f"{folder}:{checkout}", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=2))
    return tmp_path


def test_the_first_run_compiles_and_says_so_once(folder):
    result, said = run(folder)
    assert result == "11"
    assert said.count("compiling") == 1


def test_the_next_run_finds_the_machine_code_on_disk(folder):
    run(folder)
    assert run(folder) == ("11", "")


def test_a_change_in_a_function_called_from_another_file_is_noticed(folder):
    run(folder)
    (folder / "callee.py").write_text(CALLEE.format(factor=12))  # of another length: Python itself compares seconds and sizes
    result, said = run(folder)
    assert result == "61"
    assert "compiling" in said
