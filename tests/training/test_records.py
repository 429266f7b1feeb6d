"""Rows of instruction records: the response is supervised, and records of a row are apart."""

import json
import re

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import training_flops
from nanoeuler.model.template import TEMPLATES
from nanoeuler.training.pairs import encode_pairs
from nanoeuler.training.records import RecordStream, encode_records, pack

CONTEXT = 420
RECORDS = [
    {"instruction": "Say hen.", "input": "", "output": "hen"},
    {
        "instruction": "Name it.",
        "input": "a fox",
        "output": "The fox is near the lake.\nIt is a fox.",
    },
    {"instruction": "Count.", "input": "", "output": "one two three four five six"},
    {"instruction": "Héllo?", "input": "", "output": "Grüße 🙂"},
]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def stream(tokenizer, tmp_path):
    records, _ = encode_records(
        write(tmp_path / "records.jsonl", RECORDS), tokenizer, "alpaca", CONTEXT
    )
    return RecordStream(records, CONTEXT, 4 * CONTEXT, (1.0, 1.0, 1.0), tokenizer.end_id, 1, "sft")


def test_the_supervised_tokens_of_packed_rows_are_the_responses(tokenizer, stream):
    assert stream.row_count < len(RECORDS)
    rows = stream.frame_rows(np.arange(stream.row_count))
    for head in range(3):
        found = []
        for row in range(stream.row_count):
            for start in np.unique(rows.starts[row]):
                targets = rows.targets[row, rows.starts[row] == start, head]
                targets = targets[targets >= 0]
                if len(targets):
                    assert targets[-1] == tokenizer.end_id
                    found.append(tokenizer.decode(targets[:-1]))
        assert sorted(found) == sorted(record["output"] for record in RECORDS)


def test_each_record_in_a_row_starts_at_position_zero_with_its_own_prompt(tokenizer, stream):
    rows = stream.frame_rows(np.arange(stream.row_count))
    prompts = []
    for row in range(stream.row_count):
        for start in np.unique(rows.starts[row]):
            inside = rows.starts[row] == start
            if (rows.targets[row, inside, 0] >= 0).any():
                assert rows.positions[row, inside].tolist() == list(range(inside.sum()))
                assert rows.ids[row, start] == tokenizer.end_id
                prompts.append(tokenizer.decode(rows.ids[row, inside][1:]))
    expected = [
        TEMPLATES["alpaca"](record["instruction"], record["input"]) + record["output"]
        for record in RECORDS
    ]
    assert sorted(prompts) == sorted(expected)


def test_flops_are_those_of_the_records_and_the_head_is_asked_for_responses_alone(stream):
    stream = RecordStream(stream.records, CONTEXT, 4 * CONTEXT, (1.0,), stream.end_id, 1, "sft")
    config = ModelConfig.from_dict({"preset": "small", "mtp_heads": 1})
    rows = stream.frame_rows(np.arange(stream.row_count))
    lengths = [len(record.tokens) - 1 for record in stream.records]
    filled = [sum(lengths[member] for member in members) for members in stream.packed]
    padded = sum(length < stream.width for length in filled)  # one token of padding counts
    seen = sum(length * (length + 1) / 2 for length in lengths)
    responses = sum(record.learned.sum() for record in stream.records)
    assert rows.training_flops(config) == training_flops(
        config, sum(lengths) + padded, seen + padded, responses
    )


def test_a_long_response_loses_its_end_and_is_not_told_to_stop(tokenizer, tmp_path):
    path = write(
        tmp_path / "long.jsonl",
        [{"instruction": "Count.", "input": "", "output": "one two three " * 100}],
    )
    records, fit = encode_records(path, tokenizer, "alpaca", CONTEXT)
    assert (fit.records, fit.whole, fit.without_response) == (1, 0, 0)
    assert 0 < fit.kept_share < 1
    rows = RecordStream(
        records, CONTEXT, CONTEXT, (1.0, 1.0), tokenizer.end_id, 1, "sft"
    ).frame_rows(np.array([0]))
    for head in range(2):
        targets = rows.targets[0, :, head]
        assert tokenizer.end_id not in targets
        assert ("one two three " * 100).startswith(tokenizer.decode(targets[targets >= 0]))
    assert (rows.targets[0, -1] >= 0).tolist() == [True, False]


def test_a_record_whose_prompt_fills_the_context_is_dropped(tokenizer, tmp_path):
    path = write(
        tmp_path / "prompt.jsonl",
        [{"instruction": "Count. " * 200, "input": "", "output": "one"}, RECORDS[0]],
    )
    records, fit = encode_records(path, tokenizer, "alpaca", CONTEXT)
    assert (len(records), fit.without_response) == (1, 1)


def test_braces_in_a_record_are_text():
    assert "{input} {x}" in TEMPLATES["alpaca"]("{input} {x}", "")


@pytest.mark.parametrize("longest", [100, 40, 512])
def test_packing_holds_every_record_once_and_wastes_little(longest):
    lengths = np.random.default_rng(1).integers(1, longest, 20_000).tolist()
    rows = pack(lengths, 512)
    assert sorted(index for row in rows for index in row) == list(range(20_000))
    assert max(sum(lengths[index] for index in row) for row in rows) <= 512
    assert len(rows) <= 1.02 * sum(lengths) / 512 + 1


def test_a_record_as_long_as_a_row_packs():
    assert pack([5, 5, 3, 2], 5) == [[0], [1], [2, 3]]
    assert pack([], 5) == []


def test_masked_targets_weigh_nothing(stream):
    rows = stream.rows(0)
    assert np.all((rows.weights > 0) == (rows.targets >= 0))
    assert rows.weights.sum() == pytest.approx(1, abs=1e-5)


def test_a_reply_that_is_not_to_be_learned_is_seen_alone(tokenizer, tmp_path):
    turns = [
        {"instruction": "Hello!", "output": "wrong", "learned": False},
        {"instruction": "Say hen.", "output": "hen", "learned": True},
    ]
    record = {"instruction": "Say fox.", "output": "fox", "earlier": turns}
    [found], fit = encode_records(write(tmp_path / "x.jsonl", [record]), tokenizer, "chat", CONTEXT)
    end = tokenizer.decode([tokenizer.end_id])
    assert tokenizer.decode(found.tokens[found.learned]) == f"hen{end}fox{end}"
    assert f"Assistant: wrong{end}" in tokenizer.decode(found.tokens)
    assert fit.response_tokens == found.learned.sum()
    turns[0]["learned"] = 0
    with pytest.raises(UserError, match="line 1: learned is neither true nor false"):
        encode_records(write(tmp_path / "x.jsonl", [record]), tokenizer, "chat", CONTEXT)


def test_every_reply_of_a_conversation_is_learned_and_nothing_else(tokenizer, tmp_path):
    earlier = [
        {"instruction": "Hello!", "output": "Hi."},
        {"instruction": "Say hen.", "output": "hen"},
    ]
    path = write(
        tmp_path / "talk.jsonl",
        [{"instruction": "Say fox.", "input": "", "output": "fox", "earlier": earlier}, *RECORDS],
    )
    records, _ = encode_records(path, tokenizer, "chat", CONTEXT)
    stream = RecordStream(records, CONTEXT, 4 * CONTEXT, (1.0, 1.0), tokenizer.end_id, 1, "sft")
    rows = stream.frame_rows(np.arange(stream.row_count))
    assert stream.row_count < len(RECORDS) + 1
    end = tokenizer.decode([tokenizer.end_id])
    for head in range(2):
        found = []
        for row in range(stream.row_count):
            for start in np.unique(rows.starts[row]):
                targets = rows.targets[row, rows.starts[row] == start, head]
                if (targets >= 0).any():
                    found.append(tokenizer.decode(targets[targets >= 0]))
        assert sorted(found) == sorted(
            [f"Hi.{end}hen{end}fox{end}", *(record["output"] + end for record in RECORDS)]
        )


def test_by_record_every_response_of_a_step_weighs_the_same_however_long(tokenizer, tmp_path):
    records, _ = encode_records(
        write(tmp_path / "records.jsonl", RECORDS), tokenizer, "alpaca", CONTEXT
    )
    rows = {}
    for by_record in (True, False):
        stream = RecordStream(
            records, CONTEXT, 4 * CONTEXT, (1.0, 0.5), tokenizer.end_id, 1, "sft", by_record
        )
        rows[by_record] = stream.frame_rows(np.arange(stream.row_count))
    assert rows[True].weights.sum() == pytest.approx(1, abs=1e-6)
    of_records = [
        rows[True].weights[row, rows[True].starts[row] == start, 0].sum()
        for row in range(len(rows[True].ids))
        for start in np.unique(rows[True].starts[row])
    ]
    assert [weight for weight in of_records if weight] == pytest.approx(
        [2 / 3 / len(RECORDS)] * len(RECORDS), rel=1e-5
    )
    of_tokens = rows[False].weights[rows[False].targets[..., 0] >= 0][:, 0]
    assert of_tokens == pytest.approx(np.full(len(of_tokens), 2 / 3 / len(of_tokens)), rel=1e-5)


def test_an_epoch_shows_every_record_once_and_the_next_in_another_order(tokenizer, tmp_path):
    many = [{"instruction": f"Say {n}.", "input": "", "output": str(n)} for n in range(40)]
    records, _ = encode_records(write(tmp_path / "many.jsonl", many), tokenizer, "alpaca", CONTEXT)
    stream = RecordStream(records, CONTEXT, CONTEXT, (1.0,), tokenizer.end_id, 1, "sft")
    epochs = [
        [stream.rows(epoch * stream.row_count + step).ids for step in range(stream.row_count)]
        for epoch in range(2)
    ]
    assert sorted(ids.tobytes() for ids in epochs[0]) == sorted(ids.tobytes() for ids in epochs[1])
    assert [ids.tobytes() for ids in epochs[0]] != [ids.tobytes() for ids in epochs[1]]
    assert len({ids.tobytes() for ids in epochs[0]}) == stream.row_count


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2: not valid JSON"),
        (b"5", "line 2: not a JSON object"),
        (b"[" * 100_000, "line 2: not valid JSON"),
        (b"1" * 5_000, "line 2: not valid JSON"),
        (b'{"instruction": 5, "output": "x"}', "line 2: instruction is missing or not a text"),
        (b'{"instruction": "x", "output": null}', "line 2: output is missing or not a text"),
        (b'{"instruction": "x", "output": "y", "input": []}', "line 2: input is missing or not"),
        (b'{"instruction": "x", "output": "y", "earlier": 5}', "earlier is not a list of turns"),
        (b'{"instruction": "x", "output": "y", "earlier": [{}]}', "line 2: instruction is missing"),
        (b'{"instruction": "caf\xe9"', "not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("encode", [encode_records, encode_pairs])
def test_a_line_that_is_no_record_or_pair_is_named(tokenizer, tmp_path, encode, line, words):
    good = RECORDS[0] | {"chosen": "hen", "rejected": "fox"}
    if encode is encode_pairs:
        line = line.replace(b'"output": null', b'"chosen": null, "rejected": "x"')
        line = line.replace(b'"output"', b'"rejected": "z", "chosen"')
        words = words.replace("output", "chosen")
    path = tmp_path / "records.jsonl"
    path.write_bytes(json.dumps(good).encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=words) as caught:
        encode(path, tokenizer, "alpaca", CONTEXT)
    assert str(caught.value).startswith(str(path))


def test_other_line_ends_inside_a_text_end_no_record(tokenizer, tmp_path):
    path = tmp_path / "by-hand.jsonl"
    record = {"instruction": "Say hen.", "output": "hen\u2028hen\x85"}
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert encode_records(path, tokenizer, "alpaca", CONTEXT)[1].records == 1


def test_results_of_the_calculator_are_read_and_never_a_target(tokenizer, tmp_path):
    results = {"it is <<2*24=48>>48 now": "48", "2 = <<1+2=3>>3": "3"}
    texts = list(results)
    entries = [{"instruction": "How many?", "input": "", "output": text} for text in texts]
    path = write(tmp_path / "records.jsonl", entries)
    records, fit = encode_records(path, tokenizer, "alpaca", CONTEXT)
    assert (fit.calls, fit.calls_dropped) == (2, 0)
    stream = RecordStream(records, CONTEXT, CONTEXT, (1.0, 0.5), tokenizer.end_id, 1, "sft")
    rows = stream.frame_rows(np.arange(stream.row_count))
    call, end = tokenizer.call_ids
    prompt = len(tokenizer.encode(TEMPLATES["alpaca"]("How many?"))) + 1
    for record, text in zip(records, texts, strict=True):
        reply = record.tokens[prompt:-1].tolist()
        assert tokenizer.decode_reply(reply) == re.sub("<<.*>>", "", text)
        assert (reply.count(call), reply.count(end)) == (1, 1)
        result = reply.index(end) + 1
        said = len(tokenizer.encode(results[text], continues=True))
        masked = np.flatnonzero(~record.learned) - prompt
        assert masked[prompt:].tolist() == list(range(result, result + said))
    learned = np.concatenate([record.learned for record in records])
    for head in range(2):
        targets = rows.targets[..., head]
        assert (targets >= 0).sum() == learned.sum()
        assert call in targets
        assert end in targets
    everything = np.concatenate([record.tokens[record.learned] for record in records])
    assert np.array_equal(np.sort(rows.targets[rows.targets[..., 0] >= 0, 0]), np.sort(everything))
    assert (rows.weights[rows.targets < 0] == 0).all()
