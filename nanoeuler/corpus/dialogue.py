"""Read conversations, in the formats of public data sets, as turns of `instruction` and `output`.

    messages       [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]
    conversations  [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]

The first is the format of chat completions, the second ShareGPT's. Templates have no field for a
system message: it becomes the first paragraph of the first instruction, unless it is empty.
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
    """A record is bad, for the reason in these few words; equal reasons are counted together."""


def check_text(value: Any, name: str, may_be_empty: bool = False) -> str:
    """Return `value` if it is a text that can be learned from; else raise `Unusable`."""
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
    """Return the role (system, user, assistant) and the text of one message."""
    if not isinstance(message, Mapping):
        raise Unusable(f"a message of {name} is no JSON object")
    role = ROLES.get(str(message.get("role", message.get("from"))))
    if role is None:
        raise Unusable(f"a message of {name} has an unknown role")
    content = message.get("content", message.get("value"))
    return role, check_text(content, f"a message of {name}", may_be_empty=role == "system")


def read_prompt(messages: Sequence[Any], name: str) -> tuple[list[Turn], str]:
    """Return the finished turns of a conversation, and the instruction that awaits a reply."""
    parts = [read_message(message, name) for message in messages]
    system = [text for role, text in parts if role == "system" and text.strip()]
    roles = [role for role, _ in parts if role != "system"]
    texts = [text for role, text in parts if role != "system"]
    if not texts:
        raise Unusable(f"{name} is empty")
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        raise Unusable(f"{name}: user and assistant do not take turns")
    texts[0] = "\n\n".join([*system, texts[0]])
    pairs = zip(texts[:-1:2], texts[1::2], strict=True)
    return [{"instruction": asked, "output": said} for asked, said in pairs], texts[-1]


def read_conversation(messages: Any, name: str = "messages") -> list[Turn]:
    """Return all turns of a conversation, without what the user said after the last reply."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise Unusable(f"{name} is not a list")
    kept = list(messages)
    while kept and read_message(kept[-1], name)[0] != "assistant":
        kept.pop()
    if not kept:
        raise Unusable(f"{name} has no reply")
    earlier, asked = read_prompt(kept[:-1], name)
    return [*earlier, {"instruction": asked, "output": read_message(kept[-1], name)[1]}]
