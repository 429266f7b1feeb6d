"""Tasks: what is picked, what the scores are beside it, and what the command leaves."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.corpus.tasks import prepare
from nanoeuler.evaluation.asking import Asked, judge
from nanoeuler.evaluation.tasks import mean, select_items, summarise_task
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

CONFIG = {
    "evaluate": {
        "prompts": [],
        "validation_tokens": 1000,
        "max_new_tokens": 4,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1.0,
    }
}


def item(*choices: str, gold: int = 0, id: str = "1") -> dict:
    return {"id": id, "contexts": ["Why?"], "choices": list(choices), "gold": gold}


def judged(
    kind: str, item: dict, sums: list[float], tokens: list[int] | None = None, greedy: bool = False
) -> dict:
    return judge(kind, item, np.array(sums), np.array(tokens or [1] * len(sums)), greedy)


def test_the_likeliest_choice_is_picked_as_it_is_and_by_its_length():
    record = judged("piqa", item("a long choice", "short", gold=0), [-13.0, -6.0], [4, 1])
    # −13/13 = −1 against −6/5, and −13/4 against −6
    assert record["choice"] == {"acc": 1, "acc_norm": 0, "acc_token": 0}
    assert record["correct"] == {"acc": False, "acc_norm": True, "acc_token": True}
    assert record["loglikelihoods"] == [-13.0, -6.0]
    tied = judged("piqa", item("ab", "cd"), [-1.0, -1.0])
    assert set(tied["choice"].values()) == {0}  # ties go to the first


def test_length_is_counted_in_characters_not_in_bytes():
    record = judged("piqa", item("éé", "abc"), [-4.0, -5.0])
    assert record["choice"] == {"acc": 0, "acc_norm": 1, "acc_token": 0}


def test_a_score_has_its_standard_error_and_its_baseline():
    items = [item("a", "b"), item("a", "b", "c", "d"), item("a", "b")]
    records = [
        judged("arc_easy", each, [value, *[-2.0] * (len(each["choices"]) - 1)])
        for each, value in zip(items, (-1, -3, -1), strict=True)
    ]
    scores = summarise_task("arc_easy", Asked(items, records))
    assert (scores["metric"], scores["items"], scores["score"]) == ("acc", 3, pytest.approx(2 / 3))
    deviation = math.sqrt(2 / 9 * 3 / 2)  # with n − 1
    assert scores["standard_error"] == pytest.approx(deviation / math.sqrt(3))
    assert scores["baseline"] == pytest.approx((1 / 2 + 1 / 4 + 1 / 2) / 3)
    assert mean([True]) == {"score": 1.0, "standard_error": None}


def test_last_words_have_a_perplexity_and_groups_scores_of_their_own():
    records = [
        judged("lambada", item("sea"), [-value], greedy=greedy)
        for value, greedy in ((1.0, True), (3.0, False))
    ]
    scores = summarise_task("lambada", Asked([item("sea")] * 2, records))
    assert (scores["score"], scores["baseline"]) == (0.5, 0.0)
    assert scores["perplexity"] == {
        "score": pytest.approx(math.exp(2)),
        "standard_error": pytest.approx(math.exp(2)),
    }
    pairs = [item("good", "bad") | {"group": group} for group in ("x", "x", "y")]
    records = [
        judged("blimp", pair, [value, -2.0])
        for pair, value in zip(pairs, (-1, -3, -1), strict=True)
    ]
    assert {
        name: group["score"]
        for name, group in summarise_task("blimp", Asked(pairs, records))["groups"].items()
    } == {"x": 0.5, "y": 1.0}


def test_a_limit_takes_the_same_items_for_every_model():
    items = [item("a", "b", id=str(number)) for number in range(100)]
    some = select_items(items, 10, seed=1)
    assert some == select_items(items, 10, seed=1)
    assert some != select_items(items, 10, seed=2)
    assert len(some) == 10
    assert [int(each["id"]) for each in some] == sorted(int(each["id"]) for each in some)
    assert set(map(id, select_items(items, 10, seed=1))) <= set(
        map(id, select_items(items, 20, seed=1))
    )
    assert select_items(items, None, 1) == select_items(items, 100, 1) == items


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """A random model of 32 tokens of context, one letter a token, and three tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    tokenizer = Tokenizer(build([]))
    config = ModelConfig.from_dict(
        {
            "dim": 16,
            "layers": 1,
            "heads": 2,
            "kv_heads": 1,
            "ffn": 24,
            "context": 32,
            "mtp_heads": 2,
            "vocab_size": tokenizer.vocab_size,
        }
    )
    tokenizer.save(folder / "tokenizer.json")
    save_model(
        folder / "model",
        SavedModel(
            config, initial_parameters(config, 1), folder / "tokenizer.json", "pretrain", None, {}
        ),
    )
    records = {
        "piqa": [
            {"goal": "Go", "sol1": "a" * length, "sol2": "on foot", "label": 1}
            for length in (3, 20, 40)
        ],
        "blimp": [
            {
                "sentence_good": "It is.",
                "sentence_bad": "It are.",
                "UID": "agreement",
                "pairID": str(number),
            }
            for number in range(5)
        ],
        "lambada": [
            {"text": "the sea the sea the"},
            {"text": "a much longer text than the context holds, and its last word"},
        ],
    }
    for kind, values in records.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
        prepare(
            {"name": kind, "kind": kind, "url": str(folder / f"{kind}.jsonl"), "licence": "MIT"},
            folder / kind,
        )
        (folder / f"{kind}.jsonl").unlink()
    return {"model": folder / "model"} | {kind: folder / kind / "manifest.json" for kind in records}


def run(files: dict[str, Path], output: Path, *tasks: str, config: dict = CONFIG) -> int:
    arguments = [
        "--config",
        json.dumps(config),
        "--model",
        str(files["model"]),
        "--output",
        str(output),
        "--items",
        str(output.with_suffix(".jsonl")),
    ]
    return main(
        [
            "evaluate",
            *arguments,
            "--device",
            "reference",
            "--tasks",
            *(str(files[task]) for task in tasks),
        ]
    )


def test_the_command_scores_tasks_without_any_corpus(files, tmp_path, capsys):
    assert run(files, tmp_path / "scores.json", "piqa", "blimp", "lambada") == 0
    result = json.loads((tmp_path / "scores.json").read_text())
    assert (result["held_out"], result["chat"], result["tokens_fingerprint"]) == ({}, None, None)
    piqa, blimp, lambada = (result["tasks"][name] for name in ("piqa", "blimp", "lambada"))
    assert (piqa["metric"], piqa["baseline"], piqa["licence"]) == ("acc_norm", 0.5, "MIT")
    assert (piqa["items"], piqa["skipped"]) == (2, {"a choice is longer than the window": 1})
    assert piqa["truncated"] == 1
    assert (lambada["items"], lambada["truncated"]) == (2, 1)
    assert list(blimp["groups"]) == ["agreement"]
    items = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [(each["task"], each["id"]) for each in items[:2]] == [("piqa", "1"), ("piqa", "2")]
    assert len(items) == 2 + 5 + 2
    assert all(
        len(each["loglikelihoods"]) == 2 and max(each["loglikelihoods"]) < 0 for each in items[:7]
    )
    assert np.mean([each["correct"]["acc_norm"] for each in items[:2]]) == piqa["score"]
    said = capsys.readouterr().err
    assert "truncated=1 skipped=1 items_per_second=" in said


def test_a_limit_in_the_configuration_is_heeded(files, tmp_path):
    config = {"evaluate": CONFIG["evaluate"] | {"tasks": [{"name": "blimp", "limit": 2}]}}
    assert run(files, tmp_path / "scores.json", "blimp", config=config) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["tasks"]["blimp"]["items"] == 2


def test_files_that_are_no_tasks_and_windows_too_short_are_refused_in_a_sentence(
    files, tmp_path, capsys
):
    assert run(files | {"piqa": tmp_path / "none.json"}, tmp_path / "scores.json", "piqa") == 1
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text('{"kind": "corpus"}')
    assert run(files | {"piqa": tmp_path / "manifest.json"}, tmp_path / "scores.json", "piqa") == 1
    assert "not the manifest of a task" in capsys.readouterr().err
    assert (
        run(files, tmp_path / "scores.json", "piqa", config=CONFIG | {"model": {"context": 4}}) == 1
    )
    assert "every choice is longer than the window of 4 tokens" in capsys.readouterr().err
    assert run(files, tmp_path / "scores.json", "piqa", "piqa") == 1
    assert "a second task named piqa" in capsys.readouterr().err
    assert not (tmp_path / "scores.json").exists()
