"""OpenAI's API over real HTTP: what its clients send and what they expect."""

import json
import threading

import numpy as np
import pytest
from pydantic import ValidationError

import nanoeuler
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.template import alpaca
from nanoeuler.serving.errors import ApiError
from nanoeuler.serving.requests import ChatCompletion, Completion, read
from tests.serving.server import ServerProcess

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory, base_folder, tuned_folder):
    """The base model `base`, and the tuned one as `tuned`."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("base", base_folder), ("tuned", tuned_folder)):
        (folder / name).symlink_to(model)
    with ServerProcess(folder, folder / "tuned", "--model", folder / "base", "--rows", 8) as server:
        yield server
    assert server.process.returncode == 0
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def base(base_folder):
    return nanoeuler.load(base_folder, device="cpu")


@pytest.fixture(scope="module")
def tuned(tuned_folder):
    return nanoeuler.load(tuned_folder, device="cpu")


def asked(text, **fields):
    return {"model": "tuned", "messages": [{"role": "user", "content": text}]} | fields


def greedy(prompt, **fields):
    return {"model": "base", "prompt": prompt, "temperature": 0} | fields


def test_the_models_are_listed(server):
    listed = json.loads(server.get("/v1/models").data)
    assert [each["id"] for each in listed["data"]] == ["tuned", "base"]
    assert [each["nanoeuler"]["chat"] for each in listed["data"]] == [True, False]
    assert json.loads(server.get("/v1/models/base").data) == listed["data"][1]
    missing = server.get("/v1/models/other")
    assert missing.status == 404
    assert json.loads(missing.data)["error"]["code"] == "model_not_found"


def test_a_chat_is_answered_whole_and_as_a_stream(server, tuned):
    reply = json.loads(server.post(CHAT, asked("Where does the fox live?", temperature=0)).data)
    text = "In the old mill, café “Zur Mühle”."
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert reply["object"] == "chat.completion"
    prompt = len(tuned.writer.frame(alpaca("Where does the fox live?")))
    written = len(tuned.tokenizer.encode(text))
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    options = {"temperature": 0, "stream_options": {"include_usage": True}}
    *chunks, last = server.stream(CHAT, asked("Where does the fox live?", **options))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == text
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]} <= {None}
    assert (last["choices"], last["usage"]) == ([], reply["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_completion_is_what_generate_writes(server, base):
    fields = {"max_tokens": 40, "temperature": 0.9, "seed": 11}
    reply = json.loads(server.post(TEXT, greedy("The harbour", **fields)).data)
    expected = base.generate("The harbour", max_tokens=40, temperature=0.9, top_p=1.0, seed=11)
    assert reply["choices"][0]["text"] == expected
    streamed = server.stream(TEXT, greedy("The harbour", **fields))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == expected
    assert reply["object"] == streamed[0]["object"] == "text_completion"
    by_default = json.loads(server.post(TEXT, greedy("The harbour")).data)
    assert by_default["usage"]["completion_tokens"] <= 16


def test_tokens_and_several_prompts_and_replies(server, base):
    ids = base.writer.frame("The harbour")
    several = greedy(["The harbour", "A fox"], n=2, seed=4, temperature=1.0, max_tokens=12)
    choices = json.loads(server.post(TEXT, several).data)["choices"]
    expected = [
        base.generate(prompt, max_tokens=12, temperature=1.0, top_p=1.0, seed=seed)
        for prompt in ("The harbour", "A fox")
        for seed in (4, 5)
    ]
    assert [choice["text"] for choice in choices] == expected
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    by_ids = json.loads(server.post(TEXT, greedy(ids, max_tokens=12)).data)
    by_text = json.loads(server.post(TEXT, greedy("The harbour", max_tokens=12)).data)
    assert by_ids["choices"] == by_text["choices"]
    two = json.loads(server.post(TEXT, greedy([ids, ids], max_tokens=2)).data)["choices"]
    assert two[0]["text"] == two[1]["text"]


def test_echo_and_logprobs_score_a_text(server, base):
    text = "The harbour is full"
    fields = {"echo": True, "logprobs": 3, "max_tokens": 0}
    (choice,) = json.loads(server.post(TEXT, greedy(text, **fields)).data)["choices"]
    assert choice["text"] == text
    scores = choice["logprobs"]
    ids = base.writer.frame(text)
    assert "".join(scores["tokens"]) == text
    assert len(scores["tokens"]) == len(ids) - 1
    assert scores["text_offset"] == [
        len(base.tokenizer.decode(ids[1 : at + 1])) for at in range(len(ids) - 1)
    ]
    assert all(len(top) == 3 for top in scores["top_logprobs"])
    logits = base.logits(ids).astype(float)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [logprobs[at, token] for at, token in enumerate(ids[1:])]
    assert scores["token_logprobs"] == pytest.approx(expected, abs=2e-4)
    both = json.loads(server.post(TEXT, greedy(text, echo=True, logprobs=0, max_tokens=2)).data)
    (choice,) = both["choices"]
    assert choice["text"].startswith(text)
    assert "".join(choice["logprobs"]["tokens"]).startswith(text)
    assert len(choice["logprobs"]["tokens"]) == len(ids) - 1 + 2


def test_offsets_count_characters_of_the_text(server, base):
    """Of a token that is a part of a character, too: it has the character's offset."""
    text = "Zur Mühle… 古い🙂 é"
    fields = {"echo": True, "logprobs": 0, "max_tokens": 6}
    (choice,) = json.loads(server.post(TEXT, greedy(text, **fields)).data)["choices"]
    scores = choice["logprobs"]
    ids = base.writer.frame(text)[1:]
    before = [base.tokenizer.decode_bytes(ids[:at]) for at in range(len(ids))]
    offsets = [len(content.decode(errors="ignore")) for content in before]
    assert any(token.startswith("bytes:") for token in scores["tokens"])
    assert scores["text_offset"][: len(ids)] == [
        len(part.decode(errors="ignore")) for part in before
    ]
    rest = zip(scores["tokens"], scores["text_offset"], strict=True)
    for token, at in list(rest)[len(ids) :]:
        assert token.startswith("bytes:") or choice["text"][at : at + len(token)] == token
    broken = [*base.tokenizer.encode("é")[:1].tolist(), *ids[:2]]
    (choice,) = json.loads(server.post(TEXT, greedy(broken, **fields)).data)["choices"]
    assert choice["text"].startswith("\ufffdZ")
    assert choice["logprobs"]["text_offset"][:2] == [0, 1]
    streamed = server.stream(TEXT, greedy(text, **fields))
    offsets = [at for part in streamed for at in part["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == scores["text_offset"]


def test_a_chat_shows_its_tokens_with_alternatives(server):
    fields = {"temperature": 0, "logprobs": True, "top_logprobs": 2}
    reply = json.loads(server.post(CHAT, asked("Where does the fox live?", **fields)).data)
    tokens = reply["choices"][0]["logprobs"]["content"]
    joined = b"".join(bytes(token["bytes"]) for token in tokens)
    assert joined.decode() == reply["choices"][0]["message"]["content"]
    for token in tokens:
        assert len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]  # greedy


def test_a_conversation_is_read_as_in_training(server, tuned):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Count."}]},
        {"role": "assistant", "content": "one two"},
        {"role": "user", "content": "Name a colour."},
    ]
    expected = [
        *tuned.writer.frame(alpaca("Be brief.\n\nCount.")),
        *tuned.tokenizer.encode("one two"),
        *tuned.writer.frame(alpaca("Name a colour.")),
    ]
    read = json.loads(server.post(CHAT, asked("", temperature=0) | {"messages": turns}).data)
    assert read["usage"]["prompt_tokens"] == len(expected)
    (continuation,) = tuned.writer.batch([expected], GREEDY, 96 - len(expected))
    assert read["choices"][0]["message"]["content"] == tuned.tokenizer.decode(continuation.ids)
    for words in (100, 100_000):
        long = server.post(CHAT, asked("word " * words))
        assert long.status == 400
        error = json.loads(long.data)["error"]
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    going_on = [{"role": "user", "content": "Count."}, turns[2]]
    reply = json.loads(server.post(CHAT, asked("", temperature=0) | {"messages": going_on}).data)
    assert reply["choices"][0]["message"]["content"] == " three four five six seven"


def test_stop_strings_end_a_reply(server):
    reply = json.loads(server.post(CHAT, asked("Count.", temperature=0, stop=" four")).data)
    assert reply["choices"][0]["message"]["content"] == "one two three"
    assert reply["choices"][0]["finish_reason"] == "stop"
    chunks = server.stream(CHAT, asked("Count.", temperature=0, stop=["x", "e fo"]))
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "one two thre"


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"temperature": 3}, "temperature", "less than or equal to 2, not 3"),
        ({"temperature": "warm"}, "temperature", "valid number, not 'warm'"),
        ({"temperature": True}, "temperature", "number"),
        ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"n": 0}, "n", "greater"),
        ({"n": 9}, "n", "at most 8"),
        ({"stop": [""]}, "stop", "1 to 200 characters"),
        ({"prompt": None}, "prompt", "must be a text"),
        ({"prompt": ["a", 1]}, "prompt", "must be a text"),
        ({"prompt": []}, "prompt", "from 1 to 128 prompts"),
        ({"prompt": [5, 384]}, "prompt", "ids from 0 to 383"),
        ({"prompt": [-1]}, "prompt", "ids from 0 to 383"),
        ({"prompt": "\ud800"}, "prompt", "surrogate"),
        ({"prompt": "word " * 200}, "prompt", "the model's context is 96"),
        ({"suffix": "end"}, "suffix", "only continues text"),
        ({"best_of": 3}, "best_of", "leave it out"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"presence_penalty": 0.5}, "presence_penalty", "it must be 0"),
        ({"logit_bias": {"5": 10}}, "logit_bias", "leave logit_bias out"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"model": None}, "model", "string"),
        ({"model": ...}, "model", "is missing; /v1/models lists those of this server"),
    ],
)
def test_a_wrong_field_is_refused_by_name(server, change, param, said):
    fields = greedy("The") | change
    response = server.post(TEXT, {key: fields[key] for key in fields if fields[key] is not ...})
    error = json.loads(response.data)["error"]
    assert response.status == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(server):
    error = json.loads(server.post(TEXT, greedy("{}" * 400_000)).data)["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("the prompt has at least ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", [{}] * 300_000),
        ("prompt", [[None] * 200_000]),
        ("messages", [{}] * 9_000),
        ("messages", [{"role": "user", "content": [{}] * 300_000}]),
        ("stop", [{}] * 300_000),
    ],
)
def test_the_first_wrong_item_of_a_list_ends_its_reading(field, value):
    """A million errors would be collected while all clients wait."""
    kind = ChatCompletion if field == "messages" else Completion
    with pytest.raises(ApiError) as caught:
        read(kind, json.dumps({"model": "base", "prompt": "a", field: value}).encode())
    assert isinstance(caught.value.__cause__, ValidationError)
    assert caught.value.__cause__.error_count() < 10


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[1]", "must be one JSON object"),
        (b'{"model": "base", "prompt": "x", "temperature": NaN}', "valid JSON"),
        (b'{"model": "base", "prompt": "x", "temperature": 1e999}', "finite"),
        (b"\xff\xfe\x00", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
    ],
)
def test_a_body_that_is_no_request_is_refused(server, body, said):
    response = server.post(TEXT, body)
    assert response.status == 400
    assert said in json.loads(response.data)["error"]["message"]


def test_fields_that_change_nothing_are_accepted(server):
    nothing = {
        "user": "someone",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "suffix": None,
        "stop": None,
        "top_p": None,
        "metadata": {"a": "b"},
        "max_tokens": 3,
        "best_of": 1.0,
    }
    assert server.post(TEXT, greedy("The") | nothing).status == 200
    chat = {"tools": [], "response_format": {"type": "text"}, "max_completion_tokens": 3}
    assert server.post(CHAT, asked("Count.", **chat)).status == 200


def test_numbers_are_read_as_openai_s_servers_read_them(server):
    plain = json.loads(server.post(TEXT, greedy("The", max_tokens=8)).data)["choices"]
    assert json.loads(server.post(TEXT, greedy("The", max_tokens=8.0)).data)["choices"] == plain
    one = greedy("The", max_tokens=8) | {"temperature": 1.5, "top_p": 0, "seed": 3}
    assert json.loads(server.post(TEXT, one).data)["choices"] == plain
    refused = json.loads(server.post(TEXT, greedy("The", max_tokens=8.5)).data)["error"]
    assert refused["param"] == "max_tokens"


def test_tools_that_may_not_be_called_change_nothing(server):
    plain = json.loads(server.post(CHAT, asked("Count.", temperature=0)).data)["choices"]
    tools = [{"type": "function", "function": {"name": "add"}}]
    none = asked("Count.", temperature=0, tools=tools, tool_choice="none")
    assert json.loads(server.post(CHAT, none).data)["choices"] == plain


def test_an_assistant_s_message_may_be_null(server):
    said = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": ""}]
    said.append({"role": "user", "content": "Go on."})
    fields = {"model": "tuned", "temperature": 0}
    empty = json.loads(server.post(CHAT, fields | {"messages": said}).data)["choices"]
    said[1] = {"role": "assistant", "content": None, "tool_calls": None}
    assert json.loads(server.post(CHAT, fields | {"messages": said}).data)["choices"] == empty


def test_what_the_models_cannot_do_is_refused(server):
    for change, param in (
        ({"model": "base"}, "model"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"messages": []}, "messages"),
        ({"messages": asked("a")["messages"] * 10_001}, "messages"),
        ({"messages": [{"role": "tool", "content": None}]}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ):
        response = server.post(CHAT, asked("Count.") | change)
        assert (response.status, json.loads(response.data)["error"]["param"]) == (400, param)
    unknown = server.post(CHAT, asked("Count.") | {"model": "../../etc/passwd"})
    assert unknown.status == 404
    assert json.loads(unknown.data)["error"]["code"] == "model_not_found"


def test_other_addresses_and_methods_are_errors_of_the_api(server):
    for response, status in (
        (server.get("/v1/nothing"), 404),
        (server.get(CHAT), 405),
        (server.post("/v1/models", {}), 405),
        (server.get("/../../../etc/passwd"), 404),
        (server.get("/page%2fpage.js"), 404),
    ):
        assert response.status == status
        assert set(json.loads(response.data)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/chat/completions"])
def test_what_is_not_there_is_told_what_is(server, path):
    said = json.loads(server.post(path, {}).data)["error"]["message"]
    assert said.startswith(f"there is nothing at {path};")
    assert "/v1/chat/completions" in said


def test_health_and_metrics(server):
    assert json.loads(server.get("/health").data) == {"status": "ok"}
    before = server.metric("tokens_total")
    server.post(TEXT, greedy("The", max_tokens=5))
    assert server.metric("tokens_total") > before
    assert server.metric("replies_running") == 0
    assert server.metric("first_token_seconds_count") > 0
    counted = server.metric("first_token_seconds_count")
    server.post(TEXT, greedy(["The", "A"], echo=True, logprobs=0, max_tokens=0))
    assert server.metric("first_token_seconds_count") == counted  # nothing was written
    text = server.get("/metrics").data.decode()
    assert all(line.startswith(("#", "nanoeuler_")) for line in text.splitlines())


def test_many_clients_at_once_get_their_own_replies(server, base):
    prompts = [f"The {word} of {number}" for number in range(6) for word in ("fox", "old mill")]

    def fields(seed):
        return {"max_tokens": 20 + seed, "temperature": 1.0, "seed": seed}

    got = {}

    def ask(seed, prompt):
        reply = json.loads(server.post(TEXT, greedy(prompt, **fields(seed))).data)
        got[seed] = reply["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=each) for each in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, prompt in enumerate(prompts):
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=seed)
        ids = base.writer.frame(prompt)
        assert got[seed] == "".join(base.writer.stream(ids, sampling, 20 + seed))


def test_a_model_is_served_in_eight_bits(tuned_folder, tmp_path):
    (tmp_path / "tuned").symlink_to(tuned_folder)
    with ServerProcess(tmp_path, tmp_path / "tuned", "--quantize", "int8") as server:
        asked = {"model": "tuned", "messages": [{"role": "user", "content": "Count."}]}
        reply = server.post(CHAT, asked | {"temperature": 0}).json()
    assert reply["choices"][0]["message"]["content"] == "one two three four five six seven"
    assert "parameters in int8, stage sft" in server.log
