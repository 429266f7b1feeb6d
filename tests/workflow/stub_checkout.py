"""A checkout whose stages are stubs: real Snakemake processes say what they would run, and why."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.machine_code import copy_machine_code

ROOT = Path(__file__).parents[2]
CI = ("--configfile", "ci.yaml")
SOURCES = """
gutenberg:
  collection: classics
  mirror: https://mirror.example
  licence: Public domain
  books: [{id: 84, title: Frankenstein}, {id: 1342}]
fineweb:
  collection: web
  licence: ODC-By 1.0
  shards: [{url: https://example.org/000.parquet}, {url: https://example.org/001.parquet}]
instructions: {alpaca: {url: https://example.org/alpaca.json, licence: CC BY-NC 4.0}}
preferences: {alpaca_farm: {url: https://example.org/pairs.json, licence: CC BY-NC 4.0}}
questions: {world: {url: questions.jsonl}}
tasks:
  piqa: {url: https://example.org/piqa.jsonl}
  quiz: {url: https://example.org/quiz.jsonl, kind: arc_easy}
"""
CONFIG = """
run: trial
sources: sources.yaml
corpus: {name: shared}
model: {preset: small}
pretrain: {tokens: 1000000, batch_tokens: 4096, learning_rate: 3.0e-3}
sft: {baseline_from_scratch: true}
dpo: {epochs: 2}
evaluate: {questions: world}
"""
EVERY_STAGE = {
    "fetch_book": 2,
    "clean_book": 2,
    "extract_fineweb": 1,
    "fetch_instructions": 1,
    "fetch_preferences": 1,
    "fetch_questions": 1,
    "build_corpus": 1,
    "learn_bpe": 1,
    "tokenize": 1,
    "check_fit": 1,
    "check_gradients": 1,
    "pretrain": 1,
    "sft": 1,
    "sft_scratch": 1,
    "dpo": 1,
    "evaluate_model": 4,
    "write_report": 1,
    "all": 1,
}


@dataclass
class Checkout:
    """A folder with this project's workflow and stubs for stages."""

    path: Path

    def snakemake(
        self, *arguments: str, failing: str = "", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        """Run Snakemake in the folder as a person would, by default with config/config.yaml.

        The stub of the stage `failing` fails.
        """
        calls = {
            "NANOEULER_STUB_CALLS": str(self.path / "calls.txt"),
            "NANOEULER_STUB_FAIL": failing,
            "XDG_CACHE_HOME": str(self.path / "cache"),
        }
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")
        }
        given = inherited | calls | (environment or {})
        return forks.run(["-m", "snakemake", *arguments], self.path, given)

    def run(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """Run Snakemake, which must succeed, and return what it printed."""
        done = self.snakemake(*arguments, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def planned(self, *arguments: str) -> dict[str, int]:
        """The jobs that a dry run lists, by rule."""
        lines = iter(self.run("-n", *arguments).splitlines())
        jobs = {}
        for line in lines:
            if line.split() == ["job", "count"]:
                next(lines)
                for row in lines:
                    name, count = row.split()
                    if name == "total":
                        return jobs
                    jobs[name] = int(count)
        return jobs

    @property
    def calls(self) -> list[str]:
        """The command lines that stages were called with."""
        file = self.path / "calls.txt"
        return file.read_text().splitlines() if file.exists() else []

    def write(self, path: str, text: str) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(text)

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.path / path).read_text()
        assert old in text
        (self.path / path).write_text(text.replace(old, new))


def copy_checkout(path: Path) -> Checkout:
    """A checkout with the whole pipeline, whose stages are no stubs."""
    for part in ("workflow", "profiles", "nanoeuler", "config"):
        shutil.copytree(ROOT / part, path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", path)
    shutil.copy(Path(__file__).parent / "ci.yaml", path)
    copy_machine_code(path)
    return Checkout(path)


def make_checkout(path: Path) -> Checkout:
    for part in ("Snakefile", "workflow", "profiles", "nanoeuler"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, path / part, ignore=shutil.ignore_patterns("*.nb[ci]"))
        else:
            shutil.copy(source, path / part)
    shutil.copy(Path(__file__).parent / "stub_stages.py", path / "nanoeuler/__main__.py")
    checkout = Checkout(path)
    checkout.write("config/config.yaml", CONFIG)
    checkout.write("sources.yaml", SOURCES)
    return checkout
