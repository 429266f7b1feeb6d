"""Instructions and questions: good records, treatment of bad ones, and the held-out prompts."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from record_samples import Prepared, encoded, prepared, read_lines

from nanoeuler.cli import main
from nanoeuler.corpus.instructions import prepare
from nanoeuler.corpus.problems import prepare as prepare_problems
from nanoeuler.corpus.tasks import prepare_questions
from nanoeuler.errors import UserError
from tests.servers import BLOCK_PAGE, Fault

RECORDS = [
    {
        "instruction": f"Say {n}.",
        "input": f"n = {n}" if n % 3 == 0 else "",
        "output": f"{n}\u2028\n",
    }
    for n in range(200)
]


def write(path: Path, value: object) -> dict:
    """Write `value` (JSON, raw text or bytes) to a file, and return a section instructions.

    The file's name there is `mine`.
    """
    path.write_bytes(encoded(value, indent=4))
    return {"mine": {"url": str(path), "licence": "CC0"}}


def make(tmp_path: Path, value: object, share: float = 0.02, name: str = "file.json") -> Prepared:
    write(tmp_path / name, value)
    return prepared(prepare, tmp_path / name, share)


def test_records_come_out_unchanged_in_their_order_and_parted(tmp_path):
    manifest, train, validation = make(tmp_path, RECORDS, 0.1)
    assert len(validation) == 20
    assert sorted(train + validation, key=RECORDS.index) == RECORDS
    assert train == sorted(train, key=RECORDS.index)
    assert json.loads((tmp_path / "mine" / "manifest.json").read_text()) == manifest
    assert manifest["licence"] == "CC0"
    assert manifest["sha256"] == hashlib.sha256((tmp_path / "file.json").read_bytes()).hexdigest()
    assert (
        manifest["records"],
        manifest["with_input"],
        manifest["bad"],
        manifest["duplicates"],
    ) == (200, 67, {}, 0)
    for part in ("train", "validation"):
        content = (tmp_path / "mine" / f"{part}.jsonl").read_bytes()
        assert (manifest[part]["bytes"], manifest[part]["sha256"]) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
    assert manifest["train"]["records"] == 180


def test_every_form_of_the_file_gives_the_same_records(tmp_path):
    expected = make(tmp_path, RECORDS)[1:]
    lines = "\ufeff" + "".join(
        json.dumps(record, ensure_ascii=False) + "\r\n" for record in RECORDS
    )
    dolly = "\n".join(
        json.dumps(
            {
                "instruction": r["instruction"],
                "context": r["input"],
                "response": r["output"],
                "category": "qa",
            }
        )
        for r in RECORDS
    )
    prompted = [
        {"completion": r["output"], "prompt": r["instruction"], "input": r["input"], "label": True}
        for r in RECORDS
    ]
    without_input = [{key: value for key, value in record.items() if value} for record in RECORDS]
    with_null = [record | {"input": record["input"] or None} for record in RECORDS]
    for form in (
        lines,
        dolly,
        prompted,
        gzip.compress(json.dumps(RECORDS).encode()),
        without_input,
        with_null,
    ):
        assert make(tmp_path, form)[1:] == expected


def test_who_is_held_out_depends_on_the_record_alone(tmp_path):
    held_out = make(tmp_path, RECORDS, 0.1)[2]
    assert sorted(make(tmp_path, RECORDS[::-1], 0.1)[2], key=RECORDS.index) == held_out
    more = RECORDS + [
        {"instruction": f"Another {n}", "input": "", "output": "x"} for n in range(200)
    ]
    assert {r["instruction"] for r in make(tmp_path, more, 0.05)[2]} & {
        r["instruction"] for r in held_out
    }


def test_records_of_one_prompt_stay_together_and_copies_count_once(tmp_path):
    twice = RECORDS + [record | {"output": "another answer"} for record in RECORDS] + RECORDS[:7]
    manifest, train, validation = make(tmp_path, twice, 0.1)
    assert manifest["duplicates"] == 7
    prompts = [
        {(record["instruction"], record["input"]) for record in part}
        for part in (train, validation)
    ]
    assert not prompts[0] & prompts[1]
    assert 40 <= len(validation) <= 42


@pytest.mark.parametrize(("count", "share"), [(2, 0.02), (2, 0.5), (3, 0.0001), (3, 0.5)])
def test_there_is_a_record_on_each_side(tmp_path, count, share):
    _, train, validation = make(tmp_path, RECORDS[:count], share)
    assert train
    assert validation


def test_bad_records_are_left_out_counted_and_told(tmp_path, capsys):
    bad = [
        {"input": "", "output": "no instruction"},
        {"instruction": "  ", "input": "", "output": "x"},
        {"instruction": "x", "input": "", "output": ""},
        {"instruction": "x", "input": ""},
        {"instruction": ["x"], "input": "", "output": "x"},
        {"instruction": "x", "input": 5, "output": "x"},
        {"instruction": "x", "input": "", "output": None},
        "just text",
        {"instruction": "half of a letter \ud83d", "input": "", "output": "x"},
    ]
    sources = write(tmp_path / "file.json", RECORDS[:10] + bad)
    config = json.dumps({"sources": {"instructions": sources}, "sft": {"validation_share": 0.2}})
    arguments = ["--config", config, "--name", "mine", "--output", str(tmp_path / "mine")]
    assert main(["instructions", *arguments]) == 0
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["records"] == 10
    assert manifest["validation"]["records"] == 2
    assert manifest["bad"] == {
        "instruction is missing": 1,
        "instruction is empty": 1,
        "output is empty": 1,
        "output is missing": 2,
        "instruction is not text": 1,
        "input is not text": 1,
        "no JSON object": 1,
        "instruction has half a character (a lone surrogate)": 1,
    }
    said = capsys.readouterr().err
    assert (
        "9 of 19 records are left out (record 11: instruction is missing; record 12: "
        "instruction is empty;" in said
    )
    assert "record 15: instruction is not text; …)" in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            [{"text": "x"}] * 3,
            r"3 of 3 records are bad \(record 1: instruction is missing; .*\); "
            r"give records with the texts instruction \(or question, or prompt\), output",
        ),
        (RECORDS[:4] + [{}] * 5, "5 of 9 records are bad"),
        (b"[]", "holds no records"),
        (b"", "neither a JSON list nor lines of JSON objects; it begins with ''"),
        (BLOCK_PAGE, ".* it begins with '<!DOCTYPE html> "),
        (
            json.dumps(RECORDS)[:-100],
            r"not valid JSON: .* in line 1, column \d+; it may have been cut off",
        ),
        (gzip.compress(json.dumps(RECORDS).encode(), mtime=0)[:-50], "damaged gzip"),
        ('{"instruction": "caf\xe9"'.encode("latin-1"), "not UTF-8 text"),
        (RECORDS[:1], "1 record of one prompt: too few"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path, content, sentence):
    with pytest.raises(UserError, match=rf"file.json: {sentence}") as caught:
        make(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mine").exists()


def test_a_broken_line_is_one_bad_record(tmp_path):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    assert make(tmp_path, lines[:-20])[0]["bad"] == {"no JSON object": 1}


@pytest.mark.parametrize("monster", ["[" * 100_000, '{"instruction": ' + "7" * 5_000 + "}"])
def test_json_that_python_cannot_read_is_bad_too(tmp_path, monster):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    assert make(tmp_path, lines + monster)[0]["bad"] == {"no JSON object": 1}
    with pytest.raises(
        UserError, match=r"not valid JSON: beyond what can be read \(.*\); it may have been cut off"
    ):
        make(tmp_path, f"[{monster}]")


def test_a_file_of_your_own_needs_no_entry(tmp_path):
    file = tmp_path / "own.json"
    write(file, RECORDS)
    assert prepare(str(file), {}, 0.02, tmp_path / "own")["records"] == 200
    with pytest.raises(
        UserError,
        match=r"alpacca: neither a name under instructions in the sources file "
        r"\(there: alpaca\) nor a file",
    ):
        prepare("alpacca", {"alpaca": {"url": "x"}}, 0.02, tmp_path / "x")


def test_instructions_come_over_http(server, tmp_path):
    content = json.dumps(RECORDS).encode()
    address = server.put("alpaca.json", content)
    server.fail(
        "/alpaca.json",
        Fault(truncate=True, after=500),
        Fault(status=429, headers={"Retry-After": "0"}),
    )
    entry = {"url": address, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert (
        prepare("alpaca", {"alpaca": entry}, 0.02, tmp_path / "data" / "alpaca")["records"] == 200
    )
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["alpaca"]
    server.put("alpaca.json", content.replace(b"Say", b"Sag"))
    with pytest.raises(UserError, match="SHA-256"):
        prepare("alpaca", {"alpaca": entry}, 0.02, tmp_path / "data" / "alpaca")
    assert (tmp_path / "data" / "alpaca" / "manifest.json").exists()


def test_questions_are_checked_and_copied(server, tmp_path):
    lines = [
        {"instruction": "Who?", "answer": "Ada", "kind": "person"},
        {"instruction": "Where?", "input": "a map", "answer": "here\u2028"},
    ]
    address = server.put("questions.jsonl", "\n".join(map(json.dumps, lines)).encode())
    config = json.dumps({"sources": {"questions": {"world": {"url": address}}}})
    output = tmp_path / "questions" / "world.jsonl"
    assert main(["questions", "--config", config, "--name", "world", "--output", str(output)]) == 0
    assert read_lines(output) == [{"input": "", **lines[0]}, lines[1]]
    names = sorted(path.name for path in output.parent.iterdir())
    assert names == ["world.jsonl", "world.jsonl.first.json"]
    assert main(["questions", "--config", config, "--name", "moon", "--output", str(output)]) == 1


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"instruction": "Who?"}, "answer is missing"),
        ({"instruction": "Who?", "answer": " "}, "answer is empty"),
        ({"instruction": "Who?", "answer": 7}, "answer is not text"),
        ({"instruction": "Who?", "answer": "x", "kind": 3}, "kind is not text"),
        (["Who?"], "not a JSON object"),
    ],
)
def test_a_bad_question_stops_the_stage_with_its_line(tmp_path, question, problem):
    file = tmp_path / "questions.jsonl"
    file.write_text(
        json.dumps({"instruction": "a", "answer": "b"}) + "\n" + json.dumps(question) + "\n"
    )
    with pytest.raises(UserError, match=rf"questions.jsonl, line 2: {problem}; "):
        prepare_questions("world", {"world": {"url": str(file)}}, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_real_alpaca_records(real_data, tmp_path):
    sources = {
        "alpaca": {
            "url": str(real_data / "alpaca" / "alpaca_data_subset.json.gz"),
            "licence": "CC BY-NC 4.0",
        }
    }
    manifest = prepare("alpaca", sources, 0.02, tmp_path / "alpaca")
    assert manifest["records"] + sum(manifest["bad"].values()) + manifest["duplicates"] == 24_896
    assert manifest["bad"] == {"output is empty": 9, "output is a placeholder": 33}
    assert manifest["with_input"] == pytest.approx(0.39 * 24_896, rel=0.05)
    assert manifest["validation"]["records"] == pytest.approx(0.02 * 24_815, abs=3)


def test_conversations_become_their_last_turn_with_the_earlier_ones(tmp_path):
    def said(role, text):
        return {"role": role, "content": text}

    talk = [
        said("system", "Be brief."),
        said("user", "Hello!"),
        said("assistant", "Hi."),
        said("user", "Who?"),
        said("assistant", "I."),
        said("user", "Bye."),
    ]
    share_gpt = [{"from": "human", "value": "Hello!"}, {"from": "gpt", "value": "Hi."}]
    bad = [
        {"messages": [said("user", "Hello!")]},
        {"messages": [said("assistant", "Hi.")]},
        {"messages": "Hello!"},
    ]
    manifest, train, validation = make(
        tmp_path, [{"messages": talk}, {"conversations": share_gpt}, *bad, *RECORDS[:5]], 0.2
    )
    records = train + validation
    earlier = [{"instruction": "Be brief.\n\nHello!", "output": "Hi."}]
    assert {"instruction": "Who?", "input": "", "output": "I.", "earlier": earlier} in records
    assert {"instruction": "Hello!", "input": "", "output": "Hi."} in records
    assert (manifest["conversations"], manifest["records"]) == (1, 7)
    assert manifest["bad"] == {
        "messages has no reply": 1,
        "messages is empty": 1,
        "messages is not a list": 1,
    }


def test_a_question_and_its_answer_are_an_instruction_with_its_calls_and_final_number(tmp_path):
    """As GSM8K has them. An `answer` beside an instruction's output is another thing."""
    answer = "She has 3*4 = <<3*4=12>>12 eggs.\nShe sells <<12-2=10>>10.\n#### 10"
    asked = {"question": "How many eggs does Ada sell?", "answer": answer}
    both = {"instruction": "Add 1 and 2.", "output": "It is 3.", "answer": "3"}
    differing = {"instruction": "Answer.", "question": "1 + 2?", "output": "3"}
    manifest, train, validation = make(tmp_path, [asked, both, differing, *RECORDS[:5]], 0.2)
    records = train + validation
    assert {"instruction": asked["question"], "input": "", "output": answer} in records
    assert {"instruction": "Add 1 and 2.", "input": "", "output": "It is 3."} in records
    assert manifest["not_read"] == {"answer": 1}
    assert manifest["bad"] == {"instruction and question differ": 1}


def test_instructions_and_problems_of_a_file_hold_out_the_same_questions(tmp_path):
    """So that `rl` learns from no problem that `sft` is measured on, and the reverse."""
    sums = [
        {"question": f"What is {n} + 1?", "answer": f"<<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
        for n in range(100)
    ]
    write(tmp_path / "sums.jsonl", sums)
    _, _, instructions = prepared(prepare, tmp_path / "sums.jsonl", 0.1)
    _, _, problems = prepared(prepare_problems, tmp_path / "sums.jsonl", 0.1)
    assert [each["instruction"] for each in instructions] == [
        each["instruction"] for each in problems
    ]
    assert [each["output"].rpartition(" ")[2] for each in instructions] == [
        each["answer"] for each in problems
    ]
    assert len(problems) == 10


def test_a_mixture_takes_each_file_by_its_weight_and_holds_out_every_prompt_once(tmp_path):
    files = {
        "few": RECORDS[:100],
        "half": RECORDS[100:],
        "messages": [
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Ho"},
                ]
            }
        ],
    }
    for name, records in files.items():
        write(tmp_path / f"{name}.json", records)
    weights = {"few": 3, "half": 0.5, "messages": 1}
    mixture = [
        {"url": str(tmp_path / f"{name}.json"), "weight": weight, "licence": f"CC {name}"}
        for name, weight in weights.items()
    ]
    manifest = prepare("mix", {"mix": {"mixture": mixture}}, 0.1, tmp_path / "mix")
    train, validation = (
        read_lines(tmp_path / "mix" / "train.jsonl"),
        read_lines(tmp_path / "mix" / "validation.jsonl"),
    )
    assert (manifest["records"], manifest["licence"]) == (201, "CC few; CC half; CC messages")
    assert [member["records"] for member in manifest["mixture"]] == [100, 100, 1]
    assert len(validation) == 20
    assert not [record for record in train if record in validation]
    counts = [train.count(record) for record in RECORDS]
    assert set(counts[:100]) == {0, 3}
    assert set(counts[100:]) == {0, 1}
    assert sum(counts[100:]) == pytest.approx(45, abs=12)
    assert prepare("mix", {"mix": {"mixture": mixture}}, 0.1, tmp_path / "mix") == manifest


def test_a_file_of_a_mixture_without_a_licence_is_told(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", [record | {"input": name} for record in RECORDS])
    entry = {
        "mixture": [
            {"url": str(tmp_path / "a.json"), "licence": "CC0"},
            {"url": str(tmp_path / "b.json")},
        ]
    }
    assert prepare("mix", {"mix": entry}, 0.1, tmp_path / "mix")["licence"] == "CC0; unknown"
    assert (
        prepare("mix", {"mix": entry | {"licence": "MIT"}}, 0.1, tmp_path / "mix")["licence"]
        == "MIT; CC0"
    )


def test_a_record_in_two_files_of_a_mixture_is_one(tmp_path):
    write(tmp_path / "file.json", RECORDS)
    manifest = prepare(
        "mix",
        {"mix": {"mixture": [{"url": str(tmp_path / "file.json")}] * 2}},
        0.1,
        tmp_path / "mix",
    )
    assert (manifest["records"], manifest["duplicates"]) == (200, 200)


def test_an_entry_without_an_address_is_one_sentence(tmp_path):
    with pytest.raises(
        UserError, match=r"instructions\.mix in the sources file has neither a url nor a mixture"
    ):
        prepare("mix", {"mix": {"licence": "CC0"}}, 0.1, tmp_path / "mix")
