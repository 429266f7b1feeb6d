"""Compiled functions: the cache on disk and what is said."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from nanoeuler.compiling import compiled
from callee import double

@compiled()
def twice(x):
    return double(x) + 1
"""
CALLEE = """
from nanoeuler.compiling import compiled

@compiled()
def double(x):
    return {factor} * x
"""
MAIN = "from nanoeuler import log\nlog.start()\nfrom caller import twice\nprint(twice(5))\n"


def run(
    folder: Path, largest_file: int = resource.RLIM_INFINITY, **environment: str
) -> tuple[str, str]:
    checkout = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{checkout}", "PATH": "/usr/bin:/bin", **environment},
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY)
        ),
        capture_output=True,
        text=True,
        check=True,
    )
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
    # of another length: Python itself compares seconds and sizes
    (folder / "callee.py").write_text(CALLEE.format(factor=12))
    result, said = run(folder)
    assert result == "61"
    assert "compiling" in said


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 0.5, 0.99])
def test_machine_code_that_was_cut_off_is_compiled_anew(folder, kind, left):
    run(folder)
    for path in folder.rglob(f"*.{kind}"):
        content = path.read_bytes()
        path.write_bytes(content[: int(left * len(content))])
    result, said = run(folder)
    assert result == "11"
    assert said.count("compiling") == 1
    assert run(folder) == ("11", "")


def test_a_disk_that_is_full_costs_the_machine_code_and_not_the_run(folder):
    result, said = run(folder, largest_file=100)
    assert result == "11"
    assert said.count("cannot be kept") == 1
    assert not [*folder.rglob("*.nb?")]


def test_where_no_folder_can_be_written_every_run_compiles_and_says_why(folder):
    (folder / "__pycache__").write_text("a file is in the way")
    result, said = run(folder, XDG_CACHE_HOME="/dev/null/cache")
    assert result == "11"
    assert said.count("cannot be kept") == 1
    assert "NUMBA_CACHE_DIR" in said
