"""Conversations in the shapes that data sets have them in, as turns of `instruction` and `output`.

    messages        [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]     (also system; chat completion's)
    conversations   [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]              (ShareGPT's)

A system message has no place of its own in a template: it becomes the first paragraph of the first instruction. An empty one says nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Turn = dict[str, str]
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}


class Unusable(Exception):
    """What is wrong with a record, in a few words that are counted."""


def check_text(value: Any, name: str, may_be_empty: bool = False) -> str:
    """`value` if it is a text that can be learned from; raises `Unusable`."""
    if value is None:
        raise Unusable(f"{name} is missing")
    if not isinstance(value, str):
        raise Unusable(f"{name} is not text")
    if not value.strip() and not may_be_empty:
        raise Unusable(f"{name} is empty")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Unusable(f"{name} has half a character (a lone surrogate)")
    return value


def read_message(message: Any, name: str) -> tuple[str, str]:
    """Role (system, user, assistant) and text of one message."""
    if not isinstance(message, Mapping):
        raise Unusable(f"a message of {name} is no JSON object")
    role = ROLES.get(str(message.get("role", message.get("from"))))
    if role is None:
        raise Unusable(f"a message of {name} has an unknown role")
    return role, check_text(
        message.get("content", message.get("value")),
        f"a message of {name}",
        may_be_empty=role == "system",
    )


def read_prompt(messages: Sequence[Any], name: str) -> tuple[list[Turn], str]:
    """The finished turns of a conversation that waits for a reply, and what the reply is to."""
    parts = [read_message(message, name) for message in messages]
    system = [text for role, text in parts if role == "system" and text.strip()]
    spoken = [(role, text) for role, text in parts if role != "system"]
    if not spoken or [role for role, _ in spoken] != ["user", "assistant"] * (len(spoken) // 2) + [
        "user"
    ]:
        raise Unusable(
            f"{name}: user and assistant do not take turns" if spoken else f"{name} is empty"
        )
    texts = [text for _, text in spoken]
    texts[0] = "\n\n".join([*system, texts[0]])
    return [
        {"instruction": asked, "output": said}
        for asked, said in zip(texts[:-1:2], texts[1::2], strict=True)
    ], texts[-1]


def read_conversation(messages: Any, name: str = "messages") -> list[Turn]:
    """All turns of a conversation; what the user said behind the last reply is left out."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise Unusable(f"{name} is not a list")
    kept = list(messages)
    while kept and read_message(kept[-1], name)[0] != "assistant":
        kept.pop()
    if not kept:
        raise Unusable(f"{name} has no reply")
    earlier, asked = read_prompt(kept[:-1], name)
    return [*earlier, {"instruction": asked, "output": read_message(kept[-1], name)[1]}]
