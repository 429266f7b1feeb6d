"""Prompt templates: the text around an instruction. The folder of a tuned model names its one."""

import json
from collections.abc import Callable

ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, "
    "paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


def alpaca(instruction: str, input: str = "") -> str:
    """The two prompts of Stanford Alpaca (Taori et al. 2023); the response follows directly."""
    if input:
        return ALPACA_WITH_INPUT.format(instruction=instruction, input=input)
    return ALPACA_WITHOUT_INPUT.format(instruction=instruction)


def chat(instruction: str, input: str = "") -> str:
    """A few tokens around each turn, for long conversations; the input is its own paragraph."""
    paragraph = f"{input}\n\n" if input else ""
    return f"User: {instruction}\n\n{paragraph}Assistant: "


TEMPLATES: dict[str, Callable[..., str]] = {"alpaca": alpaca, "chat": chat}
"""Name → function (instruction, input) → prompt text.

A training record is `</s>` prompt response `</s>`, and so on for the turns of a conversation.
"""


def split_prompt(name: str, instruction: str, input: str = "") -> tuple[str, str]:
    """A prompt in two: what the user says, and the words in front of the response."""
    said, gap, heading = TEMPLATES[name](instruction, input).rpartition("\n\n")
    return said + gap, heading


def chat_template(name: str) -> str:
    """The template in Jinja, as transformers, llama.cpp and others fill it in.

    Messages become the training record: `</s>` prompt response `</s>` prompt response `</s>` …
    Messages up to a response (of the system, the developer, the user) are one prompt's paragraphs.
    The last of them may have an `input` beside its `content`. `add_generation_prompt` adds the
    words in front of the response. The server reads a chat in the same way.
    """
    further = "message['input']"
    alone = in_jinja(split_prompt(name, "turn.said")[0], "turn.said")
    with_input = in_jinja(split_prompt(name, "turn.said", further)[0], "turn.said", further)
    heading = in_jinja(split_prompt(name, "")[1])
    refusal = f"the template {name} has messages of system, user and assistant only"
    return (
        "{{ bos_token }}{% set turn = namespace(said='') %}{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}"
        f"{heading}{{{{ message['content'] }}}}{{{{ eos_token }}}}"
        "{% elif message['role'] in ['system', 'developer', 'user'] %}"
        "{% set turn.said = turn.said + message['content'] %}"
        "{% if loop.last or messages[loop.index]['role'] == 'assistant' %}"
        f"{{% if {further} %}}{with_input}{{% else %}}{alone}{{% endif %}}"
        "{% set turn.said = '' %}{% else %}{% set turn.said = turn.said + '\\n\\n' %}{% endif %}"
        f"{{% else %}}{{{{ raise_exception({json.dumps(refusal)}) }}}}{{% endif %}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{heading}{{% endif %}}"
    )


def in_jinja(text: str, *variables: str) -> str:
    """`text` as expressions of Jinja, which keep its white space; variables stand for values."""
    for variable in variables:
        text = text.replace(variable, f"\0{variable}\0")
    parts = (part for part in text.split("\0") if part)
    return "".join(f"{{{{ {part if part in variables else json.dumps(part)} }}}}" for part in parts)
