"""Outputs appear whole, replace only what we made, and killed writers leave nothing for long."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.storage import folders
from nanoeuler.storage.files import atomic_write, explain_os_errors, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours
from nanoeuler.storage.temporary import sweep
from tests.waiting import CEILING

DAY = 24 * 3600
WRITERS = {"atomic_write": atomic_write, "atomic_folder": atomic_folder}
WRITER = """
import sys, time
from nanoeuler.storage.files import atomic_write
from nanoeuler.storage.folders import atomic_folder

with {function}(sys.argv[1]) as output:
    print("writing", flush=True)
    time.sleep(60)
"""


def write_folder(path: Path, **contents: str) -> None:
    with atomic_folder(path) as folder:
        for name, text in contents.items():
            (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != folders.MARKER}


def started(function: str, path: Path) -> subprocess.Popen:
    """A process in the middle of writing `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER.format(function=function), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "writing\n"
    return process


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


# ---- files of other people


def test_a_folder_that_we_did_not_make_is_refused_and_untouched(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("hi")
    with pytest.raises(UserError, match="precious: holds files and was not made by nanoeuler"):
        write_folder(precious, new="text")
    assert contents(precious) == {"thesis.txt": "hi"}
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"model_type": "llama"}),
        ("manifest.json", {"version": 1, "files": []}),
        ("manifest.json", [1]),
        (folders.MARKER, "files"),
    ],
)
def test_a_manifest_of_another_program_does_not_make_a_folder_ours(tmp_path, name, content):
    (tmp_path / "theirs").mkdir()
    write_json(tmp_path / "theirs" / name, content)
    with pytest.raises(UserError, match="not made by nanoeuler"):
        write_folder(tmp_path / "theirs", new="text")


def test_files_that_appear_during_the_work_are_not_replaced(tmp_path):
    output = tmp_path / "output"
    writing = atomic_folder(output)
    writing.__enter__()
    output.mkdir()
    (output / "thesis.txt").write_text("hi")
    with pytest.raises(UserError, match="not made by nanoeuler"):
        writing.__exit__(None, None, None)
    assert contents(output) == {"thesis.txt": "hi"}


def test_a_folder_that_is_moved_during_the_work_is_not_made_again(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    writing = atomic_folder(place / "output")
    temporary = writing.__enter__()
    place.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="nothing can be made there"):
        write_json(temporary / "state.json", {})
    with pytest.raises(UserError, match="nothing can be made there"):
        writing.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    with pytest.raises(UserError):
        atomic_folder(place / "output", parents=False).__enter__()
    assert not place.exists()


def test_a_folder_of_ours_is_replaced_and_keeps_what_others_put_into_it(tmp_path):
    output = tmp_path / "output"
    output.mkdir()  # an empty folder is replaced, too
    write_folder(output, a="1", stale="of the first writer")
    (output / "notes").mkdir()
    (output / "notes/mine.txt").write_text("remember")
    (output / "link").symlink_to("nowhere")
    named = ("files", "sha256", "version")  # as keys of our own JSON are
    for name in named:
        (output / name).write_text("mine")
    write_folder(output, a="2")
    assert [(output / name).read_text() for name in named] == ["mine"] * 3
    assert (output / "a").read_text() == "2"
    assert (output / "notes/mine.txt").read_text() == "remember"
    assert (output / "link").is_symlink()
    assert not (output / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_a_file_the_working_folder_and_a_mounted_disk_are_no_folders_to_replace(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("hi")
    monkeypatch.chdir(tmp_path)
    for path, problem in (("file", "not a folder"), (".", "working folder"), ("/", "mounted disk")):
        with pytest.raises(UserError, match=f"{path}: .*{problem}"):
            write_folder(Path(path), new="text")
    assert (tmp_path / "file").read_text() == "hi"


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("tokenize", ["--corpus", "manifest.json", "--tokenizer", "tokenizer.json"]),
        ("instructions", ["--name", "records.jsonl"]),
        ("preferences", ["--name", "records.jsonl"]),
        ("task", ["--name", "piqa"]),
        ("sample", []),
    ],
)
def test_every_stage_refuses_before_it_works(tmp_path, stage, options):
    """The inputs that are named do not exist, so that working would end in another sentence."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("hi")
    config = {
        "tokenizer": {"vocab_size": 512, "sample_bytes": 1000},
        "sources": {
            **{kind: {"records.jsonl": {"url": "x"}} for kind in ("instructions", "preferences")},
            "tasks": {"piqa": {"url": "nowhere"}},
        },
    }
    command = [sys.executable, "-m", "nanoeuler", stage, "--config", json.dumps(config), *options]
    done = subprocess.run(
        [*command, "--output", "precious"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "error  precious: holds files and was not made by nanoeuler" in done.stderr
    assert contents(tmp_path / "precious") == {"thesis.txt": "hi"}


# ---- links, devices, modes


def test_a_link_leads_to_the_file_or_folder_that_is_replaced(tmp_path):
    disk = tmp_path / "other disk"
    disk.mkdir()
    write_folder(disk / "model", a="1")
    (disk / "report").write_text("old")
    for name in ("model", "report"):
        (tmp_path / name).symlink_to(disk / name)
    write_folder(tmp_path / "model", a="2")
    with atomic_write(tmp_path / "report") as file:
        file.write("new")
    assert (tmp_path / "model").is_symlink()
    assert (tmp_path / "report").is_symlink()
    assert contents(disk / "model") == {"a": "2"}
    assert (disk / "report").read_text() == "new"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_json(pipe, {"a": 1})
    assert json.loads(reader.communicate(timeout=CEILING)[0]) == {"a": 1}
    assert pipe.is_fifo()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_modes_of_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "model") as folder:
            os.close(os.open(folder / "weights", os.O_CREAT, 0o600))  # as safetensors does
        write_json(tmp_path / "file", {})
    finally:
        os.umask(before)
    assert (tmp_path / "model/weights").stat().st_mode & 0o777 == mode
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


# ---- one after the other


def test_there_is_a_folder_at_any_moment_while_it_is_replaced(tmp_path):
    output, end = tmp_path / "output", tmp_path / "end"
    write_folder(output, version="0")
    looking = (
        "import os, sys\n"
        "print('reading', flush=True)\n"
        "while not os.path.exists(sys.argv[2]): os.stat(sys.argv[1])"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", looking, str(output), str(end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout.readline() == "reading\n"
    for version in range(1, 60):
        write_folder(output, version=str(version))
    end.touch()
    _, said = reader.communicate(timeout=CEILING)
    assert reader.returncode == 0, said


def test_a_system_that_cannot_exchange_renames_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "RENAME_EXCHANGE", 1 << 20)  # a flag that no system knows
    write_folder(tmp_path / "output", a="1", b="1")
    write_folder(tmp_path / "output", a="2")
    assert contents(tmp_path / "output") == {"a": "2"}
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


# ---- what killed writers leave


@pytest.mark.parametrize("function", ["atomic_write", "atomic_folder"])
def test_the_next_writer_removes_what_a_killed_one_left_but_not_what_a_living_one_writes(
    tmp_path, function
):
    output = tmp_path / "output"
    killed, living = started(function, output), started(function, output)
    assert len(list(tmp_path.iterdir())) == 2
    kill(killed)
    with WRITERS[function](output):
        pass
    [left] = [path for path in tmp_path.iterdir() if path != output]
    kill(living)
    sweep(tmp_path, "output")
    assert not left.exists()
    assert output.exists()


@pytest.mark.parametrize(
    ("name", "age", "stays"),
    [
        (".step-1.elsewhere.0123abcd.part", 0, True),  # another host: perhaps at work
        (".step-1.elsewhere.0123abcd.part", 2 * DAY, False),
        (".step-1.4711.part", 2 * DAY, True),  # somebody else's
        (f".step-1.{socket.gethostname()}.0123abcd.part", 0, False),
        (".step-1.notes.part", 2 * DAY, True),
        (".other.elsewhere.0123abcd.part", 2 * DAY, True),  # of another output
    ],
)
def test_only_what_is_surely_abandoned_is_swept(tmp_path, name, age, stays):
    left = tmp_path / name
    left.mkdir()
    (left / "weights").write_text("half")
    for path in (left / "weights", left):
        os.utime(path, (time.time() - age,) * 2)
    sweep(tmp_path, "step-")
    assert left.exists() == stays


def test_a_folder_whose_manifest_snakemake_has_deleted_is_made_again(tmp_path):
    folder = tmp_path / "tokens"
    for content in ("one", "two"):
        with atomic_folder(folder) as temporary:
            (temporary / "train-books-000.bin").write_text(content)
            (temporary / "other.txt").write_text(content)
            write_json(temporary / "manifest.json", {"tokenizer": 1, "corpus": 1, "splits": 1})
        (folder / "manifest.json").unlink()
    assert (folder / "other.txt").read_text() == "two"
    (folder / "other.txt").unlink()
    (folder / ".nanoeuler").unlink()
    with pytest.raises(UserError, match="was not made by nanoeuler"):
        require_ours(folder)


def test_a_disk_that_can_only_be_read_is_not_one_without_permission(tmp_path):
    with (
        pytest.raises(UserError, match="x: the disk can only be read; choose another folder"),
        explain_os_errors(tmp_path / "x"),
    ):
        raise OSError(errno.EROFS, "Read-only file system")
