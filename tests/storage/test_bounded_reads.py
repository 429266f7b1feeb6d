"""No file is read whole without a ceiling: `files.read_bounded` and its like have one."""

import ast
from pathlib import Path

import pytest
from checkouts import ROOT

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_bounded, read_lines, read_text

PACKAGE = ROOT / "nanoeuler"
OURS = {
    "backend/cuda/kernels.py": "kernels of the package",
    "backend/webgpu/kernel_sources.py": "kernels of the package",
    "system/compiling.py": "modules of the package, and machine code that this user's Numba wrote",
    "browser/packing.py": "scripts of the package",
    "config/rules.py": "modules of the package",
    "corpus/document_sources.py": "own texts, in batches of a bounded size",
    "evaluation/report/rendering.py": "scripts of the package",
    "lessons/training_page.py": "the page of the package",
    "lessons/verdict.py": "the bank of mistakes of the package",
    "shipped.py": "tables of the package",
    "tokenizer/scanner.py": "tables of the package",
    "system/machine.py": "/proc and control groups",
    "system/processes.py": "/proc",
    "serving/app.py": "the page of the package",
    "storage/timing.py": "/proc",
    "training/check_form.py": "modules of the package",
}
"""Modules that read files whole which nobody else writes, and what these are."""
LINES = {
    "corpus/contamination.py": "evaluation sets, which this project wrote",
    "inference/terminal.py": "the user's own messages",
    "system/provenance.py": "/proc",
}
"""Modules that go through the lines of an open file."""


def unbounded(tree):
    """The line numbers of calls that read a file to its end, however long it is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        module = owner.id if isinstance(owner, ast.Name) else None
        reads_file = name in ("read_text", "read_bytes") and module not in imported(tree)
        reads_rest = name in ("read", "readlines", "readline", "readall") and not node.args
        loads = name in ("load", "safe_load") and module in ("json", "yaml", "tomllib", "pickle")
        loads = loads and bool(node.args) and is_file(node.args[0], tree)
        if reads_file or (reads_rest and is_file(owner, tree)) or loads:
            yield node.lineno


def is_file(owner, tree):
    """Is it, or may it be, an open file?"""
    if isinstance(owner, ast.Name):
        return owner.id in opened(tree)
    return isinstance(owner, ast.Call) and called(owner) in ("open", "fdopen", "urlopen", "Popen")


def imported(tree):
    """The names of modules that a module imports from packages."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = {alias.asname or alias.name for node in found for alias in node.names}
    return {name for name in names if name.islower()}


def opened(tree):
    """The names that hold an open file anywhere in a module."""
    found = {"file", "stdin", "notes", "stream", "raw"}
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            call = node.context_expr
            if isinstance(call, ast.Call) and called(call) in ("open", "fdopen"):
                found.add(node.optional_vars.id)
    return found


def called(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def over_lines(tree):
    """The line numbers of loops over the lines of an open file, which may have no end."""
    names = opened(tree)
    for node in ast.walk(tree):
        loops = isinstance(node, ast.For | ast.comprehension)
        if loops and isinstance(node.iter, ast.Name) and node.iter.id in names:
            yield node.iter.lineno


@pytest.mark.parametrize(("find", "known"), [(unbounded, OURS), (over_lines, LINES)])
def test_what_is_read_has_a_ceiling(find, known):
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        lines = list(find(ast.parse(path.read_text(encoding="utf-8"))))
        if lines and name not in known:
            found[name] = lines
    assert not found, (
        "read these with read_bounded, read_text or read_lines of nanoeuler.storage.files"
    )


@pytest.mark.parametrize(("find", "known"), [(unbounded, OURS), (over_lines, LINES)])
def test_no_exception_is_left_over(find, known):
    def reads(name):
        return list(find(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))))

    assert not [name for name in known if not (PACKAGE / name).is_file() or not reads(name)]


@pytest.mark.parametrize("reads", [read_bounded, read_text, lambda *given: [*read_lines(*given)]])
@pytest.mark.parametrize("endless", [True, False])
def test_a_larger_file_is_one_sentence(tmp_path, reads, endless):
    path = Path("/dev/zero")
    if not endless:
        path = tmp_path / "large"
        with open(path, "wb") as file:
            file.truncate(10**12)  # takes no room
    with pytest.raises(UserError, match=r"more than 2 MB, too much for such a file"):
        reads(path, 2_000_000)


def test_what_fits_is_read_to_the_end(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("é\nb".encode())
    assert read_bounded(path, 4) == "é\nb".encode()
    assert read_text(path, 4) == "é\nb"
    assert [*read_lines(path, 3)] == ["é\n".encode(), b"b"]
    with pytest.raises(UserError, match="text: more than 3 bytes, too much for such a file"):
        read_bounded(path, 3)
