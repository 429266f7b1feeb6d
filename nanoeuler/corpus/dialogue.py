"""Read conversations, in the formats of public data sets, as turns of `instruction` and `output`.

    messages       [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]
    conversations  [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]
    history        [["…", "…"], …]   what the user said and the reply to it, before an instruction

The first is the format of chat completions, the second ShareGPT's, the third LLaMA-Factory's.
Templates have no field for a system message: it becomes a paragraph of the instruction that
follows, or that it follows, unless it is empty. A reply of weight 0 is seen, not learned: its turn
has `learned` = False.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nanoeuler.corpus.record_fields import (
    NO_PLACE_IN_MESSAGES,
    Unusable,
    check_text,
    first_given,
    is_given,
    is_learned,
    refuse_fields,
)

Turn = dict[str, Any]
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
OF_TOOLS = ("tool", "function", "function_call", "observation", "ipython")


def read_message(message: Any, name: str) -> tuple[str, str]:
    """Return the role (system, user, assistant) and the text of one message."""
    if not isinstance(message, Mapping):
        raise Unusable(f"a message of {name} is no JSON object")
    said = str(first_given(message, "role", "from"))
    role = ROLES.get(said)
    if role is None:
        what = f"the role {said}" if said in OF_TOOLS else "an unknown role"
        raise Unusable(f"a message of {name} has {what}")
    refuse_fields(message, NO_PLACE_IN_MESSAGES, f"a message of {name} has ")
    content = first_given(message, "content", "value")
    if isinstance(content, list) and content:
        content = "".join(read_part(part, name) for part in content)
    return role, check_text(content, f"a message of {name}", may_be_empty=role == "system")


def read_part(part: Any, name: str) -> str:
    """Return the text of one part of a content, as OpenAI writes them."""
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise Unusable(f"a message of {name} has a part that is not text")
    return check_text(part.get("text"), f"a part of {name}", may_be_empty=True)


def check_speakers(messages: Sequence[Any], name: str) -> None:
    """Raise `Unusable` where a name tells who speaks, for which templates have no place."""
    named = {
        (str(message.get("role") or message.get("from")), str(message["name"]))
        for message in messages
        if isinstance(message, Mapping) and is_given(message.get("name"))
    }
    if len({role for role, _ in named}) < len(named):
        raise Unusable(f"{name} has several speakers of one role")
    if "system" in dict(named):
        raise Unusable(f"{name} has a name for a system message")


def read_prompt(messages: Sequence[Any], name: str) -> tuple[list[Turn], str]:
    """Return the finished turns of a conversation, and the instruction that awaits a reply."""
    check_speakers(messages, name)
    turns: list[Turn] = []
    paragraphs: list[str] = []
    asked = False
    for message in messages:
        role, text = read_message(message, name)
        if asked == (role == "user") and role != "system":
            raise Unusable(f"{name}: user and assistant do not take turns")
        if role == "assistant":
            turn: Turn = {"instruction": "\n\n".join(paragraphs), "output": text}
            turns.append(turn if is_learned(message) else turn | {"learned": False})
            paragraphs = []
        elif text.strip():
            paragraphs.append(text)
        asked = role == "user" or (asked and role == "system")
    if not asked and not turns:
        raise Unusable(f"{name} is empty")
    if not asked:
        raise Unusable(f"{name}: user and assistant do not take turns")
    return turns, "\n\n".join(paragraphs)


def read_conversation(messages: Any, name: str = "messages") -> list[Turn]:
    """Return all turns of a conversation up to the last reply that is to be learned."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise Unusable(f"{name} is not a list")
    replies = [
        number
        for number, message in enumerate(messages)
        if read_message(message, name)[0] == "assistant"
    ]
    learned = [number for number in replies if is_learned(messages[number])]
    if not learned:
        raise Unusable(f"{name} has no reply" + (" but those of weight 0" if replies else ""))
    last = learned[-1]
    earlier, asked = read_prompt(messages[:last], name)
    return [*earlier, {"instruction": asked, "output": read_message(messages[last], name)[1]}]


def messages_before(record: Mapping[str, Any], following: Sequence[Any] = ()) -> list[Any]:
    """Return what a record has in front of its prompt: its `system` message and its `history`.

    `following` has the messages that come next, which may repeat the system message.
    """
    found = first_given(record, "system", "system_prompt")
    system = check_text("" if found is None else found, "system", may_be_empty=True)
    messages = [{"role": "system", "content": system}] if system.strip() else []
    history = record.get("history")
    if is_given(history):
        if not isinstance(history, Sequence) or isinstance(history, str):
            raise Unusable("history is not a list")
        for said in history:
            if isinstance(said, Mapping):
                messages.append(dict(said))
            elif isinstance(said, list | tuple) and len(said) == 2:
                messages.append({"role": "user", "content": said[0]})
                messages.append({"role": "assistant", "content": said[1]})
            else:
                raise Unusable("history has something else than pairs of texts")
    if system.strip() and following:
        role, text = read_message(following[0], "the conversation")
        if role == "system":
            if len(messages) > 1 or text != system:
                raise Unusable("system and the system message differ")
            return []
    return messages


def check_repeated(record: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `Unusable` for a text beside a conversation that is none of its messages' texts."""
    said = [
        text
        for field in ("messages", "conversations")
        if isinstance(record.get(field), list)
        for _, text in (read_message(message, field) for message in record[field])
    ]
    for name in names:
        text = record.get(name)
        if is_given(text) and not any(str(text).strip() in whole for whole in said):
            raise Unusable(f"{name} is not in the conversation")
