"""A file or terminal that takes no output gets one sentence or none, and never a traceback."""

import os
import resource
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path

import duckdb
import pytest

from nanoeuler import cli
from nanoeuler.cli.completion import commands
from nanoeuler.errors import UserError
from nanoeuler.storage.temporary import temporary_beside
from nanoeuler.training.lock import FolderLock

CHECK = ["-m", "nanoeuler", "check", "--quick"]
FULL = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full to stand for a full disk"
)


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    checkout = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(checkout)} | variables
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("resumes", [False, True])
def test_ctrl_c_ends_a_query_of_duckdb_as_everything_else(capsys, resumes):
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    long = "select sum(a.range * b.range) from range(1000000) a, range(200) b"
    asked = {"stage": "train", "handler": lambda _: duckdb.connect().execute(long)}
    assert cli.run(Namespace(**asked, resumes=resumes)) == 130
    again = "  run the same command again to go on" if resumes else ""
    assert capsys.readouterr().err == f"interrupted{again}\n"


def test_only_commands_that_resume_say_so_after_ctrl_c():
    parsers = dict(commands(cli.build_parser()))
    resuming = {name for name, parser in parsers.items() if parser.get_default("resumes")}
    trained = {"train", "run", "experiment", "without", "pretrain", "sft", "dpo", "rl"}
    fetched = {"gutenberg fetch", "fineweb", "documents", "instructions", "preferences"}
    assert resuming == trained | fetched | {"problems", "questions", "task"}


@pytest.mark.parametrize("option", ["--log", "--output"])
@pytest.mark.parametrize("path", [".", "file/inside", "folder"])
def test_a_path_that_cannot_be_a_file_gets_one_sentence_with_its_name(tmp_path, option, path):
    """Before the work: the configuration does not exist, and work would end in that sentence."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    done = run(*CHECK, "--config", "missing.yaml", option, path, folder=tmp_path)
    assert done.returncode == 1
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert f"{path}: " in sentence
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("nanoeuler.cli", -signal.SIGINT, ""),
        ("nanoeuler.planning.remaining", -signal.SIGINT, ""),
        ("nanoeuler.inference.finding", 130, "interrupted\n"),
    ],
)
def test_ctrl_c_before_a_command_begins_leaves_no_traceback(tmp_path, place, status, said):
    """It comes while a module is imported; the last one is imported by the command itself."""
    program = f"""
import os, signal, sys
class Key:
    def find_spec(self, name, *_):
        if name == {place!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Key())
from nanoeuler.__main__ import main
sys.exit(main())
"""
    done = run("-c", program, "info", "nowhere", folder=tmp_path)
    assert (done.returncode, done.stderr) == (status, said)


@FULL
def test_a_log_on_a_full_disk_leaves_the_story_on_standard_error(tmp_path):
    for name in ("x.log", "x.times.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    done = run(*CHECK, "--log", "x.log", folder=tmp_path)
    assert done.returncode == 0  # the work is done
    assert "every gradient agrees" in done.stderr
    assert done.stderr.count("x.log: lacks lines from here on ([Errno 28] No space left") == 1
    assert "x.times.jsonl: the time was not recorded (No space left" in done.stderr
    assert "Traceback" not in done.stderr


@FULL
def test_a_greeting_on_a_full_disk_ends_in_a_sentence(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nanoeuler"]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.split(";")[0]) == (1, "error  the disk is full")


def test_streams_that_were_closed_lead_nowhere_also_for_child_processes():
    program = """
import os, subprocess, sys
from nanoeuler.cli import main
main(["completion", "bash"])
places = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
os._exit(places != [0, 1, 2] or subprocess.call(["sh", "-c", "echo"]))
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(command).returncode == 0


def test_a_file_that_outgrows_the_disk_gets_one_sentence_in_any_stage(tmp_path):
    code = """
import resource, sys
from nanoeuler.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
sys.exit(main(sys.argv[1:]))
"""
    done = run("-c", code, *CHECK[2:], "--output", "x.json", folder=tmp_path)
    assert done.returncode == 1
    assert "x.json: the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(UserError, match=r"lock\.json: the disk is full"), FolderLock(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no folder like /proc here")
@pytest.mark.parametrize("folder", [False, True])
def test_a_place_where_nothing_can_be_made_is_refused(folder):
    message = "/proc: nothing can be made there; give another path"
    with pytest.raises(UserError, match=message), temporary_beside(Path("/proc/x"), folder):
        pass


def test_a_terminal_without_greek_gets_a_question_mark(tmp_path):
    done = run(
        "-m",
        "nanoeuler",
        "info",
        "--config",
        '{"model": {"preset": "small"}}',
        folder=tmp_path,
        PYTHONIOENCODING="latin-1",
    )
    assert done.returncode == 0
    assert "RoPE ? = 10,000" in done.stdout
