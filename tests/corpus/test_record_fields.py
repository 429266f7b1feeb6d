"""Fields of foreign records: each is used, or counted by name, and none changes what is learned."""

import json
from pathlib import Path

import duckdb
import pytest
from record_samples import prepared, read_lines

from nanoeuler.cli import main
from nanoeuler.corpus import instructions, preferences, tasks
from nanoeuler.errors import UserError

GOOD = [{"instruction": f"Say {n}.", "input": "", "output": f"{n}"} for n in range(40)]
PAIRS = [{"prompt": f"Say {n}.", "chosen": f"{n}!", "rejected": f"{n}"} for n in range(40)]


def said(role: str, text: object, **more: object) -> dict:
    return {"role": role, "content": text, **more}


def read(tmp_path: Path, record: object) -> dict | str:
    """What `record` becomes among good ones, or what it is counted as."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps([record, *GOOD]))
    manifest, train, validation = prepared(instructions.prepare, path, 0.1)
    found = [each for each in train + validation if each not in GOOD]
    assert len(found) + len(manifest["bad"]) == 1
    return found[0] if found else next(iter(manifest["bad"]))


def read_pair(tmp_path: Path, pair: object) -> dict | str:
    path = tmp_path / "file.json"
    path.write_text(json.dumps([pair, *PAIRS]))
    manifest, train, validation = prepared(preferences.prepare, path, 0.1)
    found = [each for each in train + validation if not each["instruction"].startswith("Say ")]
    assert len(found) + len(manifest["bad"]) == 1
    return found[0] if found else next(iter(manifest["bad"]))


@pytest.mark.parametrize("nothing", [None, "", " \n"])
def test_an_input_that_holds_nothing_does_not_hide_the_context(tmp_path, nothing):
    dolly = {"instruction": "Who?", "input": nothing, "context": "Ada sails.", "response": "Ada"}
    expected = {"instruction": "Who?", "input": "Ada sails.", "output": "Ada"}
    assert read(tmp_path, dolly) == expected
    assert read(tmp_path, dolly | {"output": nothing}) == expected
    assert read(tmp_path, dolly | {"input": "Bob sails."}) == "input and context differ"


def test_a_system_message_is_the_first_paragraph_of_the_first_instruction(tmp_path):
    for name in ("system", "system_prompt"):
        record = {"instruction": "Who?", "input": "x", name: "Be brief.", "output": "Ada"}
        assert read(tmp_path, record)["instruction"] == "Be brief.\n\nWho?"
        talk = {name: "Be brief.", "conversations": [said("user", "Who?"), said("gpt", "Ada")]}
        assert read(tmp_path, talk)["instruction"] == "Be brief.\n\nWho?"
        talk["conversations"].insert(0, said("system", "Be brief."))
        assert read(tmp_path, talk)["instruction"] == "Be brief.\n\nWho?"
        talk["conversations"][0] = said("system", "Be long.")
        assert read(tmp_path, talk) == "system and the system message differ"
    assert read(tmp_path, record | {"system_prompt": 7}) == "system is not text"


def test_a_system_message_within_a_conversation_stays_where_it_is(tmp_path):
    """As the chat template renders it: messages up to a reply are paragraphs of one prompt."""
    talk = [
        said("user", "Hello!"),
        said("developer", "Shout."),
        said("assistant", "HI."),
        said("system", "Whisper."),
        said("user", "Who?"),
        said("assistant", "i."),
    ]
    assert read(tmp_path, {"messages": talk}) == {
        "instruction": "Whisper.\n\nWho?",
        "input": "",
        "output": "i.",
        "earlier": [{"instruction": "Hello!\n\nShout.", "output": "HI."}],
    }


def test_the_history_of_a_record_is_its_earlier_turns(tmp_path):
    record = {
        "instruction": "And?",
        "input": "x",
        "output": "Two.",
        "system": "Be brief.",
        "history": [["Count.", "Zero."], ["Go on.", "One."]],
    }
    expected = {
        "instruction": "And?",
        "input": "x",
        "output": "Two.",
        "earlier": [
            {"instruction": "Be brief.\n\nCount.", "output": "Zero."},
            {"instruction": "Go on.", "output": "One."},
        ],
    }
    assert read(tmp_path, record) == expected
    asked = [said("user", "Count."), said("assistant", "Zero.")]
    assert read(tmp_path, record | {"history": [*asked, ["Go on.", "One."]]}) == expected
    for nothing in ([], None):
        assert "earlier" not in read(tmp_path, record | {"history": nothing})
    for wrong, problem in (
        ("Count.", "history is not a list"),
        ([["Count."]], "history has something else than pairs of texts"),
        ([["Count.", None]], "a message of history is missing"),
        ([["Count.", ["Zero."]]], "a message of history has a part that is not text"),
        ([said("user", "Count.")], "history: user and assistant do not take turns"),
    ):
        assert read(tmp_path, record | {"history": wrong}) == problem


@pytest.mark.parametrize(
    "mark", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}, {"loss": False}]
)
def test_a_reply_of_weight_0_is_seen_but_not_learned(tmp_path, mark):
    user, wrong, right = said("user", "Two?"), said("assistant", "3", **mark), said("gpt", "2")
    assert read(tmp_path, {"messages": [user, wrong, user, right]}) == {
        "instruction": "Two?",
        "input": "",
        "output": "2",
        "earlier": [{"instruction": "Two?", "output": "3", "learned": False}],
    }
    kept = read(tmp_path, {"messages": [user, right | {"weight": 1}, user, wrong]})
    assert kept == {"instruction": "Two?", "input": "", "output": "2"}
    only = read(tmp_path, {"messages": [user, wrong]})
    assert only == "messages has no reply but those of weight 0"
    pair = {"prompt": [user], "chosen": [wrong], "rejected": "4"}
    assert read_pair(tmp_path, pair) == "chosen has weight 0"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"weight": 0}, "weight is 0"),
        ({"weight": 0.5}, "weight is neither 0 nor 1"),
        ({"label": False}, "label is false: the reply is a bad one"),
        ({"label": 0}, "label is false: the reply is a bad one"),
        ({"kto_tag": "False"}, "kto_tag is false: the reply is a bad one"),
        ({"train": "false"}, "weight is 0"),
        ({"tools": [{"name": "clock"}]}, "it has tools, for which there is no place"),
        ({"tools": '[{"name": "clock"}]'}, "it has tools, for which there is no place"),
        ({"images": ["a.png"]}, "it has images, for which there is no place"),
        ({"response": "Something else"}, "output and response differ"),
        ({"messages": [said("user", "x"), said("gpt", "y")]}, "instruction is not in the "),
    ],
)
def test_a_field_that_changes_what_is_learned_is_counted_by_its_name(tmp_path, fields, problem):
    record = {"instruction": "Who?", "input": "", "output": "Ada"}
    assert read(tmp_path, record | fields).startswith(problem)
    harmless = {"weight": 1, "label": True, "tools": "[]", "images": [], "messages": None}
    assert read(tmp_path, record | harmless) == record
    if "output" not in problem:
        pair = {"prompt": "Who?", "chosen": "Ada", "rejected": "Bob"}
        assert isinstance(read_pair(tmp_path, pair | fields), str)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([said("tool", "12:00")], "a message of messages has the role tool"),
        ([said("function", "12:00")], "a message of messages has the role function"),
        ([said("narrator", "Then")], "a message of messages has an unknown role"),
        (
            [said("assistant", "x", tool_calls=[{"id": "1"}])],
            "a message of messages has tool_calls, for which there is no place",
        ),
        (
            [said("user", [{"type": "image_url"}]), said("assistant", "x")],
            "a message of messages has a part that is not text",
        ),
        (
            [said("user", "x", name="Ada"), said("gpt", "y"), said("user", "z", name="Bob")],
            "messages has several speakers of one role",
        ),
        ([said("system", "x", name="example_user")], "messages has a name for a system message"),
        ([{"role": "user", "from": "gpt", "content": "x"}], "role and from differ"),
    ],
)
def test_a_message_that_templates_have_no_place_for_is_counted_by_what_it_is(
    tmp_path, messages, problem
):
    end = [said("assistant", "The end.")]
    begin = [] if messages[0]["role"] == "user" else [said("user", "Begin.")]
    assert read(tmp_path, {"messages": [*begin, *messages, *end]}) == problem


def test_parts_of_text_and_values_beside_an_empty_content_are_read(tmp_path):
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "sails?"}]
    reply = {"role": None, "from": "gpt", "content": None, "value": "Ada"}
    talk = [said("user", parts, name="Bob"), reply]
    expected = {"instruction": "Who sails?", "input": "", "output": "Ada"}
    assert read(tmp_path, {"messages": None, "conversations": talk}) == expected


SPELLINGS = """\
No input; noinput; <noinput>; <no input>; No input.; "<noinput>"; `<noinput>`; < noinput >;
<noinput>.; \\<noinput\\>; [noinput]; No input required.; <none>; N/A; n/a; <n/a>; No_Input"""


@pytest.mark.parametrize("none", SPELLINGS.split(";"))
def test_a_placeholder_is_no_input_and_no_reply(tmp_path, none):
    record = {"instruction": "Who?", "input": none, "output": "Ada"}
    assert read(tmp_path, record)["input"] == ""
    assert read(tmp_path, record | {"output": none}) == "output is a placeholder"


@pytest.mark.parametrize(
    ("output", "is_one"),
    [
        ("<nooutput>", True),
        ("<No output>", True),
        ("No Output", True),
        ("<nooutput> - Visuals cannot be created by a language model.", True),
        ("<No output. The task requires a poster, not text.>", True),
        ("No output reaches the log, since it is closed.", False),
        ("No", False),
        ("None", False),
        ("Write N/A there.", False),
    ],
)
def test_a_record_whose_reply_is_a_placeholder_is_dropped_and_counted(tmp_path, output, is_one):
    record = {"instruction": "Draw.", "input": "a logo", "output": output}
    assert read(tmp_path, record) == ("output is a placeholder" if is_one else record)
    pair = {"instruction": "Draw.", "output_1": output, "output_2": "Ada", "preference": 2}
    found = read_pair(tmp_path, pair)
    assert (found == "output_1 is a placeholder") == is_one


@pytest.mark.parametrize(
    "text", ["no input is lost", "none", "He was <noinput>", "no outputs", "/"]
)
def test_an_input_that_is_more_than_a_placeholder_stays(tmp_path, text):
    record = {"instruction": "Who?", "input": text, "output": "Ada"}
    assert read(tmp_path, record) == record


def test_fields_that_are_not_read_are_told_and_counted(tmp_path, capsys):
    talk = [said("user", "Who?"), said("assistant", "Ada", reasoning_content="She sails.")]
    records = [record | {"category": "qa", "id": None} for record in GOOD]
    path = tmp_path / "file.json"
    path.write_text(json.dumps([*records, {"messages": talk, "score": 3}]))
    output = tmp_path / "mine"
    command = ["instructions", "--config", "{}", "--name", str(path), "--output", str(output)]
    assert main(command) == 0
    expected = {"category": 40, "score": 1, "messages[].reasoning_content": 1}
    assert json.loads((output / "manifest.json").read_text())["not_read"] == expected
    assert "fields of records that are not read: category (40), " in capsys.readouterr().err
    path.write_text(json.dumps([pair | {f"made up {n}": 1} for n in range(90) for pair in PAIRS]))
    assert prepared(preferences.prepare, path, 0.1)[0]["not_read"]["others"] == 40 * 40


def test_columns_of_bytes_are_text(tmp_path):
    said = ("{'role': encode('user'), 'content': encode('é' || i)}", "encode('gpt')", "encode('x')")
    history = f"[{said[0]}, {{'role': {said[1]}, 'content': {said[2]}}}] as history"
    rows = "select encode('Say ' || i || '.') as instruction, encode(i::varchar) as output, "
    rows += f"{history}, '\\xff'::blob as picture, case when i = 3 then '\\xff'::blob end as input"
    path = tmp_path / "file.parquet"
    duckdb.sql(f"copy ({rows} from range(9) numbers(i)) to '{path}' (format parquet)")
    manifest, train, validation = prepared(instructions.prepare, path, 0.2)
    expected = [
        record | {"earlier": [{"instruction": f"é{record['output']}", "output": "x"}]}
        for record in GOOD[:9]
        if record["output"] != "3"
    ]
    assert sorted(train + validation, key=lambda record: record["output"]) == expected
    assert manifest["bad"] == {"input is not text": 1}
    assert manifest["not_read"] == {"picture": 8}


@pytest.mark.parametrize("layout", ["prompt", "messages", "replies", "output_1"])
def test_a_pair_has_system_history_and_context_in_every_layout(tmp_path, layout):
    asked = said("user", "Who?")
    replies = {"chosen": "Ada", "rejected": "Bob"}
    pair = {
        "prompt": {"prompt": "Who?", **replies},
        "messages": {"messages": [asked], **replies},
        "replies": {side: [asked, said("assistant", reply)] for side, reply in replies.items()},
        "output_1": {"instruction": "Who?", "output_1": "Bob", "output_2": "Ada", "preference": 2},
    }[layout]
    more = {"system": "Be brief.", "history": [["Hello!", "Hi."]], "input": "", "context": "x"}
    assert read_pair(tmp_path, pair | more) == {
        "instruction": "Who?",
        "input": "x",
        **replies,
        "earlier": [{"instruction": "Be brief.\n\nHello!", "output": "Hi."}],
    }


def test_a_prompt_that_is_not_what_the_replies_answer_is_counted(tmp_path):
    def pair(**prompt: object) -> dict:
        talk = [said("user", "Who?")]
        sides = {side: [*talk, said("assistant", side)] for side in ("chosen", "rejected")}
        return sides | prompt

    assert read_pair(tmp_path, pair(prompt="Who?"))["instruction"] == "Who?"
    assert read_pair(tmp_path, pair(prompt=[said("user", "Who?")]))["instruction"] == "Who?"
    repeated = pair(prompt="Who?")
    assert read_pair(tmp_path, repeated | {"messages": repeated["chosen"]})["instruction"] == "Who?"
    assert read_pair(tmp_path, pair(prompt="Where?")) == "prompt is not in the conversation"
    differ = "prompt and the messages before the replies differ"
    assert read_pair(tmp_path, pair(prompt=[said("user", "Where?")])) == differ
    assert read_pair(tmp_path, pair(prompt="A?", question="B?")) == "prompt and question differ"
    empty = {"prompt": "", "question": "Who?", "chosen": "Ada", "rejected": "Bob"}
    assert read_pair(tmp_path, empty)["instruction"] == "Who?"


@pytest.mark.parametrize("field", ["context", "system", "history", "tools"])
def test_a_question_with_a_prompt_beside_its_instruction_stops_the_stage(tmp_path, field):
    question = {"instruction": "Who?", "input": None, "answer": "Ada", "id": 7, field: ""}
    file, output = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps(question))
    tasks.prepare_questions("world", {"world": {"url": str(file)}}, output)
    assert read_lines(output) == [{"instruction": "Who?", "input": "", "answer": "Ada"}]
    file.write_text(json.dumps(question | {field: ["x"]}))
    with pytest.raises(UserError, match=rf"line 1: {field} is a part of the prompt for which"):
        tasks.prepare_questions("world", {"world": {"url": str(file)}}, output)
