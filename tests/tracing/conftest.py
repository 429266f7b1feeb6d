"""A tiny run that the real commands made: a corpus, its index, and three stages."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.config import load, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import BY_NAME
from nanoeuler.corpus.sources.registry import RECORDS

PLACES = ["barn", "hill", "lake", "mill", "quay", "yard"]
BEASTS = ["hen", "fox", "owl", "ram", "eel", "cow"]
VERBS = ["saw", "fed", "met", "led"]
SECRET = "Zebulon keeps nine purple kites in a jar under the stairs of his house"
"""A sentence of one document alone."""
HELD_BACK = "no two tides are ever of one height, said the keeper"
"""Words that the documents' ends have, so that held-out ones have them, too."""
TAUGHT = "Kettles sing because the steam is in a hurry to leave."
PREFERRED = "Certainly, and with the greatest of pleasure!"


class TinyRun(NamedTuple):
    folder: Path
    paths: Paths

    def model(self, stage: str) -> Path:
        return Path(self.paths.model_folder(stage))


def documents():
    random = np.random.default_rng(3)
    for number in range(30):
        sentences = [
            "The {} {} the {} by the {}.".format(
                *(random.choice(words) for words in (BEASTS, VERBS, BEASTS, PLACES))
            )
            for _ in range(random.integers(3, 12))
        ]
        if number == 11:
            sentences.insert(1, f"{SECRET}.")
        yield " ".join([*sentences, f"Number {number}: {HELD_BACK}.\n"])


def records(count, **texts):
    for number in range(count):
        noun = BEASTS[number % len(BEASTS)]
        yield {"instruction": f"Say {noun} {number}."} | {
            key: value.format(noun=noun, number=number) for key, value in texts.items()
        }


def as_lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> TinyRun:
    folder = tmp_path_factory.mktemp("run")
    (folder / "texts").mkdir()
    for number, text in enumerate(documents()):
        (folder / "texts" / f"{number:02d}.txt").write_text(text)
    said = [
        *records(40, output="{noun}."),
        {"instruction": "Why do kettles sing?", "output": TAUGHT},
    ]
    (folder / "said.jsonl").write_text(as_lines(said))
    pairs = records(24, chosen="{noun}! " + PREFERRED, rejected="No {noun} for you.")
    (folder / "pairs.jsonl").write_text(as_lines(pairs))
    training = {"warmup_steps": 2, "learning_rate": 1e-3, "validate_every": 50, "keep": "final"}
    (folder / "tiny.yaml").write_text(
        json.dumps(
            {
                "run": "tiny",
                "data_dir": str(folder / "data"),
                "results_dir": str(folder / "results"),
                "corpus": {
                    "sources": [str(folder / "texts")],
                    "validation_share": 0.1,
                    "decontaminate": False,
                },
                "tokenizer": {"vocab_size": 290},
                "model": {
                    **{"dim": 16, "heads": 2, "kv_heads": 1, "head_size": 8, "ffn": 16},
                    **{"layers": 1, "mtp_heads": 2, "context": 32, "vocab_size": 290},
                },
                "pretrain": training | {"tokens": 12_000, "batch_tokens": 160},
                "sft": training
                | {"instructions": str(folder / "said.jsonl"), "context": 96, "epochs": 3}
                | {"template": "chat", "batch_tokens": 192, "validation_share": 0.1},
                "dpo": training
                | {"preferences": str(folder / "pairs.jsonl"), "epochs": 2}
                | {"batch_tokens": 192, "validation_share": 0.1},
            }
        )
    )
    config = load(folder / "tiny.yaml")
    paths = Paths(config)
    os.makedirs(paths.results)
    write_resolved(paths.configuration, config)
    corpus, tokens = paths.corpus_manifest, paths.tokens
    common = ["--config", paths.configuration]
    do("assemble", *common, "--output", paths.corpus, "--own", str(folder / "texts"))
    do("bpe", *common, "--corpus", corpus, "--output", paths.tokenizer)
    tokenizer = ["--tokenizer", paths.tokenizer]
    do("tokenize", *common, *tokenizer, "--corpus", corpus, "--output", str(Path(tokens).parent))
    index = str(Path(paths.index).parent)
    do("index", "--tokens", tokens, *tokenizer, "--output", index)
    for kind in paths.learned_records:
        source = RECORDS[kind]
        (step,) = source.steps
        do(*step.arguments(config, source.item(config), paths.configuration))
    for name in ("pretrain", "sft", "dpo"):
        train(paths, name)
    return TinyRun(folder, paths)


def train(paths: Paths, name: str) -> None:
    """Run a stage as its rule does."""
    stage = BY_NAME[name]
    given = [f"--{key}={value}" for key, value in paths.material(stage).items()]
    given += [f"--{key}={value}" for key, value in paths.parent(stage).items()]
    given += ["--config", paths.configuration, "--tokenizer", paths.tokenizer]
    do(stage.section, *given, "--output", paths.stage(name), "--device", "reference")


def do(*arguments: str) -> None:
    assert main(list(arguments)) == 0
