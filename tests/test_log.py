import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from nanoeuler import log
from nanoeuler.log import counted, printable

CHECKOUT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "0 pairs"),
        (1, "1 pair"),
        (2, "2 pairs"),
        (12345, "12,345 pairs"),
        (1.0, "1 pair"),
        (0.5, "0.5 pairs"),
        (2.25, "2.25 pairs"),
    ],
)
def test_one_thing_is_told_in_the_singular(number, told):
    assert counted(number, "pair") == told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("é… 漢字 👩\u200d🔬 שלום", "é… 漢字 👩\u200d🔬 שלום"),
        ("\x1b[2J\x07\r\x00\x7f", r"\x1b[2J\x07\r\x00\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u202etxt.exe\u2066\u200f", r"\u202etxt.exe\u2066\u200f"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown


def test_no_escape_sequence_reaches_the_log(tmp_path: Path, capsys):
    log.start(tmp_path / "stage.log")
    log.line("retry", "No\x1b]0;owned\x07", name="\u202e")
    expected = "retry name=\\u202e  No\\x1b]0;owned\\x07\n"
    assert capsys.readouterr().err == expected
    assert (tmp_path / "stage.log").read_text(encoding="utf-8") == expected


def test_an_attempt_leaves_the_lines_of_the_one_before(tmp_path: Path):
    for message in ("first", "second"):
        log.start(tmp_path / "stage.log")
        log.line("stage", message)
    before, attempt, now = (tmp_path / "stage.log").read_text(encoding="utf-8").splitlines()
    assert (before, now) == ("stage  first", "stage  second")
    assert attempt.startswith(f"{log.ATTEMPT}{os.getpid()}  began 20")


def test_on_a_terminal_a_line_takes_the_place_of_the_progress_line():
    """A real program at a terminal of 60 columns, which a progress line must not outgrow."""
    program = """
import time
from nanoeuler import log
log.start()
with log.Progress("train", 100, "steps") as progress:
    progress.shown -= 9  # as if seconds had passed
    progress.update(5, note="x" * 100)
    log.line("validation", step=5)
log.line("model", "is written")
"""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 60))
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, cwd=CHECKOUT)
    assert process.wait(30) == 0
    os.close(theirs)
    drawn = os.read(ours, 10_000).decode().split("\r\x1b[K")
    os.close(ours)
    assert drawn[0] == ""
    assert drawn[1].startswith("train   5%  ")
    assert len(drawn[1]) == 59
    assert drawn[2:] == ["validation step=5\r\n", drawn[1], "", "model  is written\r\n"]


def test_a_line_between_the_parts_of_a_reply_leaves_what_is_there():
    """As where machine code is compiled behind the first token."""
    program = """
from nanoeuler import log
log.start()
log.write("\\x1b[1mF")
log.write("\\x1b[0m")
log.line("compiling", "machine code")
log.write("ennick\\n")
log.line("generate", tokens=2)
"""
    ours, theirs = pty.openpty()
    at_terminal = {"stdout": theirs, "stderr": theirs}
    process = subprocess.Popen([sys.executable, "-c", program], **at_terminal, cwd=CHECKOUT)
    assert process.wait(30) == 0
    os.close(theirs)
    drawn = os.read(ours, 10_000).decode()
    os.close(ours)
    assert drawn == (
        "\x1b[1mF\x1b[0m\r\ncompiling  machine code\r\nennick\r\n\r\x1b[Kgenerate tokens=2\r\n"
    )


def test_progress_tells_the_time_left_of_the_stage_and_of_the_whole_run(capsys):
    log.start(whole_run=lambda tag, rate, left: left + 200.0)
    for columns in (False, True):
        with log.Progress("train", 4e6, "tokens") as progress:
            progress.reached.append((time.monotonic() - 100, 0.0))
            progress.done = 1e6
            if columns:
                parts = progress.parts(1e4, 300.0, 500.0, {"loss": 2.5, "mfu": "n/a"})
            else:
                progress.shown -= 100
                progress.update(0, loss=2.5)
    assert "  ".join(parts) == (
        "train  25%  5m00s left (8m20s of the whole run)  loss 2.5  1.00M of 4.00M tokens  "
        "10.00k tokens/s"
    )
    assert capsys.readouterr().err == (
        "train done=1_000_000tokens share=25% rate=1e+04tokens/s eta=5m00s "
        "eta_of_whole_run=8m20s loss=2.5\n"
    )


def test_the_rate_is_that_of_the_last_minute_without_what_compiles(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(log.time, "monotonic", lambda: now)
    log.start()
    with log.Progress("train", 1e5, "tokens") as progress:
        for seconds, amount in ((16, 100), *[(1, 1000)] * 30, *[(1, 500)] * 90):
            now += seconds
            progress.update(amount)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "train done=100tokens share=0% rate=6.25tokens/s"
    assert "rate=1000tokens/s eta=1m20s" in lines[1]
    assert "done=75_100tokens share=75% rate=500tokens/s eta=50s" in lines[-1]


@pytest.mark.parametrize("closed", ["a terminal", "a pipe"])
def test_what_a_closed_terminal_cannot_show_is_no_error(closed, tmp_path):
    """Lines, progress and `tell`: the program goes on, and its status is 0."""
    program = """
import sys
from nanoeuler import log
log.start(sys.argv[1])
with log.Progress("train", 100, "steps") as progress:
    sys.stdin.readline()
    for step in range(3):
        progress.shown -= 9
        progress.update(5)
        log.line("validation", step=step)
log.tell("done", sys.stdout)
"""
    ours, theirs = pty.openpty() if closed == "a terminal" else os.pipe()
    command = [sys.executable, "-c", program, str(tmp_path / "stage.log")]
    outputs = {"stdout": theirs, "stderr": theirs, "stdin": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=CHECKOUT, **outputs)
    os.close(theirs)
    os.close(ours)
    process.communicate(b"go on\n", timeout=30)
    assert process.returncode == 0
    logged = (tmp_path / "stage.log").read_text().splitlines()
    assert [line for line in logged if "validation" in line] == [
        f"validation step={step}" for step in range(3)
    ]
