"""Ranks share an evaluation: its bits are those of one process, and all end with one of them."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from test_evaluate import CONFIG, SETTINGS, save_tokens

from fuzz.material import environment, nanoeuler
from nanoeuler.backend import gpu_count
from nanoeuler.corpus.instructions import write_splits
from nanoeuler.corpus.tasks import prepare
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.waiting import CEILING, wait_until

SHAPE = {"dim": 64, "layers": 1, "heads": 2, "kv_heads": 1, "ffn": 84, "context": 32}
METALS = ("tin", "salt", "iron", "zinc")


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """A model, and enough of everything for several passes of each kind."""
    folder = tmp_path_factory.mktemp("material")
    tokenizer, random = Tokenizer(build([])), np.random.default_rng(1)
    tokenizer.save(folder / "tokenizer.json")
    config = ModelConfig.from_dict(SHAPE | {"vocab_size": tokenizer.vocab_size, "mtp_heads": 2})
    files = folder / "tokenizer.json", "sft", "alpaca", {}
    save_model(folder / "model", SavedModel(config, initial_parameters(config, 1), *files))
    words = " ".join(random.choice(METALS, 6000).tolist())
    save_tokens(folder / "tokens", tokenizer, {"words": [words]})
    with (folder / "questions.jsonl").open("w") as file:
        for number in range(150):
            question = {"instruction": f"What is at {number}?", "answer": METALS[number % 4]}
            file.write(json.dumps(question) + "\n")
    records = [{"instruction": f"Say {n}.", "input": "", "output": "Yes."} for n in range(140)]
    described = {"version": 1, "name": "words", "licence": "none"}
    splits = {"train": records[:10], "validation": records[10:]}
    write_splits(folder / "instructions", splits, described, "records")
    with (folder / "pairs.jsonl").open("w") as file:
        for n in range(600):
            pair = {"sentence_good": f"It is {n}.", "sentence_bad": f"It are {n}."}
            file.write(json.dumps(pair | {"UID": "numbers", "pairID": str(n)}) + "\n")
    task = {"name": "numbers", "kind": "blimp", "licence": "none"}
    prepare(task | {"url": str(folder / "pairs.jsonl")}, folder / "task")
    return folder


def command(folder: Path, output: Path, *extra: str, window: int = 32) -> list[str]:
    settings = SETTINGS | {"validation_tokens": 30_000, "chat_prompts": 130, "max_new_tokens": 4}
    config = CONFIG | {"evaluate": settings, "model": {"context": window}}
    files = {
        "--model": folder / "model",
        "--tokens": folder / "tokens" / "manifest.json",
        "--questions": folder / "questions.jsonl",
        "--instructions": folder / "instructions" / "manifest.json",
        "--tasks": folder / "task" / "manifest.json",
        "--output": output / "scores.json",
        "--items": output / "items.jsonl",
    }
    options = [str(each) for pair in files.items() for each in pair]
    return nanoeuler("evaluate", "--config", json.dumps(config), *options, *extra)


def run(folder: Path, output: Path, *extra: str, status: int = 0, **changes: int) -> str:
    """What was said."""
    line = command(folder, output, *extra, **changes)
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=CEILING)
    assert done.returncode == status, done.stderr
    return done.stderr


def found(output: Path) -> tuple[dict[str, Any], str]:
    """The scores, without what every evaluation has of its own, and the items."""
    scores = json.loads((output / "scores.json").read_text())
    for key in ("seconds", "provenance", "seal"):
        del scores[key]
    return scores, (output / "items.jsonl").read_text()


ON_GPUS = pytest.param("cuda", "--gpus", marks=pytest.mark.gpu)


@pytest.mark.parametrize(("device", "option"), [("cpu", "--ranks"), ON_GPUS])
def test_two_ranks_find_the_bits_of_one(material, tmp_path, device, option):
    if device == "cuda" and gpu_count() < 2:
        pytest.skip("needs two GPUs")
    run(material, tmp_path / "one", "--device", device)
    run(material, tmp_path / "two", "--device", device, option, "2")
    assert found(tmp_path / "two") == found(tmp_path / "one")


def test_a_killed_rank_ends_the_evaluation(material, tmp_path):
    process = subprocess.Popen(
        command(material, tmp_path, "--device", "cpu", "--ranks", "2"),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: psutil.Process(process.pid).children(), process)
    (other,) = psutil.Process(process.pid).children()
    other.send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said.count("rank 1 of 2 was killed by SIGKILL; the other ranks are stopped") == 1
    assert "Traceback" not in said
    assert not (tmp_path / "scores.json").exists()


def test_mistakes_are_told_once(material, tmp_path):
    ranks = "--device", "cpu", "--ranks", "2"
    said = run(material, tmp_path, *ranks, window=4, status=1)
    assert said.count("every choice is longer than the window of 4 tokens") == 1, said
    said = run(tmp_path, tmp_path, *ranks, status=1)
    assert said.count("no such folder") == 1, said
    assert "Traceback" not in said


def test_more_gpus_than_there_are_are_refused(material, tmp_path):
    said = run(material, tmp_path, "--gpus", "1000", status=1)
    assert "--gpus 1000: " in said
    assert " can be used here; give as many, or 0 for the CPU" in said
