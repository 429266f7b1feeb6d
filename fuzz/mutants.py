"""`python -m fuzz.mutants`: which check and which test catches a planted mistake.

Each mistake of `mutants.toml` is a few changed characters of the package, made in a copy of it. A
forked process asks the check that a trainer makes at its start, then if need be the whole table of
`nanoeuler check`, and another runs the tests that the mistake names. Machine code is compiled again
only where a kernel, or one that it calls, has changed.

A change in one engine must be caught by the check at a start, 95 % of them at least, and every
change by a test: otherwise the exit status is 1.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numba  # noqa: F401 - so that processes which are forked need not load it
import numpy as np  # noqa: F401

ROOT = Path(__file__).parents[1]
COPIED = ("nanoeuler", "tests", "fuzz", "config", "pyproject.toml")
PAGE, RESULTS = ROOT / "fuzz/mutants.md", ROOT / "fuzz/findings/mutants.json"
MARKS = "<!-- mutants -->\n", "<!-- end of mutants -->\n"
SHARE_AT_START = 0.95
SECONDS = 600
FORMS: list[dict[str, Any]] = [
    {"preset": "small"},
    {
        "preset": "small",
        "head_size": 64,
        "kv_heads": 1,
        "ffn": 100,
        "tied": True,
        "qk_norm": "weighted",
        "step_size": 0.5,
    },
    {"preset": "gpt2-tiny", "step_size": 0.5, "mtp_heads": 2},
]
"""Models that a trainer may begin to train, so that every variant is in one of them."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: in each file the first `old` behind `at` becomes `new`."""

    name: str
    where: str  # engine, specification, or both: code that they share, or the same change in both
    changes: tuple[dict[str, str], ...]
    tests: tuple[str, ...]

    @property
    def has_derivatives(self) -> bool:
        """Is it in code that `nanoeuler check` compares with numerical derivatives?"""
        return any(change["file"].startswith(("backend/", "model/")) for change in self.changes)

    def apply(self, folder: Path) -> None:
        for change in self.changes:
            path = folder / "nanoeuler" / change["file"]
            text = path.read_text("utf-8")
            start = text.index(change["old"], text.index(change.get("at", "")))
            text = text[:start] + change["new"] + text[start + len(change["old"]) :]
            path.unlink()  # a link to the file of the unchanged copy
            path.write_text(text, "utf-8")


@dataclass
class Result:
    """By what a mistake was caught."""

    name: str
    where: str
    start: bool
    check: bool
    test: bool
    hash: str = field(default="")

    def row(self) -> list[str]:
        caught = (self.start, self.check, self.test)
        return [self.name, self.where, *("yes" if each else "no" for each in caught)]


def read_mutants() -> list[Mutant]:
    with (ROOT / "fuzz/mutants.toml").open("rb") as file:
        content = tomllib.load(file)
    groups = content["tests"]
    return [
        Mutant(
            entry["name"],
            entry["where"],
            tuple(entry.get("changes") or [entry]),
            tuple(name for group in entry["tests"] for name in groups.get(group, [group])),
        )
        for entry in content["mutant"]
    ]


def link_tree(source: Path, target: Path) -> None:
    """A copy that takes no room: what is changed in it has to be written anew."""
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=os.link)
        else:
            os.link(source / name, target / name)


# ---- in a forked process


def compile_by_module() -> None:
    """Compile again what a change reaches: a module and those that import it, not the whole folder.

    To be called before a function is decorated. The rest has been compiled in the checkout.
    """
    from nanoeuler.system.compiling import FolderStamp, folder_stamp

    checkout = ROOT / "nanoeuler/backend/cpu"

    @functools.cache
    def modules(path: Path) -> frozenset[Path]:
        """A module and those that it imports."""
        found = {path}
        imports = re.findall(
            r"from nanoeuler\.backend\.cpu(?:\.(\w+))? import (.*)", path.read_text()
        )
        for module, names in imports:
            for name in [module] if module else re.findall(r"\w+", names):
                if (other := path.with_name(f"{name}.py")).exists() and other not in found:
                    found |= modules(other)
        return frozenset(found)

    def stamp(self: FolderStamp) -> str:
        if Path(self._py_file).parent.name != checkout.name:
            return folder_stamp(Path(self._py_file).parent)
        paths = sorted(modules(Path(self._py_file)))
        content = [path.read_bytes() for path in paths]
        usual = folder_stamp(checkout)
        if content == [(checkout / path.name).read_bytes() for path in paths]:
            return usual
        return hashlib.sha256(b"\0".join([usual.encode(), *content])).hexdigest()

    FolderStamp.get_source_stamp = stamp  # type: ignore[method-assign]


def start_check(where: str = "both") -> bool:
    """Does the check at the start of a trainer find something wrong?

    That of a CPU's engine, and unless the mistake is there, that of the specification as an engine.
    """
    compile_by_module()
    from nanoeuler.backend.cpu.engine import CpuBackend
    from nanoeuler.backend.reference import ReferenceBackend
    from nanoeuler.model.checks.model_gradients import check_all
    from nanoeuler.model.config import ModelConfig
    from nanoeuler.training.check_form import check_form
    from nanoeuler.training.optimizer.adamw import AdamW
    from nanoeuler.training.optimizer.muon import Muon
    from nanoeuler.training.optimizer.optimizer import OptimizerSettings

    adamw = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0, embedding_rate=3.0)
    muon = Muon(0.95, adamw)
    optimizers: list[OptimizerSettings] = [adamw, muon, muon]
    if not all(row.passed for row in check_all(quick=True)):
        return True
    engines = [CpuBackend(2), *([] if where == "engine" else [ReferenceBackend()])]
    return not all(
        row.passed
        for engine in engines
        for fields, optimizer in zip(FORMS, optimizers, strict=True)
        for row in check_form(engine, ModelConfig.from_dict(fields), optimizer)
    )


def whole_check() -> bool:
    from nanoeuler.model.checks.model_gradients import check_all

    return not all(row.passed for row in check_all())


def tests_fail(nodes: Iterable[str]) -> bool:
    import pytest

    compile_by_module()
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *nodes]) != pytest.ExitCode.OK


def forked(folder: Path, work: Callable[..., bool], *arguments: Any) -> bool:
    """`work` in a process that has the package of `folder`. One that ends badly has found it."""

    def run() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        quiet = io.StringIO()
        try:
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                found = work(*arguments)
        except BaseException:  # a mistake may make anything of the code
            found = True
        os._exit(found)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode != 0


# ---- the campaign


def judge(mutant: Mutant, base: Path, mark: str) -> Result:
    with tempfile.TemporaryDirectory(prefix="nanoeuler-mutant-", dir=base.parent) as temporary:
        folder = Path(temporary)
        link_tree(base, folder)
        mutant.apply(folder)
        start = forked(folder, start_check, mutant.where)
        check = start or (mutant.has_derivatives and forked(folder, whole_check))
        test = forked(folder, tests_fail, mutant.tests)
        return Result(mutant.name, mutant.where, start, check, test, mark)


@functools.cache
def code_hash() -> str:
    """Of all that computes."""
    folders = (ROOT / "nanoeuler" / name for name in ("backend", "model", "training"))
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def hash_of(mutant: Mutant) -> str:
    """Of all that a result depends on."""
    files = sorted({ROOT / name.split("::")[0] for name in mutant.tests})
    tests = b"\0".join(path.read_bytes() for path in files)
    return hashlib.sha256(f"{code_hash()} {mutant}".encode() + tests).hexdigest()[:16]


def run(mutants: list[Mutant], again: bool) -> list[Result]:
    """The results of all mutants, of which those that are known are kept unless `again`."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for mutant in mutants if again else ():
        known.pop(mutant.name, None)
    with tempfile.TemporaryDirectory(prefix="nanoeuler-mutants-") as temporary:
        base = Path(temporary) / "base"
        base.mkdir()
        shutil.copytree(ROOT / "nanoeuler", base / "nanoeuler")
        for name in COPIED[1:]:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, base / name)
        missing = [
            each for each in mutants if known.get(each.name, {}).get("hash") != hash_of(each)
        ]
        if missing and forked(base, start_check):
            sys.exit("the package itself does not pass its check at a start")
        nodes = sorted({node for mutant in missing for node in mutant.tests})
        if missing and forked(base, tests_fail, nodes):
            sys.exit("the tests fail without a mistake")
        for number, mutant in enumerate(missing, start=1):
            result = judge(mutant, base, hash_of(mutant))
            known[mutant.name] = asdict(result)
            print(f"mutants {number}/{len(missing)}", *result.row(), sep="  ", flush=True)
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(known, indent=1))
    return [Result(**known[mutant.name]) for mutant in mutants]


def summary(results: list[Result]) -> tuple[str, bool]:
    """A sentence, and whether enough was caught."""
    alone = [each for each in results if each.where != "both"]
    started = sum(each.start for each in alone)
    shared = [each for each in results if each.where == "both"]
    tested = sum(each.test for each in results)
    said = (
        f"Of {len(results)} mistakes the tests catch {tested}.\nOf the {len(alone)} in one engine "
        f"the check at a start catches {started}, of the {len(shared)} in both "
        f"{sum(each.start for each in shared)}."
    )
    return said, tested == len(results) and started >= SHARE_AT_START * len(alone)


def write_table(results: list[Result]) -> None:
    """Replace the table in the page."""
    header = "mistake", "in", "start", "check", "tests"
    lines = [header, ("---",) * len(header), *(result.row() for result in results)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    said = f"{MARKS[0]}\n{summary(results)[0]}\n\n{table}\n{MARKS[1]}"
    PAGE.write_text(before + said + after, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="mistakes with it in their name")
    parser.add_argument("--again", action="store_true", help="also those whose result is known")
    parser.add_argument("--write", action="store_true", help="write the table into its page")
    options = parser.parse_args()
    results = run([each for each in read_mutants() if options.only in each.name], options.again)
    said, enough = summary(results)
    for result in results:
        if not result.test or not (result.start or result.where == "both"):
            print("missed ", *result.row(), sep="  ")
    print(said)
    if options.write and not options.only:
        write_table(results)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
