"""Fields of foreign records: what has no place here, placeholders, and what is not read.

Every field is read, or refused by name where leaving it out would change what is learned, or told
as not read.
"""

import re
from collections.abc import Mapping
from typing import Any

NO_PLACE = ("tools", "functions", "images", "image", "videos", "video", "audios", "audio")
"""Fields of a record that belong to its prompt, for which templates have no place."""
NO_PLACE_IN_MESSAGES = ("tool_calls", "function_call", "tool_call_id", *NO_PLACE)
TRAINED = ("train", "training", "loss")
"""Fields that, when false, say what OpenAI's `weight` 0 says: this reply is not learned."""
VERDICTS = ("label", "kto_tag")
"""Fields that, when false, call the reply a bad one, as in data for KTO."""
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
    if any("\ud800" <= letter <= "\udfff" for letter in value):
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
        if record.get(name) is False:
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
    return holder.get("weight") != 0 and not any(holder.get(name) is False for name in TRAINED)


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
