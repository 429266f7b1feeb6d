"""Multiple-choice tasks: all layouts give the same items; bad records are counted or refused."""

import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from record_samples import lines, read_lines

from nanoeuler.cli import main
from nanoeuler.corpus.sources.data_sets import TASKS, describe
from nanoeuler.corpus.task_layouts import BadItem, read_item
from nanoeuler.corpus.tasks import prepare
from nanoeuler.errors import UserError

HELLASWAG = {
    "ind": 24,
    "activity_label": "Mending a net",
    "ctx_a": "A woman sits on the quay [title] with a net.",
    "ctx_b": "she",
    "endings": ["[step] ties  the first knot.", "sings.", "swims away.", "sleeps."],
    "label": "0",
    "source_id": "made up",
}
ARC = {
    "id": "Q_7",
    "question": {
        "stem": "What floats?",
        "choices": [
            {"text": "a cork", "label": "1"},
            {"text": "a nail", "label": "2"},
            {"text": "a stone", "label": "3"},
        ],
    },
    "answerKey": "2",
}
PIQA = {
    "goal": "Dry a wet book",
    "sol1": "Put paper between its pages",
    "sol2": "Put it in the oven",
    "label": 0,
}
WINOGRANDE = {
    "qID": "w1",
    "sentence": "The cup did not fit in the box because _ was too big.",
    "option1": "the cup",
    "option2": "the box",
    "answer": "1",
}
BLIMP = {
    "sentence_good": "The cats sleep.",
    "sentence_bad": "The cats sleeps.",
    "UID": "agreement",
    "pairID": "3",
    "field": "syntax",
}
LAMBADA = {"text": "He opened the old red door\nand saw the sea"}
ITEMS = {
    "hellaswag": {
        "id": "24",
        "contexts": ["Mending a net: A woman sits on the quay. with a net. She"],
        "choices": [" ties the first knot.", "sings.", "swims away.", "sleeps."],
        "gold": 0,
    },
    "arc_easy": {
        "id": "Q_7",
        "contexts": ["Question: What floats?\nAnswer:"],
        "choices": ["a cork", "a nail", "a stone"],
        "gold": 1,
    },
    "piqa": {
        "id": "5",
        "contexts": ["Question: Dry a wet book\nAnswer:"],
        "choices": ["Put paper between its pages", "Put it in the oven"],
        "gold": 0,
    },
    "winogrande": {
        "id": "w1",
        "contexts": [
            "The cup did not fit in the box because the cup",
            "The cup did not fit in the box because the box",
        ],
        "choices": ["was too big."],
        "gold": 0,
    },
    "blimp": {
        "id": "agreement/3",
        "group": "agreement",
        "contexts": [""],
        "choices": ["The cats sleep.", "The cats sleeps."],
        "gold": 0,
    },
    "lambada": {
        "id": "5",
        "contexts": ["He opened the old red door\nand saw the"],
        "choices": ["sea"],
        "gold": 0,
    },
}
OFFICIAL = {
    "hellaswag": HELLASWAG,
    "arc_easy": ARC,
    "piqa": PIQA,
    "winogrande": WINOGRANDE,
    "blimp": BLIMP,
    "lambada": LAMBADA,
}
FOUNDRY = {
    "hellaswag": {
        "query": ITEMS["hellaswag"]["contexts"][0],
        "choices": ITEMS["hellaswag"]["choices"],
        "gold": 0,
    },
    "arc_easy": {
        "query": "Question: What floats?",
        "choices": ["a cork", "a nail", "a stone"],
        "gold": 1,
    },
    "piqa": {"query": "Question: Dry a wet book\n", "choices": ITEMS["piqa"]["choices"], "gold": 0},
    "winogrande": {
        "context_options": ITEMS["winogrande"]["contexts"],
        "continuation": "was too big.",
        "gold": 0,
    },
    "lambada": {"context": "He opened the old red door\nand saw the", "continuation": "sea"},
}


FEW_SHOT = {
    "multiple_choice": (
        {"query": " Does a cork float?\n", "choices": ["no", "yes"], "gold": 1, "category": "sea"},
        {"contexts": ["Does a cork float?\nA:"], "choices": ["no", "yes"], "gold": 1},
    ),
    "schema": (
        {"context_options": ["the cup ", "the box "], "continuation": " was big. ", "gold": 1},
        {"contexts": ["the cup\nA:", "the box\nA:"], "choices": ["was big."], "gold": 1},
    ),
    "language_modelling": (
        {"context": "A cork ", "continuation": " floats", "category": "sea"},
        {"contexts": ["A cork\nA:"], "choices": ["floats"], "gold": 0},
    ),
}


@pytest.mark.parametrize("kind", FEW_SHOT)
def test_a_delimiter_stands_behind_a_context_and_a_category_is_a_group(kind):
    record, item = FEW_SHOT[kind]
    group = {"group": record["category"]} if "category" in record else {}
    assert read_item(kind, record, 3, "\nA:") == {"id": "3"} | item | group


CHAT = {
    "chat_choice": (
        ARC,
        "What floats?\nA. a cork\nB. a nail\nC. a stone\nAnswer with the letter alone.",
        ["A", "B", "C"],
        1,
    ),
    "chat_number": (
        {"question": "How many boats are 2 and 3?", "answer": "2+3 = <<2+3=5>>5\n#### 5"},
        "How many boats are 2 and 3?",
        ["5"],
        0,
    ),
    "chat_spelling": (
        LAMBADA,
        "Spell this word, with a space between its letters: sea",
        ["s e a"],
        0,
    ),
}


@pytest.mark.parametrize("kind", CHAT)
def test_what_is_said_in_a_chat_has_the_answer_that_is_wanted(kind):
    record, said, choices, gold = CHAT[kind]
    item = read_item(kind, record, 1)
    assert (item["contexts"], item["choices"], item["gold"]) == ([said], choices, gold)


def test_a_task_of_a_chat_takes_no_shots():
    task = {"name": "sums", "kind": "chat_number", "url": "sums.jsonl", "shots": 2}
    with pytest.raises(UserError, match=r"sums: has shots, but chat_number is asked through"):
        describe({"evaluate": {"tasks": [task]}}, "sums")


@pytest.mark.parametrize("kind", OFFICIAL)
def test_the_official_layout_gives_the_item_that_the_harness_asks(kind):
    assert read_item(kind, OFFICIAL[kind], 5) == ITEMS[kind]


@pytest.mark.parametrize("kind", FOUNDRY)
def test_the_layout_of_llm_foundry_gives_the_same_item(kind):
    assert {
        key: value for key, value in read_item(kind, FOUNDRY[kind], 5).items() if key != "id"
    } == {key: value for key, value in ITEMS[kind].items() if key != "id"}


def test_hugging_faces_columns_and_a_context_in_one_piece_are_read_too():
    columns = {
        "id": "Q_7",
        "question": "What floats?",
        "choices": {"text": ["a cork", "a nail", "a stone"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    }
    assert read_item("arc_challenge", columns, 1) == ITEMS["arc_easy"]
    columns = {key: value for key, value in BLIMP.items() if key != "pairID"} | {"pair_id": 3}
    assert read_item("blimp", columns, 1) == ITEMS["blimp"]
    whole = {key: value for key, value in HELLASWAG.items() if not key.startswith("ctx")} | {
        "ctx": "A woman sits. she"
    }
    assert read_item("hellaswag", whole, 1)["contexts"] == ["Mending a net: A woman sits. she"]


BAD = {
    "no JSON object": ("piqa", "text"),
    "label is missing or no whole number": ("piqa", {**PIQA, "label": None}),
    "gold is missing or no whole number": (
        "piqa",
        {"query": "Why?", "choices": ["a", "b"], "gold": "7" * 5_000},
    ),
    "gold is out of range": ("piqa", {**PIQA, "label": 2}),
    "a choice is empty": ("piqa", {**PIQA, "sol2": " "}),
    "goal is missing or not text": ("piqa", {"sentence_good": "a", "sentence_bad": "b"}),
    "endings are missing or empty": ("hellaswag", {**HELLASWAG, "endings": []}),
    "fewer than two choices": ("hellaswag", {**HELLASWAG, "endings": ["one"]}),
    "answerKey is none of the labels": ("arc_easy", {**ARC, "answerKey": "E"}),
    "choices have not as many labels as texts": (
        "arc_easy",
        {**ARC, "question": "Why?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2"]}},
    ),
    "choices are missing or not of the shape text, label": (
        "arc_easy",
        {"question": "Why?", "answerKey": "A"},
    ),
    "sentence has no _": ("winogrande", {**WINOGRANDE, "sentence": "Nothing is left out."}),
    "answer is missing or no whole number": ("winogrande", {**WINOGRANDE, "answer": ""}),
    "text has half a character (a lone surrogate)": ("lambada", {"text": "a \ud800"}),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_record_that_cannot_be_asked_says_why(problem):
    kind, record = BAD[problem]
    with pytest.raises(BadItem) as caught:
        read_item(kind, record, 1)
    assert str(caught.value) == problem


def items_of(folder: Path) -> list[dict]:
    return read_lines(folder / "items.jsonl")


def test_a_task_comes_from_an_address_with_its_hash_and_bad_records_are_counted(
    server, tmp_path, capsys
):
    content = gzip.compress(
        lines(PIQA, {**PIQA, "label": 7}, PIQA, {**PIQA, "sol1": ""}, PIQA), mtime=0
    )
    address = server.put("piqa.jsonl.gz", content)
    config = {
        "sources": {
            "tasks": {
                "piqa": {
                    "url": address,
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "licence": "MIT",
                }
            }
        }
    }
    words = "task", "--config", json.dumps(config), "--name", "piqa", "--output"
    assert main([*words, str(tmp_path / "piqa")]) == 0
    manifest = json.loads((tmp_path / "piqa/manifest.json").read_text())
    assert (manifest["kind"], manifest["items"], manifest["licence"]) == ("piqa", 3, "MIT")
    assert manifest["bad"] == {"gold is out of range": 1, "a choice is empty": 1}
    assert [item["id"] for item in items_of(tmp_path / "piqa")] == ["1", "3", "5"]
    assert "line 2: gold is out of range; line 4: a choice is empty" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["piqa"]
    config["sources"]["tasks"]["piqa"]["sha256"] = "0" * 64
    words = "task", "--config", json.dumps(config), "--name", "piqa", "--output"
    assert main([*words, str(tmp_path / "other")]) == 1
    assert "SHA-256" in capsys.readouterr().err


def test_a_file_of_another_layout_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "blimp.jsonl").write_bytes(lines(BLIMP, BLIMP))
    with pytest.raises(
        UserError,
        match=r"2 of 2 records do not have the layout of piqa "
        r"\(line 1: goal is missing or not text; .*\); correct kind or address",
    ):
        prepare({"name": "x", "kind": "piqa", "url": str(tmp_path / "blimp.jsonl")}, tmp_path / "x")
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(UserError, match="neither a JSON list nor lines of JSON objects"):
        prepare({"name": "x", "kind": "piqa", "url": str(tmp_path / "page.html")}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_zip_archive_and_a_folder_give_the_same_items(tmp_path):
    other = {**BLIMP, "UID": "binding", "pairID": "0"}
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp/agreement.jsonl").write_bytes(lines(BLIMP))
    (tmp_path / "blimp/binding.jsonl").write_bytes(lines(other))
    with zipfile.ZipFile(tmp_path / "blimp.zip", "w") as archive:
        for name in ("binding", "agreement"):
            archive.write(tmp_path / f"blimp/{name}.jsonl", f"blimp/{name}.jsonl")
        archive.writestr("blimp/README.md", "about")
        archive.writestr("__MACOSX/blimp/agreement.jsonl", "rubbish")
    for name in ("blimp", "blimp.zip"):
        prepare(
            {"name": "blimp", "kind": "blimp", "url": str(tmp_path / name)},
            tmp_path / f"out of {name}",
        )
    assert (
        items_of(tmp_path / "out of blimp")
        == items_of(tmp_path / "out of blimp.zip")
        == [ITEMS["blimp"], ITEMS["blimp"] | {"id": "binding/0", "group": "binding"}]
    )
    one = prepare(
        {
            "name": "b",
            "kind": "blimp",
            "url": str(tmp_path / "blimp.zip"),
            "members": "*/binding.jsonl",
        },
        tmp_path / "one",
    )
    assert one["items"] == 1
    with pytest.raises(UserError, match=r"the archive holds no \*/dev.jsonl"):
        prepare(
            {
                "name": "b",
                "kind": "blimp",
                "url": str(tmp_path / "blimp.zip"),
                "members": "*/dev.jsonl",
            },
            tmp_path / "none",
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.jsonl file"):
        prepare({"name": "b", "kind": "blimp", "url": str(tmp_path / "empty")}, tmp_path / "none")


def test_answers_in_a_file_of_their_own_are_put_to_their_questions(tmp_path):
    unlabelled = {key: value for key, value in PIQA.items() if key != "label"}
    (tmp_path / "valid.jsonl").write_bytes(lines(unlabelled, unlabelled))
    (tmp_path / "valid-labels.lst").write_text("1\n0\n")
    with zipfile.ZipFile(tmp_path / "piqa.zip", "w") as archive:
        for name in ("valid.jsonl", "valid-labels.lst"):
            archive.write(tmp_path / name, f"physicaliqa/{name}")
    for name in ("valid.jsonl", "piqa.zip"):
        prepare({"name": "piqa", "kind": "piqa", "url": str(tmp_path / name)}, tmp_path / "piqa")
        assert [item["gold"] for item in items_of(tmp_path / "piqa")] == [1, 0]


@pytest.mark.parametrize("answers", [b"1\n", b"1\n0\n1\n"])
def test_answers_that_are_not_one_for_each_question_are_refused(tmp_path, answers):
    """It would be unknown which answer belongs to which question."""
    unlabelled = {key: value for key, value in PIQA.items() if key != "label"}
    (tmp_path / "valid.jsonl").write_bytes(lines(unlabelled, unlabelled))
    (tmp_path / "valid-labels.lst").write_bytes(answers)
    with pytest.raises(
        UserError,
        match=r"valid.jsonl: 2 records, but (1 answer|3 answers) in -labels.lst beside it",
    ):
        prepare(
            {"name": "piqa", "kind": "piqa", "url": str(tmp_path / "valid.jsonl")},
            tmp_path / "piqa",
        )
    (tmp_path / "valid-labels.lst").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8 text"):
        prepare(
            {"name": "piqa", "kind": "piqa", "url": str(tmp_path / "valid.jsonl")},
            tmp_path / "piqa",
        )


def test_a_task_is_what_the_sources_file_says_under_what_its_entry_says():
    listed = {
        "tasks": {
            "piqa": {"url": "https://example.org/piqa.jsonl", "sha256": None},
            "quiz": {"url": "quiz.jsonl", "kind": "arc_easy"},
        }
    }
    config = {
        "sources": listed,
        "evaluate": {
            "tasks": [
                {"name": "piqa"},
                {"name": "quiz"},
                {"name": "mine", "url": "mine.jsonl", "kind": "lambada"},
            ]
        },
    }
    assert describe(config, "piqa") == {
        "name": "piqa",
        "url": "https://example.org/piqa.jsonl",
        "sha256": None,
        "kind": "piqa",
    }
    assert describe(config, "quiz")["kind"] == "arc_easy"
    assert describe(config, "mine") == {
        "name": "mine",
        "url": "mine.jsonl",
        "kind": "lambada",
        "licence": "your own file",
    }
    with pytest.raises(
        UserError, match=r"boolq: no name under tasks in the sources file \(there: piqa, quiz\)"
    ):
        describe(config, "boolq")
    with pytest.raises(
        UserError, match="boolq is no kind of task; give kind as one of hellaswag, "
    ):
        describe({"evaluate": {"tasks": [{"name": "boolq", "url": "boolq.jsonl"}]}}, "boolq")


def test_a_group_stands_for_its_tasks_which_need_baselines(tmp_path, capsys):
    (tmp_path / "quiz.jsonl").write_bytes(lines(*[FEW_SHOT["multiple_choice"][0]] * 3))
    entry = {"url": str(tmp_path / "quiz.jsonl"), "kind": "multiple_choice", "group": "core"}
    listed = {"a": entry | {"baseline": 0.5, "shots": 2}, "b": entry | {"baseline": 0.25}}
    config = {"sources": {"tasks": listed}, "evaluate": {"tasks": [{"name": "core", "limit": 1}]}}
    assert TASKS.names(config) == ["a", "b"]
    assert TASKS.chosen(config)["b"]["limit"] == 1
    config["evaluate"]["tasks"] = [{"name": "a", "shots": 1}]
    assert describe(config, "a") == {"name": "a"} | listed["a"] | {"shots": 1}
    command = ["task", "--config", json.dumps(config), "--name"]
    assert main([*command, "core", f"--output={tmp_path / 'core'}"]) == 0
    manifests = [json.loads((tmp_path / f"core/{name}/manifest.json").read_text()) for name in "ab"]
    assert [(each["shots"], each["baseline"], each["group"]) for each in manifests] == [
        (1, 0.5, "core"),
        (None, 0.25, "core"),
    ]
    listed["b"] = entry
    assert main(["task", "--config", json.dumps(config), "--name=b", f"--output={tmp_path}/b"]) == 1
    assert "b: has no baseline, by which the scores of the group core" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"\(there: core\)"):
        describe(config, "c")


def test_more_shots_than_other_items_are_refused(tmp_path):
    (tmp_path / "quiz.jsonl").write_bytes(lines(*[FEW_SHOT["multiple_choice"][0]] * 3))
    task = {"name": "quiz", "kind": "multiple_choice", "url": str(tmp_path / "quiz.jsonl")}
    prepare(task | {"shots": 2}, tmp_path / "quiz")
    with pytest.raises(UserError, match=r"shots is 3, but an item has only 2 others of its kind"):
        prepare(task | {"shots": 3}, tmp_path / "quiz")


REAL = {
    "hellaswag": ("hellaswag_val_a.jsonl.gz", 5042),
    "arc_easy": ("arc_easy_a.jsonl.gz", 1188),
    "arc_challenge": ("arc_challenge_a.jsonl.gz", 586),
    "piqa": ("piqa_a.jsonl.gz", 919),
    "winogrande": ("winogrande_a.jsonl.gz", 633),
    "blimp": ("blimp_a.zip", 33_500),
    "lambada": ("lambada_openai_a.jsonl.gz", 2576),
}


@pytest.mark.parametrize("kind", REAL)
def test_the_public_files_are_read_whole(kind, real_data, tmp_path):
    file, items = REAL[kind]
    manifest = prepare(
        {"name": kind, "kind": kind, "url": str(real_data / "eval" / file)}, tmp_path / kind
    )
    assert (manifest["items"], manifest["bad"]) == (items, {})
