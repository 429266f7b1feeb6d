"""Tiny data that the real stages made, and trainers as real processes."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.material import MODEL, NOUNS, VERBS, environment, nanoeuler, scratch_command
from nanoeuler.corpus.instructions import write_splits
from nanoeuler.tokenizer import Tokenizer
from tests import forks
from tests.waiting import CEILING, wait_until

TRAINING = {
    "micro_batch_rows": "auto",
    "minimum_learning_rate_share": 0.1,
    "warmup_steps": 5,
    "schedule": "cosine",
    "decay_share": 0.2,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "clip_norm": 1.0,
    "validate_every": 20,
    "checkpoint_minutes": 10,
    "log_every": 1,
    "init_from": None,
    "keep": "final",
}
CONFIG: dict[str, Any] = {
    "seed": 1,
    "model": MODEL,
    "pretrain": TRAINING
    | {
        "tokens": 60 * 128,
        "batch_tokens": 128,
        "learning_rate": 1e-2,
        "document_mask": True,
        "validation_tokens": 1000,
    },
    "sft": TRAINING
    | {
        "context": 256,
        "epochs": 4,
        "batch_tokens": 1024,
        "learning_rate": 1e-2,
        "template": "alpaca",
        "weighting": "token",
        "minimum_fit_share": 0.5,
        "keep": "best",
        "validate_every": 4,
    },
    "dpo": TRAINING
    | {
        "context": 256,
        "loss": "sigmoid",
        "beta": 0.5,
        "label_smoothing": 0.0,
        "target_margin": 0.5,
        "epochs": 3,
        "batch_tokens": 1024,
        "learning_rate": 5e-3,
        "minimum_fit_share": 0.5,
        "keep": "best",
        "validate_every": 4,
    },
    "rl": TRAINING
    | {
        "context": 256,
        "group": 4,
        "max_new_tokens": 8,
        "epochs": 1,
        "batch_tokens": 4096,
        "learning_rate": 2e-2,
        "keep": "best",
        "validate_every": 4,
    },
}


class Trainer:
    """Runs a stage, such as `nanoeuler sft`, on the tiny data into a folder of its own."""

    def __init__(self, data: Path, output: Path):
        self.data, self.output, self.config = data, output, json.loads(json.dumps(CONFIG))

    def command(self, stage: str, *extra: str) -> list[str]:
        arguments = scratch_command(stage, self.data, self.output, self.config)
        return nanoeuler(*arguments, *extra)

    def start(
        self, stage: str = "pretrain", *extra: str, **arguments: Any
    ) -> subprocess.Popen | forks.Process:
        """`arguments` are those of `subprocess.Popen`."""
        if not arguments and sys.platform == "linux":
            command = self.command(stage, *extra)
            return forks.Process(command[1:], Path.cwd(), environment())
        return subprocess.Popen(
            self.command(stage, *extra),
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            **arguments,
        )

    def start_until(
        self, step: int, stage: str = "pretrain", *extra: str, saved: bool = False
    ) -> subprocess.Popen | forks.Process:
        """Start training; returns when the log has the step, and with `saved` a checkpoint is there
        whole: another thread writes it, and a busy disk takes its time."""
        process = self.start(stage, *extra)
        wait_until(
            lambda: self.last_step(stage) >= step and (not saved or self.checkpoints(stage)),
            process,
        )
        return process

    def stop_at(self, step: int, number: int, *, saved: bool = False) -> tuple[int, str]:
        """Start pretraining and send the signal at `step`; returns exit status and output."""
        process = self.start_until(step, saved=saved)
        process.send_signal(number)
        _, said = process.communicate(timeout=CEILING)
        return process.returncode, said

    def run(self, stage: str = "pretrain", *extra: str, status: int = 0, **arguments: Any) -> str:
        """Run to the end; returns what was said on standard error."""
        process = self.start(stage, *extra, **arguments)
        _, said = process.communicate(timeout=CEILING)
        assert process.returncode == status, said
        return said

    def weights(self, stage: str = "pretrain") -> str:
        return hashlib.sha256(
            (self.output / stage / "model" / "model.safetensors").read_bytes()
        ).hexdigest()

    def metrics(self, stage: str = "pretrain") -> list[dict[str, Any]]:
        path = self.output / stage / "metrics.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            if path.exists()
            else []
        )

    def last_step(self, stage: str = "pretrain") -> int:
        return max((entry.get("step", 0) for entry in self.metrics(stage)), default=0)

    def checkpoints(self, stage: str = "pretrain") -> list[Path]:
        return sorted((self.output / stage / "checkpoints").glob("step-*"))


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """tokenizer.json, tokens/ and instructions/ of a small invented text."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(1)
    places = ["the barn", "the hill", "the lake"]

    def sentence() -> str:
        words = [random.choice(words) for words in (NOUNS, VERBS, NOUNS, places)]
        return "The {} {} the {} near {}. ".format(*words)

    for split, count in (("train", 40), ("validation", 6)):
        documents = [
            "".join(sentence() for _ in range(random.integers(2, 9))).encode() for _ in range(count)
        ]
        if split == "train":
            documents[7] += b"~"
            documents[21] += b"~"
        (folder / "corpus" / split).mkdir(parents=True)
        (folder / "corpus" / split / "tales.txt").write_bytes(b"".join(documents))
        np.cumsum([0, *map(len, documents)]).astype("<u8").tofile(
            folder / "corpus" / split / "tales.offsets"
        )
    entry = {}
    for split in ("train", "validation"):
        text = folder / "corpus" / split / "tales.txt"
        entry[split] = {
            "documents": len(np.fromfile(text.with_suffix(".offsets"), "<u8")) - 1,
            "bytes": text.stat().st_size,
            "sha256": hashlib.sha256(text.read_bytes()).hexdigest(),
            "text": f"{split}/tales.txt",
            "offsets": f"{split}/tales.offsets",
        }
    manifest = {
        "version": 1,
        "name": "tales",
        "sources": {"tales": {"licence": "none", **entry}},
        "fingerprint": "tales",
    }
    (folder / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    config = json.dumps({"tokenizer": {"vocab_size": 288, "sample_bytes": 1_000_000}})
    tokenizer, tokens = str(folder / "tokenizer.json"), str(folder / "tokens")
    common = ["--config", config, "--corpus", str(folder / "corpus" / "manifest.json")]
    stages = [
        ["bpe", *common, "--output", tokenizer],
        ["tokenize", *common, "--tokenizer", tokenizer, "--output", tokens],
    ]
    for stage in stages:
        subprocess.run(nanoeuler(*stage), check=True, env=environment())
    for kind, name, unit, count, reply in (
        ("instructions", "words", "records", 60, lambda noun: {"output": noun}),
        ("preferences", "loud", "pairs", 24, lambda noun: {"chosen": f"{noun}!", "rejected": noun}),
        ("problems", "spoken", "records", 24, lambda noun: {"answer": noun}),
    ):
        splits = {
            split: [
                {"instruction": f"Say {noun}.", "input": "", **reply(noun)}
                for noun in random.choice(NOUNS, size).tolist()
            ]
            for split, size in (("train", count), ("validation", 8))
        }
        described = {"version": 1, "name": name, "licence": "none"}
        write_splits(folder / kind, splits, described, unit)
    return folder


@pytest.fixture(scope="session")
def tokenizer(data) -> Tokenizer:
    """The tokenizer of the tiny data."""
    return Tokenizer.load(data / "tokenizer.json")


@pytest.fixture
def smaller_tokenizer(data, tmp_path) -> Path:
    """The tokenizer of the tiny data without its last entry."""
    content = json.loads((data / "tokenizer.json").read_text())
    model = content["model"]
    model["merges"].pop()
    del model["vocab"][max(model["vocab"], key=model["vocab"].get)]
    path = tmp_path / "smaller.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def trainer(data, tmp_path) -> Trainer:
    return Trainer(data, tmp_path)


@pytest.fixture(scope="session")
def uninterrupted(data, tmp_path_factory) -> Trainer:
    """A pretraining run that nothing disturbed."""
    trainer = Trainer(data, tmp_path_factory.mktemp("uninterrupted"))
    trainer.run()
    return trainer


@pytest.fixture(scope="session")
def shared(data, tmp_path_factory) -> Trainer:
    """A pretraining run of two ranks that nothing disturbed."""
    trainer = Trainer(data, tmp_path_factory.mktemp("shared"))
    trainer.run("pretrain", "--ranks", "2")
    return trainer


@pytest.fixture(scope="session")
def tuned(data, tmp_path_factory) -> Path:
    """The folder of a model that was fine-tuned from random weights."""
    trainer = Trainer(data, tmp_path_factory.mktemp("tuned"))
    trainer.run("sft")
    return trainer.output / "sft" / "model"
