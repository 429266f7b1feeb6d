"""Lines fit beside each other on a screen: at most 100 columns in all files that people read.

The kept report of a run is read in a browser, and has numbers in lines as long as they come. The
names of tests in docs/your-data.md are for programs, and a row of a table is one line.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = (
    "*.cu",
    "*.wgsl",
    "*.cuh",
    "*.css",
    "*.html",
    "*.js",
    "*.md",
    "*.smk",
    "*.toml",
    "*.yaml",
    "Makefile",
)
FOLDERS = (".", "benchmarks", "config", "docs", "nanoeuler", "profiles", "workflow")
REPORTS = ROOT / "docs" / "runs"
COLUMNS = 100
NAMES_OF_TESTS = re.compile(r" (`[\w/]+\.py::test_\w+`,? )+\|$")


@pytest.mark.parametrize("kind", KINDS)
def test_no_line_is_longer_than_100_columns(kind):
    """Python files are the linter's."""
    too_long = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in FOLDERS
        for path in (ROOT.glob(kind) if folder == "." else (ROOT / folder).rglob(kind))
        if not (kind == "*.html" and path.parent == REPORTS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(NAMES_OF_TESTS.sub("", line)) > COLUMNS
    ]
    assert too_long == []
