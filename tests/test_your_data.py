"""docs/your-data.md: each row names tests, and these exist."""

import ast
import re

import pytest
from checkouts import ROOT

PAGE = (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "you bring" not in line]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_tests_that_exist(row):
    named = NAMED.findall(row.rsplit("|", 2)[1])
    assert named, "the last column names no test as `folder/test_file.py::test_name`"
    for file, test in named:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert test in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }, f"tests/{file} has no {test}"


def test_the_page_has_rows():
    assert ROWS
