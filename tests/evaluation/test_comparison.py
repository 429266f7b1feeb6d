"""The table of several evaluations, and the description of replies."""

import json
import re
from pathlib import Path

import pytest
from fabricated import evaluation

from nanoeuler.cli import main
from nanoeuler.evaluation.answers import Reply, describe_replies, share_repeated
from nanoeuler.evaluation.scores import score_rows
from nanoeuler.storage.integrity import seal

TASK = {
    "kind": "piqa",
    "metric": "acc_norm",
    "items": 1838,
    "score": 0.6034,
    "standard_error": 0.0114,
    "baseline": 0.5,
}
LAST_WORD = {
    "kind": "lambada",
    "metric": "acc",
    "items": 1,
    "score": 0.0,
    "standard_error": None,
    "baseline": 0.0,
    "perplexity": {"score": 123.456},
}


def write(folder: Path, name: str, **changes) -> str:
    stage = evaluation(
        name,
        None if name == "pretrain" else "alpaca",
        {"books": 1.5 if name == "pretrain" else 1.6},
        0.5,
        0.9,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(seal(stage | changes)))
    return str(folder / f"{name}.json")


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_stages_stand_side_by_side_with_errors_and_baselines(tmp_path, capsys):
    chat = {
        "prompts": 100,
        "stopped": 0.93,
        "mean_reply_tokens": 41.25,
        "mean_reply_words": 30.0,
        "repetition": 0.125,
        "sampled": {
            "stopped": 0.99,
            "mean_reply_tokens": 39.0,
            "mean_reply_words": 29.0,
            "repetition": 0.01,
        },
    }
    paths = [
        write(tmp_path, "pretrain", tasks={"piqa": TASK}, chat=None),
        write(
            tmp_path, "sft", tasks={"piqa": TASK | {"score": 0.61}, "lambada": LAST_WORD}, chat=chat
        ),
    ]
    assert main(["compare", *paths, "--output", str(tmp_path / "table.md")]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() == printed
    assert len({len(line) for line in printed.splitlines()}) == 1, "columns are aligned"
    table = cells(printed)
    assert table[""] == ["pretrain", "sft", "baseline"]
    assert table["bits per byte, books"] == ["1.500", "1.600", "–"]
    assert table["next token right, books"] == ["50.0 %", "50.0 %", "–"]
    assert table["token 4 ahead right, books"] == ["17.0 %", "17.0 %", "–"]
    assert table["piqa acc_norm, 1,838 items"] == [
        *("60.3 % ± 1.1", "61.0 % ± 1.1", "50.0 % at random")
    ]
    assert table["lambada acc, 1 items"] == ["–", "0.0 %", "0.0 % at random"]
    assert table["lambada, perplexity"] == ["–", "123.5", "–"]
    assert table["exact answers of 300"][2] == "11.7 % always “copper”"
    replies = "replies to 100 instructions"
    assert table[f"{replies} that stop"] == ["–", "93.0 %", "–"]
    assert table[f"{replies}, repeated 4-grams"] == ["–", "12.5 %", "–"]
    assert table[f"sampled {replies} that stop"] == ["–", "99.0 %", "–"]


def test_one_stage_of_two_runs_goes_by_the_runs(tmp_path, capsys):
    paths = [write(tmp_path / run / "evaluation", "sft") for run in ("small", "base")]
    assert main(["compare", *paths]) == 0
    assert cells(capsys.readouterr().out)[""] == ["small/sft", "base/sft", "baseline"]


def test_runs_stand_for_the_evaluations_of_their_stages(tmp_path, capsys):
    for run in ("first", "second"):
        for stage in ("sft", "pretrain"):
            write(tmp_path / run / "evaluation", stage)
    assert main(["compare", str(tmp_path / "first")]) == 0
    assert re.match(r"\| +\| +pretrain \| +sft \|", capsys.readouterr().out)
    evaluations = str(tmp_path / "second" / "evaluation")
    assert main(["compare", str(tmp_path / "first"), evaluations]) == 0
    head = capsys.readouterr().out.partition("\n")[0]
    assert re.findall(r"\w+/\w+", head) == [
        *("first/pretrain", "first/sft", "second/pretrain", "second/sft"),
    ]
    assert main(["compare", str(tmp_path)]) == 1
    assert f"{tmp_path}: holds no evaluations; give the folder of a run" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "third")]) == 1
    assert "third: holds no evaluations; give the folder of a run" in capsys.readouterr().err


def test_numbers_of_items_that_differ_are_told_and_share_no_baseline(tmp_path, capsys):
    paths = [
        write(tmp_path, "pretrain", tasks={"piqa": TASK}),
        write(tmp_path, "sft", tasks={"piqa": TASK | {"items": 40, "baseline": 0.4}}),
    ]
    assert main(["compare", *paths]) == 0
    assert cells(capsys.readouterr().out)["piqa acc_norm, 1,838 / 40 items"] == [
        "60.3 % ± 1.1",
        "60.3 % ± 1.1",
        "–",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"stages": {}},
        5,
        [],
        [["held_out"]],
        {"held_out": 5},
        {"held_out": ["books"]},
        {"held_out": {"books": 1.5}},
        {"held_out": {"books": None}},
        {"held_out": {"books": {"bits_per_byte": "low", "head_accuracy": [0.5]}}},
        {"held_out": {"books": {"bits_per_byte": 1.5, "head_accuracy": []}}, "tasks": {"piqa": {}}},
        {"held_out": {}, "tasks": 5},
        {"held_out": {}, "answers": 5},
        {"held_out": {}, "chat": "hello"},
    ],
)
def test_another_file_is_refused(tmp_path, capsys, content):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(content))
    for files in ([path], [write(tmp_path, "sft"), path]):
        assert main(["compare", *map(str, files)]) == 1
        said = capsys.readouterr().err
        assert f"error  {path}: not an evaluation (" in said
        assert "); give the JSON files that `nanoeuler evaluate` writes\n" in said


def test_a_task_whose_kind_has_changed_has_a_perplexity_in_one_column(tmp_path, capsys):
    files = [
        write(tmp_path, "pretrain", tasks={"mine": TASK}),
        write(tmp_path, "sft", tasks={"mine": LAST_WORD}),
    ]
    for paths, shown in ((files, ["–", "123.5", "–"]), (files[::-1], ["123.5", "–", "–"])):
        assert main(["compare", *paths]) == 0
        assert cells(capsys.readouterr().out)["mine, perplexity"] == shown
        rows = score_rows([json.loads(Path(path).read_text()) for path in paths], {})
        assert next(row[1:] for row in rows if row[0] == "mine, perplexity") == shown


def test_parts_that_were_not_measured_may_be_null(tmp_path, capsys):
    assert (
        main(
            [
                "compare",
                write(tmp_path, "sft"),
                write(tmp_path, "dpo", held_out=None, tasks=None, answers=None, chat=None),
            ]
        )
        == 0
    )
    table = cells(capsys.readouterr().out)
    assert {row[1] for name, row in table.items() if name.strip("-")} == {"–"}


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("one two three", 0.0),
        ("one two three four five", 0.0),
        ("a b c d a b c d", 0.2),  # 5 runs of four words, 4 different
        ("no no no no no no no", 0.75),  # 4 runs, all the same
        ("a  b\nc d a b c d", 0.2),
    ],
)
def test_repetition_is_the_share_of_runs_of_four_words_seen_before(text, share):
    assert share_repeated(text) == pytest.approx(share)


def test_replies_are_described_by_their_means():
    replies = [Reply("no no no no no no no", 7, True), Reply("Yes.", 3, False)]
    assert describe_replies(replies) == {
        "stopped": 0.5,
        "mean_reply_tokens": 5.0,
        "mean_reply_words": 4.0,
        "repetition": 0.375,
    }


def test_programs_get_the_scores_as_json(tmp_path, capsys):
    tasks = {"piqa": TASK | {"groups": {"easy": 0.5}}}
    paths = [write(tmp_path, "pretrain"), write(tmp_path, "sft", tasks=tasks)]
    assert main(["compare", *paths, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["pretrain"]["held_out"]["books"]["bits_per_byte"] == 1.5
    assert scores["sft"]["tasks"]["piqa"] == TASK
    assert "replies" not in (scores["sft"]["answers"] or {})


def test_evaluations_on_other_tokens_come_with_a_caution(tmp_path, capsys):
    first = write(tmp_path / "a/evaluation", "pretrain", tokens_fingerprint="a" * 64)
    second = write(tmp_path / "b/evaluation", "pretrain", tokens_fingerprint="b" * 64)
    caution = "notice  bits per byte compare only where the held-out text is the same"
    for runs, said in (((first, first), False), ((first, second), True)):
        assert main(["compare", *runs]) == 0
        assert (caution in capsys.readouterr().err) == said


def test_training_of_models_in_runs_has_its_cost(tmp_path, capsys):
    for place, joules in ((tmp_path / "a/run", {"gpu_joules": 3e5}), (tmp_path / "b/run", {})):
        write(place / "evaluation", "pretrain")
        (place / "pretrain").mkdir()
        line = dict.fromkeys(("loss", "learning_rate", "gradient_norm", "tokens_per_second"), 2.0)
        line |= {"step": 9, "tokens": 90, "seconds": 125.0, "mfu": None} | joules
        (place / "pretrain/metrics.jsonl").write_text(json.dumps(line) + "\n")
    alone = write(tmp_path / "alone", "pretrain")
    places = [str(tmp_path / "a/run"), str(tmp_path / "b/run"), alone]
    assert main(["compare", *places, places[0]]) == 0  # what is named twice stands once
    table = cells(capsys.readouterr().out)
    assert len(table[""]) == 3 + 1, "no run hides another of its name"
    assert table["training, time"] == ["2 min 05 s", "2 min 05 s", "–", "–"]
    assert table["training, GPU energy"] == ["300 kJ", "–", "–", "–"]
    assert main(["compare", "--json", *places]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["training"] for each in found.values()] == [
        {"seconds": 125.0, "gpu_joules": 3e5},
        {"seconds": 125.0},
        {},
    ]
