"""Replies of a given form: what the model may not write otherwise, and forms that no text has."""

import json
import re
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

import nanoeuler
from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.inference import forms
from nanoeuler.inference.forms import MOST_BYTES, Form, regex_grammar, schema_grammar, token_masks
from nanoeuler.inference.sampling import Sampling, sample

CHILD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def base(base_folder):
    """Its weights are random, so it writes anything."""
    return nanoeuler.load(base_folder, device="cpu")


def nested(depth):
    schema = {"type": "integer", "minimum": 0, "maximum": 9}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        schema["additionalProperties"] = False
    return schema


@pytest.mark.parametrize("regex", ["[0-9]{3}-[0-9]{4}", "(yes|no)( [a-z]{1,4}){2}", "ü/?x", ""])
def test_a_text_matches_its_regular_expression(base, regex):
    for seed in range(10):
        text = base.generate("one", regex=regex, temperature=1.0, seed=seed)
        assert re.fullmatch(regex, text)


def test_a_text_is_valid_by_its_schema(base):
    texts = {base.generate("one", schema=CHILD, temperature=1.0, seed=seed) for seed in range(20)}
    assert len(texts) == 20
    for text in texts:
        jsonschema.validate(json.loads(text), CHILD)


def test_a_form_that_a_busy_machine_had_no_time_for_may_be_asked_for_again(base, monkeypatch):
    with monkeypatch.context() as busy:
        busy.setattr(forms, "MOST_WAIT", 0.001)
        with pytest.raises(UserError, match="too busy to compile the form; try again"):
            base.generate("one", regex="busy")
    assert base.generate("one", regex="busy") == "busy"


def test_a_text_that_is_cut_off_begins_one(base):
    reply = base.stream("one", regex="[a-z]*x", max_tokens=3)
    text = "".join(reply)
    assert not reply.ended
    assert re.fullmatch("[a-z]+", text)


@pytest.mark.parametrize(
    ("regex", "max_tokens", "end"),
    [
        ("[0-9]{4}", 4, "form"),
        ("[0-9]{4}", 5, "</s>"),
        ("[0-9]{4}", 3, "limit"),
        ("9+", 4, "limit"),
    ],
)
def test_what_ended_a_text_is_told(base, regex, max_tokens, end):
    reply = base.stream("one", regex=regex, max_tokens=max_tokens)
    assert re.fullmatch(r"\d*", "".join(reply))
    assert reply.end == end


def test_it_goes_on_where_the_context_slides(base):
    text = base.generate("one", regex="([a-z] ){150}", max_tokens=400, temperature=1.0)
    assert re.fullmatch("([a-z] ){150}", text)


def test_schemas_nest_and_refer_to_themselves(base):
    text = base.generate("one", schema=nested(20))
    jsonschema.validate(json.loads(text), nested(20))
    tree = {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}},
    }
    for seed in range(5):
        reply = base.stream("one", schema=tree, temperature=1.0, seed=seed)
        text = "".join(reply)
        assert not reply.ended or jsonschema.validate(json.loads(text), tree) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength \\(5\\) is greater than"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
        ({"enum": []}, "Unsatisfiable"),
        ({"$ref": "#"}, "no text has this form"),
        ({"$ref": "#/definitions/x"}, "does not exist"),
        ({"$ref": "https://example.org/x"}, "not"),
        ({"type": "array", "uniqueItems": True}, "Unimplemented keys"),
        ({"type": "number of", "x": 1}, "Invalid type"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        (nested(200), "nested too deeply"),
        ({"type": "integer", "multipleOf": 1_234_567}, "too long to compile"),
        ({"enum": [f"value {n}" for n in range(100_000)]}, f"at most {MOST_BYTES:,}"),
        ("[]", "it is no object"),
        ("{", "cannot be read"),
        (5, "it is no object"),
        (b"{}", "type bytes is not JSON"),
        ({"enum": {1}}, "type set is not JSON"),
        ({(1, 2): {}}, "keys must be str"),
        ("\ud800", "must be text that UTF-8 can carry"),
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused(base, schema, said):
    with pytest.raises(UserError, match=said):
        base.generate("one", schema=schema)


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        ("(", "unclosed group"),
        ("[a&&b]", "no text"),
        ("(?=x)y", "look-around"),
        (5, "the regular expression is 5: it must be text"),
        (b"a", "must be text"),
        ("\ud800", "must be text that UTF-8 can carry"),
    ],
)
def test_a_regular_expression_that_cannot_be_kept_to_is_refused(base, regex, said):
    with pytest.raises(UserError, match=said):
        base.generate("one", regex=regex)


def following(form, reply, allowed_V):
    """The tokens that may follow a reply."""
    bits = token_masks([form], [reply], allowed_V).view(np.uint8)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()


def test_a_form_that_no_token_goes_on_with_is_an_error(base):
    """As where a vocabulary lacks bytes."""
    form = Form(base.tokenizer, regex_grammar("ab"))
    none_V = np.zeros(base.config.vocab_size, np.bool_)
    assert following(form, [], none_V) == [base.tokenizer.end_id]
    assert form.failure == "no token may follow"
    base.writer.allowed_V, kept = none_V, base.writer.allowed_V
    try:
        with pytest.raises(UserError, match="cannot be given its form: no token may follow"):
            base.generate("one", regex="ab")
    finally:
        base.writer.allowed_V = kept


def test_a_form_begins_anew_for_each_reply(base):
    everything_V = np.ones(base.config.vocab_size, np.bool_)
    form = Form.checked(base.tokenizer, schema_grammar(CHILD), "it")
    first, second = form.begin(), form.begin()
    start = following(first, [], everything_V)
    assert following(first, start[:1], everything_V) != start
    assert following(second, [], everything_V) == start


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_row_is_sampled_among_its_own_tokens(dtype):
    random = np.random.default_rng(0)
    logits_BV = random.normal(0, 3, (40, 300)).astype(dtype)
    allowed_BV = random.random((40, 300)) < 0.1
    settings = [Sampling(seed % 3 / 2, seed % 4, 0.9, seed) for seed in range(40)]
    together = sample(logits_BV, settings, range(40), allowed_BV)
    alone = [
        sample(logits_BV[row : row + 1], settings[row], [row], allowed_BV[row])[0]
        for row in range(40)
    ]
    assert together.tolist() == alone
    assert allowed_BV[range(40), together].all()


def test_the_same_tokens_without_a_form_that_allows_everything(base):
    asked = {"temperature": 1.0, "max_tokens": 20, "seed": 5}
    assert base.generate("one", regex="(?s:.*)", **asked).encode("utf-8", "replace")


# ---- as it is typed


def test_generate_takes_a_form(base_folder, tmp_path, capsys):
    given = ["generate", str(base_folder), "one", "--device", "cpu"]
    assert main([*given, "--regex", "[0-9]{4}"]) in (0, None)
    assert re.fullmatch("[0-9]{4}\n", capsys.readouterr().out)
    assert main([*given, "--regex", "[0-9]{4}", "--max-tokens", "4"]) in (0, None)
    assert " end=form " in capsys.readouterr().err
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(CHILD))
    assert main([*given, "--schema", str(path)]) in (0, None)
    jsonschema.validate(json.loads(capsys.readouterr().out), CHILD)
    assert main([*given, "--schema", str(path), "--regex", "x"]) == 1
    assert "give --regex or --schema" in capsys.readouterr().err
    assert main([*given, "--schema", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    path.write_bytes(b"\xff")
    assert main([*given, "--schema", str(path)]) == 1
    assert "is not UTF-8" in capsys.readouterr().err


def test_without_the_library_it_says_what_to_install(base_folder):
    program = (
        "import sys; sys.modules['llguidance'] = None\n"
        "from nanoeuler.cli import main\n"
        f"main(['generate', {str(base_folder)!r}, 'one', '--regex', 'x', '--device', 'cpu'])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'nanoeuler[forms]'" in found.stderr
    assert "Traceback" not in found.stderr
