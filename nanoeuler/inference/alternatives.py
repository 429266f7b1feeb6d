"""The likeliest tokens at each position of a reply."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler.inference.generate import Writer
from nanoeuler.log import printable

MOST = 5
"""Alternatives of a token, where the line has room for so many."""
NAME_COLUMNS = 14
"""Columns for the token that was written; a longer one moves its alternatives."""


@dataclass(frozen=True)
class Choice:
    """A token that was written, its probability, and the likeliest others with theirs."""

    token: int
    probability: float
    others: list[tuple[int, float]]


def choices(writer: Writer, ids: Sequence[int], count: int) -> list[Choice]:
    """The choices of the last `count` of `ids`, or of as many as the model's context holds.

    Probabilities are those of the model, before temperature, top-k and top-p, among the tokens that
    it may write.
    """
    read = np.array(ids[:-1][-writer.model.config.context :], np.int32)
    written = list(ids[-min(count, len(read)) :])
    scores_TV = writer.logits(read[None])[0, -len(written) :].astype(np.float64)
    scores_TV[:, ~writer.allowed_V] = -np.inf
    weights_TV = np.exp(scores_TV - scores_TV.max(axis=1, keepdims=True))
    shares_TV = weights_TV / weights_TV.sum(axis=1, keepdims=True)
    order_TV = np.argsort(-shares_TV, axis=1, kind="stable")[:, : MOST + 1]
    return [
        Choice(
            token,
            float(shares_V[token]),
            [(int(other), float(shares_V[other])) for other in order if other != token][:MOST],
        )
        for token, shares_V, order in zip(written, shares_TV, order_TV, strict=True)
    ]


def table(writer: Writer, found: Sequence[Choice], columns: int) -> str:
    """A line of at most `columns` columns for each choice."""
    lines = []
    for choice in found:
        name = shown(writer, choice.token)
        text = f"{percent(choice.probability):>5}  {name}{' ' * (NAME_COLUMNS - width(name))} "
        for token, share in choice.others:
            other = f"  {shown(writer, token)} {percent(share)}"
            if width(text + other) > columns:
                break
            text += other
        lines.append(text.rstrip())
    return "\n".join(lines)


def shown(writer: Writer, token: int) -> str:
    """A token on one line, with its spaces visible."""
    if token == writer.tokenizer.end_id:
        return "(end)"
    text = writer.tokenizer.decode_bytes([token], continues=True).decode(
        "utf-8", "backslashreplace"
    )
    return printable(text.replace("\n", "\\n").replace("\t", "\\t").replace(" ", "·"))


def percent(share: float) -> str:
    if share < 0.001:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def width(text: str) -> int:
    """Columns of a text on a terminal."""
    marks = sum(unicodedata.combining(character) > 0 for character in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(c) in "WF" for c in text)
