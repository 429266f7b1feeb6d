"""The server reads a conversation as other programs fill in the model's chat template."""

import json

import pytest

import nanoeuler
from nanoeuler.model.template import TEMPLATES, chat_template
from nanoeuler.serving.requests import ChatCompletion, read
from tests.chat_templates import filled

CONVERSATIONS = [
    ["user"],
    ["system", "user"],
    ["user", "assistant", "user"],
    ["system", "developer", "user", "assistant", "user", "user", "assistant", "system", "user"],
    ["assistant", "user", "assistant", "assistant", "system"],
    ["user", "assistant"],
    ["system", "user", "assistant", "user", "assistant"],
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("roles", CONVERSATIONS)
def test_a_conversation_is_read_as_by_the_chat_template(roles, name, tuned_folder):
    model = nanoeuler.load(tuned_folder, device="cpu")
    model.template, model.context = name, model.config.context
    messages = [
        {"role": role, "content": f" {role} says\n\n{at} é "} for at, role in enumerate(roles)
    ]
    request = read(ChatCompletion, json.dumps({"model": "m", "messages": messages}).encode())
    asks = roles[-1] != "assistant"
    expected = filled(chat_template(name), messages, more=asks)
    text = model.tokenizer.decode(request.prompt(model))
    assert text == (expected if asks else expected.removesuffix("</s>"))
    if roles == ["user"]:
        assert request.prompt(model) == model.writer.frame(TEMPLATES[name](messages[0]["content"]))
