"""Replies of a given form over real HTTP, in a running batch, whole and as streams."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jsonschema
import openai
import pytest

from nanoeuler.model.files import load_model, save_model
from nanoeuler.serving.answers import CallReader, Part
from nanoeuler.serving.errors import ApiError
from nanoeuler.serving.requests import ChatCompletion
from tests.serving.server import ServerProcess

CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, tuned_folder):
    folder = tmp_path_factory.mktemp("models")
    (folder / "tuned").symlink_to(tuned_folder)
    with ServerProcess(folder, folder / "tuned", "--rows", 8) as server:
        yield server
    assert server.process.returncode == 0
    assert "Traceback" not in server.log


def by(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


def asked(schema=PERSON, **fields):
    messages = [{"role": "user", "content": "Count."}]
    return {"model": "tuned", "messages": messages, "response_format": by(schema)} | fields


def the_choice(response):
    assert response.status == 200, response.data
    (choice,) = json.loads(response.data)["choices"]
    return choice


def test_a_reply_is_valid_by_its_schema_whole_and_as_a_stream(server):
    for seed in range(5):
        choice = the_choice(server.post(CHAT, asked(seed=seed)))
        assert choice["finish_reason"] == "stop"
        text = choice["message"]["content"]
        jsonschema.validate(json.loads(text), PERSON)
        chunks = [each["choices"][0] for each in server.stream(CHAT, asked(seed=seed))]
        assert "".join(each["delta"].get("content") or "" for each in chunks) == text
        assert chunks[-1]["finish_reason"] == "stop"


def test_a_reply_that_is_cut_off_says_so(server):
    choice = the_choice(server.post(CHAT, asked(max_tokens=3)))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith('{"')


def test_any_object(server):
    for seed in range(5):
        fields = {"response_format": {"type": "json_object"}, "seed": seed, "max_tokens": 40}
        choice = the_choice(server.post(CHAT, asked(**fields)))
        text = choice["message"]["content"]
        assert text.startswith("{")
        assert choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)


def test_the_real_client(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    given = asked(logprobs=True, n=3, seed=1)
    reply = client.chat.completions.create(**given)
    assert len({choice.message.content for choice in reply.choices}) == 3
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
    with client.chat.completions.stream(**asked(seed=4)) as stream:
        message = stream.get_final_completion().choices[0].message
    jsonschema.validate(json.loads(message.content), PERSON)
    with pytest.raises(openai.BadRequestError, match="minLength") as caught:
        client.chat.completions.create(**asked({"type": "string", "minLength": 3, "maxLength": 2}))
    assert caught.value.param == "response_format"


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def nested(depth):
    schema = {"type": "integer", "minimum": 0, "maximum": 9}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        nested(20),
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    ],
)
def test_schemas_that_are_empty_deep_or_recursive_have_replies(server, schema):
    choice = the_choice(server.post(CHAT, asked(schema, seed=2, max_tokens=30)))
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    else:
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"response_format": by({"enum": []})}, 400, "Unsatisfiable"),
        ({"response_format": by({"$ref": "#"})}, 400, "no text has this form"),
        ({"response_format": by(ENDLESS)}, 400, "have no end"),
        ({"response_format": by({"not": {}})}, 400, "Unimplemented keys"),
        ({"response_format": by(nested(150))}, 400, "nested too deeply"),
        ({"response_format": by({"enum": ["x" * 100] * 2_000})}, 400, "give at most 32,768"),
        ({"response_format": by({"enum": ["x" * 100] * 11_000})}, 413, "larger than"),
        ({"response_format": by([])}, 400, "whose schema is an object"),
        ({"response_format": {"type": "json_schema"}}, 400, "json_schema"),
        ({"response_format": {"type": "grammar"}}, 400, "json_object"),
        ({"response_format": "json"}, 400, "its type"),
        ({"stop": ["}"]}, 400, "ends by itself"),
    ],
)
def test_what_is_no_form_is_an_error(server, change, status, said):
    for stream in (False, True):
        response = server.post(CHAT, asked(stream=stream, **change))
        assert response.status == status
        error = json.loads(response.data)["error"]
        assert said in error["message"]
    assert server.get("/health").status == 200


def test_others_are_answered_as_ever_beside_it(server):
    """Each of many at a time gets the reply that it gets alone."""
    plain = asked(temperature=1, max_tokens=20)
    del plain["response_format"]
    given = [(plain if seed % 2 else asked()) | {"seed": seed} for seed in range(16)]

    def text(fields):
        return the_choice(server.post(CHAT, fields))["message"]["content"]

    alone = [text(each) for each in given]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(text, given)) == alone


# ---- functions


@pytest.fixture(scope="module")
def client(tmp_path_factory, tuned_folder):
    """For the tuned model with a context that functions fit in."""
    folder = tmp_path_factory.mktemp("models")
    saved = load_model(tuned_folder)
    saved.config = replace(saved.config, context=2000)
    save_model(folder / "tuned", saved)
    with ServerProcess(folder, folder / "tuned", "--rows", 8) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert "Traceback" not in server.log


def function(name, parameters):
    given = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": given}


POINT = {
    "$defs": {"side": {"enum": ["left", "right"]}},
    "type": "object",
    "properties": {"side": {"$ref": "#/$defs/side"}, "n": {"type": "boolean"}},
    "required": ["side", "n"],
    "additionalProperties": False,
}
TOOLS = [function("add_person", PERSON), function("turn", POINT)]
PARAMETERS = {"add_person": PERSON, "turn": POINT}


def calling(**fields):
    messages = [{"role": "user", "content": "Count."}]
    return {"model": "tuned", "messages": messages, "tools": TOOLS, "max_tokens": 100} | fields


def test_a_reply_that_is_whole_at_its_limit_is_not_cut_off(client):
    for fields in (calling(tool_choice="required", seed=1), asked(seed=1)):
        whole = client.chat.completions.create(**fields)
        limit = whole.usage.completion_tokens
        again, less = (
            client.chat.completions.create(**fields | {"max_tokens": most}).choices[0]
            for most in (limit, limit - 1)
        )
        assert again.finish_reason == whole.choices[0].finish_reason
        assert less.finish_reason == "length"
        for call in again.message.tool_calls or []:
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])


def test_a_function_is_called_with_arguments_that_are_valid(client):
    called = set()
    named = [{"type": "function", "function": {"name": name}} for name in PARAMETERS]
    for seed, chosen in enumerate(["required"] * 5 + named):
        given = calling(tool_choice=chosen, seed=seed)
        (choice,) = client.chat.completions.create(**given).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, PARAMETERS[call.function.name])
        called.add(call.function.name)
        with client.chat.completions.stream(**given) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls[0].function.name == call.function.name
        assert final.message.tool_calls[0].function.arguments == call.function.arguments
    assert called == set(PARAMETERS)


def test_a_function_is_called_by_its_name_and_answered(client):
    named = {"type": "function", "function": {"name": "turn"}}
    first = client.chat.completions.create(**calling(tool_choice=named, seed=1)).choices[0].message
    (call,) = first.tool_calls
    assert call.function.name == "turn"
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    messages = [*calling()["messages"], first.model_dump(exclude_none=True), result]
    reply = client.chat.completions.create(**calling(messages=messages, max_tokens=5))
    assert reply.usage.completion_tokens > 0


def test_a_model_may_answer_with_text_beside_functions(client):
    given = calling(seed=3, max_tokens=20)
    (choice,) = client.chat.completions.create(**given).choices
    assert choice.message.tool_calls is None
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    parts = [part.choices[0] for part in client.chat.completions.create(**given, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert parts[-1].finish_reason == choice.finish_reason


def test_a_call_that_is_cut_off_says_so(client):
    for most in (2, 30):
        given = calling(tool_choice="required", seed=2, max_tokens=most)
        (choice,) = client.chat.completions.create(**given).choices
        assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"tools": [function("f", {"enum": []})]}, "tools", "nsatisfiable"),
        ({"tools": [function("f", ENDLESS)], "tool_choice": "required"}, "tools", "no end"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
            "names no function",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format", "one form"),
        ({"stop": "}"}, "stop", "ends by itself"),
    ],
)
def test_functions_that_cannot_be_called_are_an_error(client, change, param, said):
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        client.chat.completions.create(**calling(**change))
    assert caught.value.param == param


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_call_is_found_in_parts_of_any_size(size, finish):
    written = '{"a": "}", "b": {}}'
    text = '{"name": "f", "arguments": ' + written + "}" * (finish == "stop")
    reader, name, arguments = CallReader(), "", ""
    for at in range(0, len(text), size):
        last = at + size >= len(text)
        new, call = reader.push(Part(text[at : at + size], [], finish if last else None))
        assert new == ""
        function = call.get("function", {})
        name += function.get("name", "")
        arguments += function.get("arguments", "")
    assert (name, arguments) == ("f", written)


def test_without_the_library_a_form_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ApiError, match=r"pip install 'nanoeuler\[forms\]'") as caught:
        ChatCompletion.model_validate(asked()).grammar(None)
    assert caught.value.status == 400
