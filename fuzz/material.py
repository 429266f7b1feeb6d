"""Small valid inputs, made by the real stages, for campaigns to damage and for runs to train on."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAINING = {
    "micro_batch_rows": "auto",
    "warmup_steps": 3,
    "learning_rate": 5e-3,
    "validate_every": 20,
    "checkpoint_minutes": 10,
    "log_every": 1,
}
TUNING = TRAINING | {"context": 160, "batch_tokens": 640, "minimum_fit_share": 0.5}
MODEL = {
    "dim": 16,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "ffn": 20,
    "context": 16,
    "vocab_size": 288,
    "mtp_heads": 2,
}
CONFIG: dict[str, Any] = {
    "seed": 1,
    "model": MODEL,
    "pretrain": TRAINING | {"tokens": 60 * 128, "batch_tokens": 128, "validation_tokens": 1000},
    "sft": TUNING | {"epochs": 4, "template": "alpaca", "keep": "best"},
    "dpo": TUNING | {"epochs": 3, "beta": 0.5, "keep": "best"},
    "rl": TUNING
    | {"epochs": 2, "group": 2, "max_new_tokens": 6, "uses": 2, "kl": 0.1, "keep": "best"},
}
INPUTS = {
    "pretrain": "tokens",
    "sft": "instructions",
    "dpo": "preferences",
    "rl": "problems",
}
PARENTS = {"sft": "pretrain", "dpo": "sft", "rl": "dpo"}
NOUNS = ("cat", "dog", "fox", "hen", "owl", "pig")
VERBS = ("sees", "likes", "finds", "follows")


def environment() -> dict[str, str]:
    """Of processes that find this checkout's package from any folder and compute with one thread.

    They keep their locks and caches in the temporary folder that is set.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OPENBLAS_NUM_THREADS": "1",
    }


def nanoeuler(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nanoeuler", *arguments]


def sentence(rng: random.Random) -> str:
    first, verb, second = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)
    return f"The {first} {verb} the {second} near the hill."


def write_records(folder: Path) -> None:
    """Write texts, instructions, pairs, questions and items of a task that users could have."""
    rng = random.Random(1)
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(60):
        count = rng.randrange(4, 12)
        (texts / f"{number:02d}.txt").write_text(" ".join(sentence(rng) for _ in range(count)))
    instructions = [
        {"instruction": f"Say {noun} {number}.", "input": "", "output": f"{noun} {number}"}
        for number, noun in enumerate(NOUNS * 10)
    ]
    pairs = [
        {"prompt": f"Say {noun} {number}.", "chosen": f"{noun}!", "rejected": noun}
        for number, noun in enumerate(NOUNS * 4)
    ]
    problems = [
        {"question": f"Say {noun} {number}.", "answer": noun}
        for number, noun in enumerate(NOUNS * 4)
    ]
    questions = [
        {"instruction": f"Say {noun}.", "answer": noun, "kind": "word", "preferred_ending": "."}
        for noun in NOUNS
    ]
    items = [
        {"goal": f"Find the {noun}.", "sol1": sentence(rng), "sol2": sentence(rng), "label": 1}
        for noun in NOUNS
    ]
    named: dict[str, list[dict[str, Any]]] = {
        "instructions": instructions,
        "preferences": pairs,
        "problems": problems,
        "questions": questions,
        "task": items,
    }
    for name, records in named.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)


def data_commands(folder: Path) -> list[list[str]]:
    """Commands that turn `write_records`'s files into the inputs of training, in their order."""
    corpus = {
        "name": "tales",
        "sources": [str(folder / "texts")],
        "validation_share": 0.1,
        "deduplicate": {"web": "none"},
        "decontaminate": False,
    }
    config = json.dumps(
        {"corpus": corpus, "tokenizer": {"vocab_size": 288, "sample_bytes": 1_000_000}}
    )
    tuning = ("sft", "dpo", "rl")
    records = json.dumps({stage: {"validation_share": 0.1} for stage in tuning})
    manifest, tokenizer = str(folder / "corpus/manifest.json"), str(folder / "tokenizer.json")
    common = ["--config", config, "--corpus", manifest]
    return [
        *(
            [
                *(name, "--config", records, "--name", str(folder / f"{name}.jsonl")),
                *("--output", str(folder / name)),
            ]
            for name in ("instructions", "preferences", "problems")
        ),
        ["assemble", "--config", config, "--output", str(folder / "corpus")],
        ["bpe", *common, "--output", tokenizer],
        ["tokenize", *common, "--tokenizer", tokenizer, "--output", str(folder / "tokens")],
    ]


def scratch_command(stage: str, data: Path, run: Path, config: dict[str, Any]) -> list[str]:
    """The arguments of a training stage of `run` on the inputs in `data`, without a parent."""
    name = INPUTS[stage]
    return [
        stage,
        *("--config", json.dumps(config)),
        *(f"--{name}", str(data / name / "manifest.json")),
        *("--tokenizer", str(data / "tokenizer.json")),
        *("--output", str(run / stage)),
        *("--device", "reference"),
    ]


def training_command(stage: str, data: Path, run: Path, config: dict[str, Any]) -> list[str]:
    """The arguments of a training stage that starts from the stage of `run` before it."""
    command = scratch_command(stage, data, run, config)
    if stage in PARENTS:
        command += ["--parent", str(run / PARENTS[stage] / "model")]
    return command


def make(folder: Path, stages: Iterable[str] = INPUTS) -> Path:
    """Write records, the inputs of training in data/ and a run of `stages` in run/."""
    data = folder / "data"
    write_records(data)
    commands = data_commands(data)
    commands += [training_command(stage, data, folder / "run", CONFIG) for stage in stages]
    for arguments in commands:
        done = subprocess.run(
            nanoeuler(*arguments), env=environment(), capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"nanoeuler {' '.join(arguments)} failed:\n{done.stderr}")
    return folder
