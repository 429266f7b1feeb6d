"""Prompt templates: the text around an instruction. The folder of a tuned model names its one."""

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
