"""README's order of reading is true: it is as short as it says, and explains every op it meets."""

import re
from pathlib import Path

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.primitives import Primitives

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 2_500
LATER = {"working_copy", "refresh", "check_form", "head_logits"}
"""What the text calls and need not be known for a step: other number formats, and decoding."""


def reading() -> dict[str, str]:
    """The files of the section, in their order, with their text."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Reading the code")[2].partition("Or learn it by doing")[0]
    paths = re.findall(r"\]\(([\w/]+\.py)\)", section)
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def test_it_is_read_in_an_hour():
    lines = sum(len(text.splitlines()) for text in reading().values())
    assert lines <= MOST_LINES, f"README promises {MOST_LINES:,} lines, the files have {lines:,}"


def test_every_op_is_explained_in_a_file_of_the_list():
    texts = list(reading().values())
    known = {name for name in vars(Primitives) | vars(Backend) if not name.startswith("_")}
    called = {
        name
        for text in texts
        for name in re.findall(r"\b(?:ops|backend)\.(\w+)\(", text)
        if name in known
    }
    defined = {name for text in texts for name in re.findall(r"^ +def (\w+)\(", text, re.M)}
    assert {"euler_step", "attention_backward", "embedding"} <= called
    assert called - defined <= LATER


def test_what_a_file_uses_was_read_before_it():
    """Of the files that have the computation; records and layouts need no reading."""
    paths = list(reading())
    modules = [path.removesuffix(".py").replace("/", ".") for path in paths]
    for index, (path, text) in enumerate(reading().items()):
        imported = set(re.findall(r"^from (nanoeuler[\w.]+) import", text, re.M))
        if index:  # the first one has everything in little
            assert not imported & set(modules[index:]) - {"nanoeuler.backend.ops"}, path
