"""Preference pairs: all formats, treatment of bad pairs, and no prompt on both sides."""

import gzip
import json
import re
from pathlib import Path

import duckdb
import pytest
from record_samples import Prepared, encoded, prepared, read_lines

from nanoeuler.cli import main
from nanoeuler.corpus.preferences import prepare
from nanoeuler.errors import UserError

PAIRS = [
    {"instruction": f"Say {n}.", "input": "", "chosen": f"{n}, please", "rejected": f"{n}"}
    for n in range(60)
]


def make(tmp_path: Path, value: object, share: float = 0.1) -> Prepared:
    path = tmp_path / "pairs.json"
    if value is not None:
        path.write_bytes(encoded(value))
    return prepared(prepare, path, share)


def farm(pair: dict, number: int) -> dict:
    best = 1 + number % 2
    return {
        "instruction": pair["instruction"],
        "input": pair["input"],
        f"output_{best}": pair["chosen"],
        f"output_{3 - best}": pair["rejected"],
        "preference": best,
    }


def said(role: str, text: str) -> dict:
    return {"role": role, "content": text}


def lists(pair: dict) -> dict:
    user = said("user", pair["instruction"])
    return {
        "prompt": pair["instruction"],
        **{side: [user, said("assistant", pair[side])] for side in ("chosen", "rejected")},
    }


def share_gpt(pair: dict) -> dict:
    return {
        "conversations": [{"from": "human", "value": pair["instruction"]}],
        **{side: {"from": "gpt", "value": pair[side]} for side in ("chosen", "rejected")},
    }


SHAPES = {
    "alpaca_farm": farm,
    "prompt": lambda pair, _: {
        "prompt": pair["instruction"],
        "chosen": pair["chosen"],
        "rejected": pair["rejected"],
        "preference": 1.0001,
    },
    "orca": lambda pair, _: {
        "system": "",
        "question": pair["instruction"],
        "chosen": pair["chosen"],
        "rejected": pair["rejected"],
    },
    "ultrafeedback": lambda pair, _: lists(pair),
    "lists without a prompt": lambda pair, _: {
        key: value for key, value in lists(pair).items() if key != "prompt"
    },
    "messages": lambda pair, _: {
        "messages": [said("user", pair["instruction"])],
        "chosen": pair["chosen"],
        "rejected": pair["rejected"],
    },
    "ShareGPT": lambda pair, _: share_gpt(pair),
    "this project's": lambda pair, _: pair,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_pairs(tmp_path, shape):
    manifest, train, validation = make(
        tmp_path, [SHAPES[shape](pair, number) for number, pair in enumerate(PAIRS)]
    )
    assert sorted(train + validation, key=PAIRS.index) == PAIRS
    assert (
        manifest["pairs"],
        manifest["bad"],
        manifest["chosen_is_longer"],
        manifest["licence"],
    ) == (60, {}, 60, "CC0")
    assert len(validation) == 6


@pytest.mark.parametrize("shape", ["ultrafeedback", "alpaca_farm", "ShareGPT"])
def test_parquet_and_lines_and_gzip_are_read_too(tmp_path, shape):
    values = [SHAPES[shape](pair, number) for number, pair in enumerate(PAIRS)]
    lines = "\n".join(map(json.dumps, values))
    (tmp_path / "lines.json").write_text(lines)
    duckdb.sql(
        f"copy (select * from read_json('{tmp_path}/lines.json')) "
        f"to '{tmp_path}/pairs.json' (format parquet)"
    )
    expected = make(tmp_path, None)[1:]
    assert sorted(expected[0] + expected[1], key=PAIRS.index) == PAIRS
    assert make(tmp_path, lines)[1:] == expected
    assert make(tmp_path, gzip.compress(json.dumps(values).encode()))[1:] == expected


def test_a_column_of_times_does_no_harm(tmp_path):
    columns = (
        "'q' || i as prompt, 'a' as chosen, 'b' as rejected, "
        """timestamptz '2026-01-01 00:00:00+00' as "created ""at\""""
    )
    duckdb.sql(
        f"copy (select {columns} from range(9) numbers(i)) to '{tmp_path}/pairs.json' (format "
        "parquet)"
    )
    assert make(tmp_path, None)[0]["pairs"] == 9


def test_a_conversation_keeps_its_turns_and_its_system_message(tmp_path):
    talk = [
        said("system", "Be brief."),
        said("user", "Hello!"),
        said("assistant", "Hi."),
        said("user", "How are you?"),
    ]
    pairs = [
        {"messages": talk, "chosen": "Well.", "rejected": "I am very well."},
        {"prompt": talk, "chosen": [said("assistant", "Fine.")], "rejected": "No."},
    ]
    _, train, validation = make(tmp_path, [*pairs, *PAIRS])
    found = [pair for pair in train + validation if "earlier" in pair]
    assert sorted(pair["chosen"] for pair in found) == ["Fine.", "Well."]
    for pair in found:
        assert pair["earlier"] == [{"instruction": "Be brief.\n\nHello!", "output": "Hi."}]
        assert pair["instruction"] == "How are you?"


def test_a_prompt_of_text_does_not_hide_the_turns_behind_it(tmp_path):
    """Data sets of conversations repeat the first message as `prompt`, but reply to the last."""
    talk = [said("user", "Hello!"), said("assistant", "Hi."), said("user", "How are you?")]
    pair = {
        "prompt": "Hello!",
        "chosen": [*talk, said("assistant", "Well.")],
        "rejected": [*talk, said("assistant", "No.")],
    }
    _, train, validation = make(tmp_path, [pair, *PAIRS])
    [found] = [pair for pair in train + validation if pair["chosen"] == "Well."]
    assert (found["earlier"], found["instruction"]) == (
        [{"instruction": "Hello!", "output": "Hi."}],
        "How are you?",
    )


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_an_empty_system_message_is_none(tmp_path, nothing):
    user = said("user", "x")
    pairs = [
        {"messages": [said("system", nothing), user], "chosen": "a", "rejected": "b"},
        {"system": nothing, "question": "x", "chosen": "a", "rejected": "c"},
    ]
    _, train, validation = make(tmp_path, [*pairs, *PAIRS])
    found = [pair for pair in train + validation if pair["chosen"] == "a"]
    assert [pair["instruction"] for pair in found] == ["x", "x"]


def test_replies_to_different_prompts_are_no_pair(tmp_path):
    pair = {
        "chosen": [said("user", "x"), said("assistant", "a")],
        "rejected": [said("user", "y"), said("assistant", "b")],
    }
    manifest = make(tmp_path, [pair, *PAIRS])[0]
    assert (manifest["pairs"], manifest["bad"]) == (
        60,
        {"chosen and rejected reply to different prompts": 1},
    )


def test_no_prompt_is_on_both_sides(tmp_path):
    many = [pair | {"chosen": f"{pair['chosen']} ({n})"} for pair in PAIRS for n in range(5)]
    _, train, validation = make(tmp_path, many, 0.2)
    assert len(train) + len(validation) == 300
    assert not {pair["instruction"] for pair in train} & {
        pair["instruction"] for pair in validation
    }


def test_bad_pairs_are_left_out_counted_and_told(tmp_path, capsys):
    good = {"prompt": "x", "chosen": "a", "rejected": "b"}
    outputs = {"instruction": "x", "output_1": "a", "output_2": "b"}
    bad = [
        good | {"rejected": "a"},
        good | {"rejected": " a\n"},
        good | {"chosen": "  "},
        good | {"rejected": []},
        good | {"rejected": None},
        good | {"prompt": ""},
        {"chosen": "a", "rejected": "b"},
        *(outputs | {"preference": preference} for preference in (0, 3, 1.5, "1", None, True)),
        outputs | {"preference": 1, "output_2": ""},
        {"prompt": [said("assistant", "x")], "chosen": "a", "rejected": "b"},
        {"prompt": [said("robot", "x")], "chosen": "a", "rejected": "b"},
        {"prompt": "x", "chosen": [said("user", "x")], "rejected": "b"},
        7,
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS + bad))
    config = json.dumps(
        {
            "sources": {"preferences": {"mine": {"url": str(tmp_path / "pairs.json")}}},
            "dpo": {"validation_share": 0.1},
        }
    )
    arguments = ["--config", config, "--name", "mine", "--output", str(tmp_path / "mine")]
    assert main(["preferences", *arguments]) == 0
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["pairs"] == 60
    assert manifest["bad"] == {
        "both sides are the same": 2,
        "chosen is empty": 1,
        "rejected is empty": 1,
        "rejected is missing": 1,
        "prompt is empty": 1,
        "prompt is missing": 1,
        "preference is neither 1 nor 2": 6,
        "output_2 is empty": 1,
        "the prompt: user and assistant do not take turns": 1,
        "a message of the prompt has an unknown role": 1,
        "chosen does not end with a reply": 1,
        "no JSON object": 1,
    }
    assert (
        "18 of 78 records are left out (record 61: both sides are the same; "
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            [{"instruction": "x", "input": "", "output": "y"}] * 3,
            "3 of 3 records are bad .*; give records with prompt, chosen and rejected",
        ),
        (b"[]", "holds no records"),
        (b"PAR1 and nothing that follows", "damaged parquet"),
        (b"<html>", "neither a JSON list nor lines of JSON objects"),
    ],
)
def test_a_file_without_pairs_is_one_sentence(tmp_path, content, sentence):
    with pytest.raises(UserError, match=f"pairs.json: {sentence}"):
        make(tmp_path, content)


def test_a_data_set_that_changes_at_its_source_is_refused_until_its_hash_is_given(
    server, tmp_path, capsys
):
    pairs = [{"prompt": f"Say {n}.", "chosen": f"{n}!", "rejected": str(n)} for n in range(20)]
    entry = {"url": server.put("pairs.json", json.dumps(pairs[:-1]).encode())}
    config = {"sources": {"preferences": {"mine": entry}}, "dpo": {"validation_share": 0.1}}
    output = tmp_path / "mine"
    command = ["preferences", "--name", "mine", "--output", str(output), "--config"]
    assert main([*command, json.dumps(config)]) == 0
    assert "the next download must have it" in capsys.readouterr().err
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["pairs"] == 19
    server.put("pairs.json", json.dumps(pairs).encode())
    assert main([*command, json.dumps(config)]) == 1
    refusal = capsys.readouterr().err
    assert f"{manifest['sha256'][:12]}… in {output}" in refusal
    assert json.loads((output / "manifest.json").read_text()) == manifest
    entry["sha256"] = re.search("'sha256: ([0-9a-f]{64})'", refusal).group(1)
    assert main([*command, json.dumps(config)]) == 0
    assert json.loads((output / "manifest.json").read_text())["pairs"] == 20


def test_a_name_that_is_neither_listed_nor_a_file_is_one_sentence(tmp_path):
    with pytest.raises(
        UserError,
        match=r"orka: neither a name under preferences in the sources file "
        r"\(there: orca\) nor a file; correct it",
    ):
        prepare("orka", {"orca": {"url": "x"}}, 0.1, tmp_path / "mine")


@pytest.mark.parametrize(
    ("file", "pairs"), [("alpaca_eval_pairs.jsonl.gz", 10_604), ("dpo_en_demo.json.gz", 300)]
)
def test_real_preferences(real_data, tmp_path, file, pairs):
    manifest = prepare(
        "real", {"real": {"url": str(real_data / "preferences" / file)}}, 0.05, tmp_path / "real"
    )
    assert manifest["pairs"] + manifest["duplicates"] == pairs
    assert manifest["bad"] == {}
    prompts = [
        {
            json.dumps((pair.get("earlier"), pair["instruction"], pair["input"]))
            for pair in read_lines(tmp_path / "real" / f"{part}.jsonl")
        }
        for part in ("train", "validation")
    ]
    assert not prompts[0] & prompts[1]
