"""Command lines: every subcommand with valid and odd values, files that are in the way included."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from fuzz.campaigns.base import BrokenPromise, Campaign, command
from fuzz.material import CONFIG, ROOT
from fuzz.mutation import Mutator
from nanoeuler.cli import build_parser
from nanoeuler.cli.parser import Parser

LEFT_OUT = {
    "train": "starts a run of minutes",
    "run": "starts the demo where nothing is named",
    "check": "takes a minute",
    "sample": "its default is a large sample",
    "serve": "does not end by itself; the campaign of requests has a server",
    "watch": "waits for a run to end",
}
WRITTEN = ("output", "record", "log", "metrics", "items", "table", "card")
"""Options with a path that a stage writes."""
TARGETS = (
    *("out", "deep/er/out", "", ".", "..", "../..", "precious", "file/in", "a" * 300),
    *("loop", "link"),
)
SOURCES = (
    *("", ".", "..", "none", "precious", "precious/thesis.txt", "loop", "/dev/null"),
    "a" * 5_000,
)
ODD = (
    *("", "-1", "0", "1", "2", "9" * 21, "9" * 5_000, "1e400", "nan", "inf", "-", "--"),
    *("\x1b[31mred", "\u202egnp", "\udcff", "a" * 300, "{", "{}", "[" * 3_000, "{" * 3_000),
    *('{"a": ' + "9" * 5_000 + "}", "auto", "cpu", "cuda", "x=y", "~", "*", "%s", "\u0660"),
    *("/proc/self/mem", "../.."),
)
THESIS = "Four years of work.\n"


class Arguments(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        data, run = material / "data", material / "run"
        short = {**CONFIG, "pretrain": CONFIG["pretrain"] | {"tokens": 384}}
        for stage in ("sft", "dpo", "rl"):
            short[stage] = CONFIG[stage] | {"epochs": 1}
        self.known = {
            "config": [json.dumps(short), str(ROOT / "tests/workflow/ci.yaml")],
            "tokens": [str(data / "tokens/manifest.json")],
            "tokenizer": [str(data / "tokenizer.json")],
            "instructions": [str(data / "instructions/manifest.json")],
            "preferences": [str(data / "preferences/manifest.json")],
            "problems": [str(data / "problems/manifest.json")],
            "questions": [str(data / "questions.jsonl")],
            "parent": [str(run / "pretrain/model"), str(run / "sft")],
            "model": [str(run / "sft/model"), str(run / "dpo"), str(run / "pretrain/checkpoints")],
            "corpus": [str(data / "corpus/manifest.json")],
            "name": [str(data / "instructions.jsonl"), str(data / "preferences.jsonl"), "x"],
            "own": [str(data / "texts")],
            "prompt": ["Say fox."],
            "run": [str(run)],
            "device": ["reference", "cpu"],
            "max_tokens": ["5"],
        }
        self.stages = dict(stages(build_parser()))

    def run(self, mutate: Mutator, folder: Path) -> None:
        inside = folder / "a/b/c"  # so that "../.." is still the case's own
        (inside / "precious").mkdir(parents=True)
        (inside / "precious/thesis.txt").write_text(THESIS)
        (inside.parent / "thesis.txt").write_text(THESIS)
        (inside / "file").write_text(THESIS)
        (inside / "link").symlink_to("precious")
        (inside / "loop").symlink_to("loop")
        os.chdir(inside)
        # what a model says goes to a pipe as it is, and to a terminal without control characters
        sys.stdout.isatty = lambda: True  # type: ignore[method-assign]
        try:
            command(*self.argv(mutate))
        finally:
            kept = (inside / "precious/thesis.txt", inside.parent / "thesis.txt", inside / "file")
            if not all(file.is_file() and file.read_text() == THESIS for file in kept):
                raise BrokenPromise("a user's file is gone or has been changed")
            shutil.rmtree(inside, ignore_errors=True)

    def argv(self, mutate: Mutator) -> list[str]:
        if mutate.chance(0.05):
            return [self.odd(mutate) for _ in range(mutate.rng.choice((0, 1, 2, 5)))]
        names = mutate.rng.choice(list(self.stages))
        words = list(names)
        for action in self.stages[names]:
            needed = action.required or not action.option_strings
            if mutate.chance(0.97 if needed else 0.3):
                words += self.option(mutate, action)
        if mutate.chance(0.1):
            words.insert(mutate.rng.randrange(len(words) + 1), self.odd(mutate))
        return words

    def option(self, mutate: Mutator, action: argparse.Action) -> list[str]:
        flag = list(action.option_strings[-1:])
        if action.nargs == 0:
            return flag
        count = 1 if action.nargs is None else mutate.rng.choice((0, 1, 2))
        return flag + [self.text(mutate, action) for _ in range(count)]

    def text(self, mutate: Mutator, action: argparse.Action) -> str:
        if action.dest in WRITTEN:
            return mutate.rng.choice(TARGETS) if mutate.chance(0.5) else "out"
        if mutate.chance(0.25):
            return self.odd(mutate)
        if mutate.chance(0.1):
            return mutate.rng.choice(SOURCES)
        if action.choices:
            return str(mutate.rng.choice(list(action.choices)))
        if action.dest in self.known:
            return mutate.rng.choice(self.known[action.dest])
        return "1" if action.type in (int, float) else mutate.rng.choice(self.known["own"])

    def odd(self, mutate: Mutator) -> str:
        """An argument as the system hands it on: without zero bytes."""
        return mutate.rng.choice(ODD)


Stage = tuple[tuple[str, ...], list[argparse.Action]]
"""The words that call a subcommand, and its options."""


def stages(parser: argparse.ArgumentParser) -> Iterator[Stage]:
    """Yield every subcommand that is tried."""
    if isinstance(parser, Parser):
        parser.complete()
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for name, sub in action.choices.items():
            if name not in LEFT_OUT:
                for names, options in stages(sub):
                    yield (name, *names), options
    if not inner:
        yield (), [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
