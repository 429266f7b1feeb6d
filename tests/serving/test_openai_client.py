"""The real `openai` package as the client."""

import openai
import pytest

from tests.serving.server import ServerProcess


@pytest.fixture(scope="module")
def client(tmp_path_factory, base_folder, tuned_folder, formed_folder):
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("base", base_folder), ("tuned", tuned_folder)):
        (folder / name).symlink_to(model)
    key = folder / "keys"
    key.write_text("a key of some length\n")
    models = folder / "tuned", folder / "base", formed_folder
    with ServerProcess(folder, *models, "--api-key-file", key) as server:
        yield openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="a key of some length", max_retries=0
        )


QUESTION = [{"role": "user", "content": "Where does the fox live?"}]
ANSWER = "In the old mill, café “Zur Mühle”."


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tuned", "base", "formed"]
    assert client.models.retrieve("base").owned_by == "nanoeuler"


def test_chat(client):
    reply = client.chat.completions.create(
        model="tuned", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2
    )
    (choice,) = reply.choices
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"
    assert b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode() == ANSWER
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_streamed_chat(client):
    chunks = list(
        client.chat.completions.create(
            model="tuned",
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    assert chunks[-1].usage.completion_tokens > 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_calculates(client, stream):
    """Results have no log-probability: they come apart, with their places among the tokens."""
    reply = client.chat.completions.create(
        model="formed",
        messages=[{"role": "user", "content": "How many clips?"}],
        temperature=0,
        logprobs=True,
        stream=stream,
    )
    text, tokens, results = "", [], ""
    for chunk in reply if stream else [reply]:
        type(chunk).model_validate(chunk.model_dump(), strict=True)  # OpenAI's types, to the letter
        (choice,) = chunk.choices
        text += (choice.delta if stream else choice.message).content
        new = [each.token for each in choice.logprobs.content]
        for result in (choice.model_extra.get("nanoeuler") or {}).get("results", []):
            new.insert(result["index"], result["token"])
            results += bytes(result["bytes"]).decode()
        tokens += new
    assert text == "48/2 = 24 clips."
    assert "".join(tokens) == "48/2 = <|reserved_4|>48/2<|reserved_5|>24 clips."
    assert results == "24"


def test_a_completion_with_everything(client):
    reply = client.completions.create(
        model="base", prompt="The harbour", max_tokens=5, n=2, seed=3, echo=True, logprobs=2
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.text.startswith("The harbour")
        assert "".join(choice.logprobs.tokens).startswith("The harbour")
    parts = client.completions.create(model="base", prompt="A", max_tokens=5, seed=3, stream=True)
    assert all(part.object == "text_completion" for part in parts)


def test_errors_are_of_the_package_s_kinds(client):
    with pytest.raises(openai.BadRequestError, match="only continues text") as caught:
        client.completions.create(model="base", prompt="A", suffix="end")
    assert caught.value.param == "suffix"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.completions.create(model="other", prompt="A")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another key, which is wrong").models.list()
