"""The turns of a chat as the token ids that a model reads, and what else it could have written.

A tuned model reads records as in its training: `</s>` prompt response `</s>` prompt response …; a
base model reads a text, which continues until the model ends it by `</s>`. Turns too old for the
context are dropped whole, the oldest first.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoeuler.inference.generate import Reply, Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.log import printable

ALTERNATIVES = 5
"""Alternatives of a token, where the line has room for so many."""
NAME_COLUMNS = 14
"""Columns for the token that was written; a longer one moves its alternatives."""


@dataclass(frozen=True)
class Choice:
    """A token that was written, its probability, and the likeliest others with theirs."""

    token: int
    probability: float
    others: list[tuple[int, float]]


@dataclass
class Turn:
    prompt: list[int]  # `</s>` first, unless it continues the text of the turn before
    reply: list[int] = field(default_factory=list)
    ended: bool = False  # by `</s>`; False: broken off at the limit or by the user

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.reply


class Conversation:
    """The turns of a chat. `template` (None: a base model) makes a prompt of the user's text."""

    def __init__(self, writer: Writer, template: Callable[[str], str] | None, history: bool):
        self.writer = writer
        self.template = template
        self.history = history
        self.turns: list[Turn] = []
        self.position = 0
        """Tokens of the conversation so far, dropped ones too. The sampler draws by it, so that the
        same question twice need not get the same reply."""

    def reset(self) -> None:
        self.turns, self.position = [], 0

    def say(self, text: str) -> None:
        """Add a turn to be answered: behind the earlier ones, or without history alone."""
        continues_text = (
            self.template is None and self.history and self.turns and not self.turns[-1].ended
        )
        if continues_text:
            prompt = self.writer.tokenizer.encode(text, continues=True).tolist()
        else:
            prompt = self.writer.frame(text if self.template is None else self.template(text))
        if not self.history:
            self.turns = []
        self.turns.append(Turn(prompt))
        self.position += len(self.turns[-1].prompt)

    @property
    def unfinished(self) -> bool:
        """Whether the last reply can be continued."""
        return bool(self.turns) and not self.turns[-1].ended

    def forget(self, max_tokens: int) -> int:
        """Drop the oldest turns until the rest fits the context together with a reply of
        `max_tokens`, or of half the context where that is less. Returns the number dropped."""
        context, before = self.writer.model.config.context, len(self.turns)
        room = context - min(max_tokens, context // 2)
        while len(self.turns) > 1 and sum(len(turn.ids) for turn in self.turns) > room:
            del self.turns[0]
        return before - len(self.turns)

    def reply(self, sampling: Sampling, max_tokens: int) -> Reply:
        """The stream of the reply to the last turn, or of more of it. Hand it to `hear` when it has
        ended or was broken off."""
        ids = [id for turn in self.turns for id in turn.ids]
        return self.writer.stream(ids, sampling, max_tokens, self.position - len(ids))

    def hear(self, reply: Reply) -> None:
        """Add what was written to the last turn."""
        turn = self.turns[-1]
        turn.reply.extend(reply.ids)
        turn.ended = reply.ended
        self.position += len(reply.ids)

    def last_choices(self) -> list[Choice]:
        """Alternatives of each token of the last reply, its end too."""
        if not self.turns:
            return []
        last = self.turns[-1]
        written = [*last.reply, *([self.writer.tokenizer.end_id] if last.ended else [])]
        ids = [id for turn in self.turns[:-1] for id in turn.ids] + last.prompt + written
        return choices(self.writer, ids, len(written)) if written else []


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
    order_TV = np.argsort(-shares_TV, axis=1, kind="stable")[:, : ALTERNATIVES + 1]
    return [
        Choice(
            token,
            float(shares_V[token]),
            [(int(other), float(shares_V[other])) for other in order if other != token][
                :ALTERNATIVES
            ],
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
    calls = writer.tokenizer.call_ids
    if calls and token in calls:
        return "(call)" if token == calls[0] else "(called)"
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
