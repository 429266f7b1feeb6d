"""What the benchmarks take of the package is there: few of them run in tests."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkouts import ROOT

FILES = sorted((ROOT / "benchmarks").glob("*.py"))
WITHOUT_A_GPU = "nanoeuler.backend.cuda.", "nanoeuler.training.distributed.nccl"
"""Modules that need CuPy; their names are looked for in their text."""


def taken(file: Path) -> Iterator[tuple[str, str]]:
    """The module and the name of each thing of the package that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nanoeuler"):
            yield from ((str(node.module), each.name) for each in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_of_the_package_are_there(file):
    for module, name in taken(file):
        if module.startswith(WITHOUT_A_GPU):
            text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
            assert re.search(rf"\b{name}\b", text), f"{module}.{name}"
        elif not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
