"""What we use of Snakemake's inside is in one module, which says for which versions it holds."""

import re
from importlib import metadata

import pytest
from stub_checkout import ROOT

from nanoeuler.workflow.snakemake_internals import TRIED


@pytest.mark.parametrize("package", TRIED)
def test_it_holds_for_the_version_that_is_installed(package):
    installed = metadata.version(package)
    assert installed in TRIED[package], (
        f"nanoeuler/workflow/snakemake_internals.py was tried with {package} "
        f"{' and '.join(TRIED[package])}, and {installed} is installed: see that the names it uses "
        "mean the same there and that tests/workflow passes, then add the version to TRIED"
    )


def test_nothing_else_uses_them():
    names = set()
    for path in (ROOT / "workflow/Snakefile", *(ROOT / "workflow/rules").glob("*.smk")):
        names |= set(re.findall(r"(?<!nanoeuler\.)\bworkflow\.\w+", path.read_text()))
    assert names == {"workflow.snakefile"}  # public
    used = re.compile(r"^\s*(from|import) snakemake\b(?!\.cli)|\.dag\b|\"\.snakemake", re.MULTILINE)
    package = (ROOT / "nanoeuler").rglob("*.py")
    reading = {path.name for path in package if used.search(path.read_text())}
    assert reading == {"snakemake_internals.py"}
