"""Templates of Go's text/template, as far as those that we write need it.

Compared with go 1.27 on what test_gguf.py renders.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[()]|:?=|[^\s()"=:]+')
FUNCTIONS: dict[str, Any] = {
    "eq": lambda first, *others: first in others,
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "printf": lambda form, *values: form % values,
}


def rendered(template: str, data: dict[str, Any]) -> str:
    """The text that `template` makes of `data`. Raises for what is not known here."""
    texts = ACTION.split(template)  # text and action in turns
    parts = [part for pair in zip(texts[::2], [*texts[1::2], None], strict=True) for part in pair]
    out: list[str] = []
    end = run(parts, 0, data, {}, out, alive=True)
    assert end >= len(parts) - 1, "an end too many"
    return "".join(out)


def run(parts, at, dot, variables, out, *, alive) -> int:
    """Execute from `at` up to an `else` or `end` of an outer block; returns where that is.

    Where not `alive`, actions are passed over.
    """
    while at < len(parts):
        if alive:
            out.append(parts[at])
        if parts[at + 1] is None:
            return at + 1
        words = WORD.findall(parts[at + 1])
        at += 2
        if words[0] in ("else", "end"):
            return at - 1
        if words[0] == "range":
            items = value(iter(words[1:]), dot, variables) if alive else []
            start = at
            for item in items:
                at = run(parts, start, item, variables, out, alive=True)
            at = (at if items else run(parts, start, dot, variables, out, alive=False)) + 1
        elif words[0] == "if":
            at = choose(parts, at, words[1:], dot, variables, out, alive=alive)
        elif alive and len(words) > 1 and words[1] in (":=", "="):
            assert (words[0] in variables) == (words[1] == "="), f"{words[0]} {words[1]}"
            variables[words[0]] = call(iter(words[2:]), dot, variables)
        elif alive:
            out.append(call(iter(words), dot, variables))
    return at


def choose(parts, at, condition, dot, variables, out, *, alive) -> int:
    """Execute the branches of an `if`; returns what follows its `end`."""
    open_ = alive
    while True:
        taken = open_ and (condition is None or bool(call(iter(condition), dot, variables)))
        at = run(parts, at, dot, variables, out, alive=taken)
        open_ = open_ and not taken
        words = WORD.findall(parts[at])
        at += 1
        if words == ["end"]:
            return at
        condition = words[2:] if words[1:2] == ["if"] else None


def call(words: Iterator[str], dot: Any, variables: dict[str, Any]) -> Any:
    """A function with its arguments, or a value alone."""
    first = next(words)
    if first not in FUNCTIONS:
        return value(iter([first]), dot, variables) if first != "(" else call(words, dot, variables)
    arguments = []
    for word in words:
        if word == ")":
            break
        again = call(words, dot, variables) if word == "(" else value(iter([word]), dot, variables)
        arguments.append(again)
    return FUNCTIONS[first](*arguments)


def value(words: Iterator[str], dot: Any, variables: dict[str, Any]) -> Any:
    word = next(words)
    if word.startswith('"'):
        return json.loads(word)
    if word.startswith("."):
        return dot[word[1:]]
    return {"true": True, "false": False}[word] if word in ("true", "false") else variables[word]
