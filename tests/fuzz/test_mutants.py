"""The list of planted mistakes fits the code, and the page has a result for each."""

import shutil
import subprocess
import sys

import pytest

from fuzz.mutants import MARKS, PAGE, ROOT, read_mutants

MUTANTS = {mutant.name: mutant for mutant in read_mutants()}


def test_there_are_sixty_and_more_in_either_engine_and_in_both():
    assert len(MUTANTS) == len(read_mutants()) >= 60
    wheres = [mutant.where for mutant in MUTANTS.values()]
    assert all(wheres.count(where) >= 15 for where in ("engine", "specification", "both"))


@pytest.fixture
def package(tmp_path):
    """A copy of what a mutant is planted in."""
    for name in ("nanoeuler", "tests", "fuzz", "config"):
        ignored = shutil.ignore_patterns("findings")
        shutil.copytree(ROOT / name, tmp_path / "base" / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "base")
    return tmp_path / "base"


def test_every_mistake_can_be_made_and_is_one_of_code(package):
    for mutant in MUTANTS.values():
        paths = {package / "nanoeuler" / change["file"] for change in mutant.changes}
        before = {path: path.read_text() for path in paths}
        mutant.apply(package)
        for path in paths:
            assert compile(path.read_text(), path, "exec")
            assert path.read_text() != before[path], mutant.name
            path.write_text(before[path])


def test_the_page_has_a_line_for_each_and_tests_that_catch_it():
    table = PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 5 and row[0] in MUTANTS}
    assert list(found) == list(MUTANTS)
    assert [where for where, *_ in found.values()] == [each.where for each in MUTANTS.values()]
    assert all(test == "yes" for *_, test in found.values())
    alone = [start for where, start, *_ in found.values() if where != "both"]
    assert alone.count("yes") >= 0.95 * len(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "caught"),
    [
        ("schedule: it ends at 0", ["both", "no", "no", "yes"]),
        ("AdamW: the embedding has no rate of its own", ["engine", "yes", "yes", "yes"]),
    ],
)
def test_a_mistake_is_judged_by_both_checks_and_by_its_tests(name, caught):
    """The same without the mistake has passed before."""
    command = [sys.executable, "-m", "fuzz.mutants", "--again", "--only"]
    done = subprocess.run([*command, name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("  ") for line in done.stdout.splitlines()]
    assert ["mutants 1", name, *caught] in [[each[0][:9], *each[1:]] for each in lines]
    assert "the tests catch" in done.stdout
