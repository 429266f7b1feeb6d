"""Calls of the calculator within replies: as text, as tokens, and as they are being written.

As text a call stands in front of its result, in the notation of GSM8K (Cobbe et al. 2021):

    48/2 = <<48/2=24>>24 clips

As tokens it is `… = ` CALL `48/2` CALL_END `24` ` clips`, every piece encoded by itself. The tokens
of the result are put in by whoever decodes, and never learned. Readers see `48/2 = 24 clips`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.model.calculator import (
    MOST_CHARACTERS,
    NUMBER,
    TOO_LARGE,
    UNDEFINED,
    UNREADABLE,
    calculate,
    evaluate,
)
from nanoeuler.tokenizer import Tokenizer

CALL = re.compile(r"<<([-+*/()×÷−x., \d]+)=([^<>=\n]*)>>", re.ASCII)
"""What looks like a call: behind << an expression's characters alone."""
NUMBER_ALONE = re.compile(rf"-?(?:{NUMBER})(?!\d|[.,]\d)", re.ASCII)
RESULT = re.compile(f"{NUMBER_ALONE.pattern}|{UNDEFINED}|{UNREADABLE}|{TOO_LARGE}", re.ASCII)


class Texts(NamedTuple):
    """A text with calls in parts."""

    parts: list[str]
    """Text, expression, result, text, expression, result, …, text."""
    dropped: int
    """Calls whose result, or the number behind them, is not what the calculator says."""


def split_calls(text: str) -> Texts:
    """Split a text at its calls.

    The number behind a call may be written in another way than the calculator writes it (`22,500`),
    and is then written in its way. A call that says something else than the calculator is dropped:
    its text stays.
    """
    parts, at, dropped = [""], 0, 0
    for found in CALL.finditer(text):
        parts[-1] += text[at : found.start()]
        at = found.end()
        expression, said = found.groups()
        result = calculate(expression)
        behind = RESULT.match(text, at)
        if behind and same(said, result) and same(behind[0], result):
            parts += [expression, result, ""]
            at = behind.end()
        else:
            dropped += 1
    parts[-1] += text[at:]
    return Texts(parts, dropped)


def same(text: str, result: str) -> bool:
    """Is a text the calculator's result, maybe as the same number written in another way?"""
    are_numbers = all(
        len(each) <= MOST_CHARACTERS and NUMBER_ALONE.fullmatch(each) for each in (text, result)
    )
    return text == result or (are_numbers and evaluate(text) == evaluate(result))


def without_calls(text: str) -> str:
    """A text as it is read."""
    parts = split_calls(text).parts
    return "".join(part for index, part in enumerate(parts) if index % 3 != 1)


class EncodedReply(NamedTuple):
    ids: np.ndarray  # int32 (n,)
    learned: np.ndarray  # bool (n,): False for results
    calls: int
    dropped: int


def encode_reply(text: str, tokenizer: Tokenizer) -> EncodedReply:
    """The tokens of a reply, which may have calls; a tokenizer without their tokens drops all."""
    parts, dropped = split_calls(text)
    calls = len(parts) // 3
    call_ids = tokenizer.call_ids
    if call_ids is None:
        parts, calls, dropped = [without_calls(text)], 0, dropped + calls
    pieces, learned = [], []
    for index, part in enumerate(parts):
        ids = tokenizer.encode(part, continues=True)
        if call_ids and index % 3 == 1:
            ids = np.array([call_ids[0], *ids, call_ids[1]], np.int32)
        pieces.append(ids)
        learned.append(np.full(len(ids), index % 3 != 2))
    return EncodedReply(np.concatenate(pieces), np.concatenate(learned), calls, dropped)


class Calculator:
    """The calculator of a model that has learned to call it."""

    def __init__(self, tokenizer: Tokenizer):
        assert tokenizer.call_ids is not None
        self.tokenizer, self.end_id = tokenizer, tokenizer.end_id
        self.call_id, self.call_end_id = tokenizer.call_ids

    def result(self, expression: Sequence[int]) -> list[int]:
        """The tokens of the result of an expression."""
        tokenizer = self.tokenizer
        known = max(expression, default=0) < tokenizer.vocab_size  # a model may have more
        result = calculate(tokenizer.decode(expression, continues=True) if known else "")
        return tokenizer.encode(result, continues=True).tolist()

    def results(self, ids: Sequence[int]) -> list[bool]:
        """Which tokens of a reply are those of results, as the decoder put them in."""
        calls = Calls(self, ())
        return [calls.take(id) for id in ids]


class Calls:
    """The calls of a reply that is being written, as far as it has come.

    A call may be broken off by its end or `</s>`, and a prompt may end within one: it goes on.
    CALL_END without CALL means nothing, and another CALL begins anew.
    """

    def __init__(self, calculator: Calculator, prompt: Sequence[int]):
        self.calculator = calculator
        self.expression: list[int] | None = None
        """The tokens since CALL, within a call."""
        self.given: list[int] = []
        """The tokens of a result that are to follow."""
        if calculator.call_id in prompt:
            last = len(prompt) - 1 - list(reversed(prompt)).index(calculator.call_id)
            for id in prompt[last:]:
                self.take(id)

    def correct(self, sampled: list[int]) -> None:
        """Put what is given in the place of what was sampled there."""
        given = self.given[: len(sampled)]
        sampled[: len(given)] = given

    def follow(self, ids: Sequence[int]) -> int:
        """Note tokens, and return how many of them stand: those behind the end of a call were
        sampled without its result."""
        for number, id in enumerate(ids, 1):
            self.take(id)
            if id == self.calculator.call_end_id and self.given:
                return number
        return len(ids)

    def take(self, id: int) -> bool:
        """Note a token. Returns whether it is one of a result."""
        if self.given and id == self.given.pop(0):
            return True
        self.given = []
        if id == self.calculator.call_id:
            self.expression = []
        elif id == self.calculator.call_end_id and self.expression is not None:
            self.given, self.expression = self.calculator.result(self.expression), None
        elif id == self.calculator.end_id:
            self.expression = None
        elif self.expression is not None:
            self.expression.append(id)
        return False
