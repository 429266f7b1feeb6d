"""Pages: their links lead somewhere, and what is made by a script is as it makes it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".", "config", "fuzz")
PAGES = [page for each in FOLDERS for page in (ROOT / each).glob("*.md")]
PAGES += (ROOT / "docs").rglob("*.md")
LINK = re.compile(r"\]\(\s*([^)\s]+)\)")
BLOCKS = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\bdocs/[\w/-]+\.md\b")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    kept = ["".join(char for char in each if char.isalnum() or char in " -_") for each in plain]
    return {each.strip().replace(" ", "-") for each in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page):
    for link in LINK.findall(BLOCKS.sub("", page.read_text("utf-8"))):
        if re.match("https?:", link):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or target.suffix != ".md" or heading in anchors(target), link


def test_pages_that_code_and_configurations_name_are_there():
    files = [
        path
        for folder in ("nanoeuler", "benchmarks", "config", "fuzz", "workflow", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cu", ".cuh", ".yaml", ".smk", ".toml")
        or path.name == "Snakefile"
    ]
    named = {name for path in files for name in NAMED.findall(path.read_text("utf-8"))}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_page_of_rooms_is_what_the_imports_make_of_it():
    """If not: python scripts/architecture.py > docs/architecture.md."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/architecture.py"], capture_output=True, check=True
    )
    assert made.stdout.decode() == (ROOT / "docs/architecture.md").read_text("utf-8")
