"""Read foreign records, and conversations as turns of `instruction` and `output`.

    messages       [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]
    conversations  [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]
    history        [["…", "…"], …]   what the user said and the reply to it, before an instruction

The first is the format of chat completions, the second ShareGPT's, the third LLaMA-Factory's.
Templates have no field for a system message: it becomes a paragraph of the instruction that
follows, or that it follows, unless it is empty. A reply of weight 0 is seen, not learned: its turn
has `learned` = False.

Every field of a record is read, or refused by name where leaving it out would change what is
learned, or told as not read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nanoeuler.storage.shape import is_text

NO_PLACE = ("tools", "functions", "images", "image", "videos", "video", "audios", "audio")
"""Fields of a record that belong to its prompt, for which templates have no place."""
NO_PLACE_IN_MESSAGES = ("tool_calls", "function_call", "tool_call_id", *NO_PLACE)
TRAINED = ("train", "training", "loss")
"""Fields that, when false, say what OpenAI's `weight` 0 says: this reply is not learned."""
VERDICTS = ("label", "kto_tag")
"""Fields that, when false, call the reply a bad one, as in data for KTO."""
FALSE = (False, "false", "False")
"""As JSON, tables and Python write it; 0 equals it, too."""
LAYOUTS = ("messages", "conversations", "prompt", "chosen", "rejected", "history")
"""Fields that may be lists of messages."""
READ_OF_MESSAGES = {
    *("role", "from", "content", "value", "name"),
    "weight",
    *TRAINED,
    *NO_PLACE_IN_MESSAGES,
}
READ_OF_ALL = {
    *("instruction", "input", "context", "system", "system_prompt", "history", "messages"),
    *("conversations", "weight"),
    *TRAINED,
    *VERDICTS,
    *NO_PLACE,
}
MOST_NAMES = 50  # of fields that are not read: beyond them, a file makes them up

NEEDED = r"( (required|needed|necessary|provided|given))?"
NO_INPUT = re.compile(
    rf"\W{{0,9}}no[ _-]?inputs?{NEEDED}\W{{0,9}}|<none>|<?n/a>?\.?", re.IGNORECASE
)
"""All of an input that says that there is none, in the spellings of Stanford's Alpaca."""
NO_OUTPUT = re.compile(rf"\W{{0,9}}no[ _-]?outputs?{NEEDED}\W{{0,9}}", re.IGNORECASE)
MARKED = re.compile(r"<\s?no[ _-]?(in|out)put", re.IGNORECASE)  # and perhaps why


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
    if not is_text(value):
        raise Unusable(f"{name} has half a character (a lone surrogate)")
    return value


def is_given(value: Any) -> bool:
    """Whether a field holds something: null, blank text and empty lists don't."""
    return bool(value.strip()) if isinstance(value, str) else value not in (None, False, [], {})


def first_given(record: Mapping[str, Any], *names: str) -> Any:
    """Return what the record holds under one of `names`, which mean the same.

    A field that holds nothing hides none of the others. Raises `Unusable` when two of them differ.
    """
    holding = [name for name in names if is_given(record.get(name))]
    if any(record[name] != record[holding[0]] for name in holding[1:]):
        raise Unusable(f"{' and '.join(holding)} differ")
    present = holding or [name for name in names if record.get(name) is not None]
    return record[present[0]] if present else None


def check_fields(record: Mapping[str, Any]) -> None:
    """Raise `Unusable` for a record that can be learned from only without some of its fields."""
    refuse_fields(record, NO_PLACE, "it has ")
    if not is_learned(record):
        raise Unusable("weight is 0")
    for name in VERDICTS:
        if record.get(name) in FALSE:
            raise Unusable(f"{name} is false: the reply is a bad one")


def refuse_fields(holder: Mapping[str, Any], names: tuple[str, ...], of: str = "") -> None:
    for name in names:
        value = holder.get(name)
        if is_given(value) and value not in ("[]", "{}", "null"):
            raise Unusable(f"{of}{name}, for which there is no place")


def is_learned(holder: Mapping[str, Any]) -> bool:
    """Read whether a reply is to be learned: most say nothing about it, and are."""
    if holder.get("weight") not in (None, 0, 1):
        raise Unusable("weight is neither 0 nor 1")
    return holder.get("weight") != 0 and not any(holder.get(name) in FALSE for name in TRAINED)


def read_input(record: Mapping[str, Any]) -> str:
    """Return the data of an instruction, which may be empty. A placeholder stands for none."""
    found = first_given(record, "input", "context")
    text = check_text("" if found is None else found, "input", may_be_empty=True)
    return "" if NO_INPUT.fullmatch(text.strip()) else text


def check_reply(value: Any, name: str) -> str:
    """Return a reply that can be learned from. Raises `Unusable` for a placeholder, too."""
    text = check_text(value, name)
    bare = text.strip()
    if NO_INPUT.fullmatch(bare) or NO_OUTPUT.fullmatch(bare) or MARKED.match(bare):
        raise Unusable(f"{name} is a placeholder")
    return text


def fields_not_read(record: Mapping[str, Any], read: set[str]) -> set[str]:
    """Return the names of fields beside `read` that hold something, also those of messages."""
    names = {str(key)[:60] for key, value in record.items() if key not in read and is_given(value)}
    for field in LAYOUTS:
        inside = record.get(field)
        for message in inside if isinstance(inside, list) else [inside]:
            if isinstance(message, Mapping):
                names |= {
                    f"{field}[].{str(key)[:60]}"
                    for key, value in message.items()
                    if key not in READ_OF_MESSAGES and is_given(value)
                }
    return names


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


def read_conversation(messages: Any) -> list[Turn]:
    """Return all turns of a conversation up to the last reply that is to be learned."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise Unusable("messages is not a list")
    roles = [read_message(message, "messages")[0] for message in messages]
    replies = [number for number, role in enumerate(roles) if role == "assistant"]
    learned = [number for number in replies if is_learned(messages[number])]
    if not learned:
        raise Unusable("messages has no reply" + (" but those of weight 0" if replies else ""))
    last = learned[-1]
    earlier, asked = read_prompt(messages[:last], "messages")
    return [*earlier, {"instruction": asked, "output": read_message(messages[last], "messages")[1]}]


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
