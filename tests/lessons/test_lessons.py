"""The lessons' commands and Python work as printed, in their order, and print what is promised.

All of them run in one copy of the checkout, since later lessons use what earlier ones made. A block
of Python whose first line names a function of this project is an excerpt of it; one that names
mine.py is what a learner wrote. `text` behind a block is its output: `…` stands
for lines or the end of a line, and numbers agree within 5 % or one unit of their last digit.
"""

import ast
import contextlib
import io
import math
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.checkouts import copy_checkout

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "lessons"
LESSONS = sorted(FOLDER.glob("[0-9]*.md"))
NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
TOLERANCE = 0.05


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("lessons") / "nanoeuler")


def blocks(lesson: Path) -> list[tuple[str, str, str]]:
    """(language, code, promised output) of each block."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", lesson.read_text("utf-8"), re.M | re.S)
    following = [*found[1:], ("", "")]
    return [
        (language, code, text if kind == "text" else "")
        for (language, code), (kind, text) in zip(found, following, strict=True)
        if language != "text"
    ]


def shell(command: str, checkout: Path) -> str:
    """What a command prints; a check may fail, for its output is promised."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # threads that wait for each other cost more
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "check --op" in command, f"{command}\n{said}"
    assert "Traceback" not in said
    return said


def execute(code: str, namespace: dict) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def alike(promised: str, said: str) -> bool:
    """Whether two lines have the same words and nearly the same numbers, up to a `…` at the end."""
    start = promised.removesuffix("…")
    wanted, found = (" ".join(NUMBER.sub("#", line).split()) for line in (start, said))
    if not (found.startswith(wanted) if start != promised else found == wanted):
        return False
    pairs = zip(NUMBER.findall(start), NUMBER.findall(said), strict=False)
    return all(near(*pair) for pair in pairs)


def near(promised: str, said: str) -> bool:
    first, second = (float(text.replace(",", "").replace("−", "-")) for text in (promised, said))
    mantissa, _, exponent = promised.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    whole = "." not in promised and "e" not in promised and abs(first) < 100
    slack = 0.0 if whole else 1.01 * unit
    return abs(first - second) <= max(slack, 0 if whole else TOLERANCE * abs(second)) or (
        math.isnan(first) and math.isnan(second)
    )


def check_output(promised: str, said: str) -> None:
    """Every promised line is printed, in this order; all lines are, but where `…` stands."""
    lines, gap = [line for line in said.splitlines() if line.strip()], False
    for line in promised.splitlines():
        if line.strip() in ("…", ""):
            gap = gap or line.strip() == "…"
            continue
        while lines and gap and not alike(line, lines[0]):
            lines.pop(0)
        assert lines, f"not printed: {line}\n{said}"
        assert alike(line, lines.pop(0)), f"promised: {line}\nprinted:\n{said}"
        gap = False
    assert gap or not lines, f"printed as well: {lines}"


def check_excerpt(code: str) -> None:
    """An excerpt is in the function that its first line names."""
    first, _, excerpt = code.partition("\n")
    path, _, name = first.removeprefix("# ").partition(": ")
    source = (ROOT / path).read_text("utf-8")
    (function,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    body = source.splitlines()[function.lineno - 1 : function.end_lineno]
    lines = textwrap.dedent(excerpt).strip().splitlines()
    indent = next(line for line in body if line.strip() == lines[0].strip())
    depth = " " * (len(indent) - len(indent.lstrip()))
    assert textwrap.indent("\n".join(lines), depth) in "\n".join(body), first


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_does_what_it_says(lesson, checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    namespace: dict = {}
    for language, code, promised in blocks(lesson):
        if language == "sh":
            said = shell(code, checkout)
        elif code.startswith("# nanoeuler/"):
            check_excerpt(code)
            continue
        elif code.startswith("# mine.py"):
            (checkout / "mine.py").write_text(code, encoding="utf-8")
            continue
        else:
            said = execute(code, namespace)
        if promised:
            check_output(promised, said)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_parts_and_an_op_to_write(lesson):
    text = lesson.read_text("utf-8")
    parts = ["## The idea", "## The code", "## The experiment", "## Exercises"]
    assert [line for line in text.splitlines() if line.startswith("## ")] == parts
    assert len(text.splitlines()) <= 150
    assert re.search(r"check --op \w+", text)
    assert f"]({lesson.name})" in (FOLDER / "README.md").read_text("utf-8")


def test_there_are_eleven():
    assert [lesson.name[:2] for lesson in LESSONS] == [f"{number:02}" for number in range(1, 12)]
