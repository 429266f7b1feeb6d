"""Convert preference pairs, two replies to one prompt of which one is better, to checked records.

    nanoeuler preferences --config config/small.yaml --name alpaca_farm \\
        --output data/preferences/alpaca_farm

They are read in these formats:

    instruction, input, output_1, output_2, preference
                    `preference` is the better output, 1 or 2 (AlpacaFarm)
    prompt | instruction | question, chosen, rejected
                    texts, or lists of messages that end with the reply (UltraFeedback, Orca)
    messages | conversations, chosen, rejected
                    the prompt is a conversation that waits for a reply (chat, ShareGPT)

Each may have a `system` message, a `history` and an `input`, as instructions do. Pairs that nothing
can be learned from are left out and counted. All pairs of one prompt are on one side of the split.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nanoeuler.corpus.dialogue import (
    READ_OF_ALL,
    Turn,
    Unusable,
    check_fields,
    check_reply,
    check_text,
    first_given,
    is_given,
    is_learned,
    messages_before,
    read_input,
    read_message,
    read_prompt,
)
from nanoeuler.corpus.instructions import RecordKind

Pair = dict[str, Any]
"""instruction, input, chosen, rejected and, for a conversation, `earlier`: the turns before."""
READ = {
    *(READ_OF_ALL | {"prompt", "question", "chosen", "rejected"}),
    *("output_1", "output_2", "preference"),
}
WANTED = "prompt, chosen and rejected, or instruction, output_1, output_2 and preference"


def count_longer(pairs: Collection[Pair]) -> dict[str, Any]:
    """How often the chosen reply is the longer one, which a model could learn instead."""
    return {"chosen_is_longer": sum(len(each["chosen"]) > len(each["rejected"]) for each in pairs)}


def read_pair(value: Any) -> Pair:
    """Read the pair in a JSON value. Raises `Unusable`."""
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    check_fields(value)
    before: list[Any] = []
    if "output_1" in value or "output_2" in value:
        check_text(value.get("instruction"), "instruction")
        outputs = [check_reply(value.get(name), name) for name in ("output_1", "output_2")]
        preference = value.get("preference")
        if isinstance(preference, bool) or preference not in (1, 2):
            raise Unusable("preference is neither 1 nor 2")
        chosen, rejected = outputs if preference == 1 else outputs[::-1]
    else:
        before_chosen, chosen = read_side(value.get("chosen"), "chosen")
        before_rejected, rejected = read_side(value.get("rejected"), "rejected")
        if before_chosen and before_rejected and before_chosen != before_rejected:
            raise Unusable("chosen and rejected reply to different prompts")
        before = before_chosen or before_rejected
    earlier, instruction = read_prompt_of(value, before)
    if chosen.strip() == rejected.strip():
        raise Unusable("both sides are the same")
    pair: Pair = {
        "instruction": instruction,
        "input": read_input(value),
        "chosen": chosen,
        "rejected": rejected,
    }
    return pair | ({"earlier": earlier} if earlier else {})


def read_side(value: Any, name: str) -> tuple[list[Any], str]:
    """Return the messages before a reply, if it comes with some, and the reply."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise Unusable(f"{name} is empty")
        role, reply = read_message(value[-1], name)
        if role != "assistant":
            raise Unusable(f"{name} does not end with a reply")
        if not is_learned(value[-1]):
            raise Unusable(f"{name} has weight 0")
        return list(value[:-1]), reply
    return [], check_reply(value, name)


def read_prompt_of(value: Mapping[str, Any], before: list[Any]) -> tuple[list[Turn], str]:
    """Return the earlier turns and the instruction of a pair.

    The messages in front of the replies, `before`, are the prompt; a text or a conversation beside
    them may repeat it. Else a field of text is the prompt, else a conversation.
    """
    prompt = first_given(value, "prompt", "instruction", "question")
    talk = first_given(value, "messages", "conversations")
    if isinstance(prompt, list) and prompt:
        prompt, talk = None, first_given({"prompt": prompt, "messages": talk}, "prompt", "messages")
    if before and talk and list(talk)[: len(before)] != before[: len(talk)]:
        raise Unusable("prompt and the messages before the replies differ")
    messages = before or talk
    if not messages:
        messages = [{"role": "user", "content": check_text(prompt, "prompt")}]
    elif not isinstance(messages, list):
        raise Unusable("messages is not a list")
    elif is_given(prompt):
        said = [read_message(message, "the prompt")[1] for message in messages]
        if not any(check_text(prompt, "prompt").strip() in text for text in said):
            raise Unusable("prompt is not in the conversation")
    return read_prompt([*messages_before(value, messages), *messages], "the prompt")


prepare = RecordKind("preferences", read_pair, WANTED, READ, "pairs", count_longer).prepare
