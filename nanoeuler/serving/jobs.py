"""Jobs of the server, each a prompt with its replies, and the rows of the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nanoeuler.inference.decoder import Row
from nanoeuler.inference.sampling import Sampling
from nanoeuler.serving.text import ReplyText


class Scored(NamedTuple):
    """A token with its log-probability, and the likeliest tokens at its place with theirs.

    None for the first token of a text, which nothing predicts.
    """

    token: int
    logprob: float | None
    likeliest: list[tuple[int, float]]


class Piece(NamedTuple):
    """Tokens that one or more steps add to a reply."""

    choice: int
    """Which of the job's replies; −1 for a failure of them all."""
    ids: list[int]
    scored: list[Scored]
    """With log-probabilities: `ids`, and in the first piece the prompt before them if it was
    scored."""
    finish: str | None = None
    """Why the reply ends here: stop (`</s>` or a stop string) or length; else the API's error
    type, of a reply that failed."""


@dataclass(eq=False)
class Job:
    """A prompt, and the replies that are asked for: one for each of `samplings`."""

    prompt: list[int]
    samplings: Sequence[Sampling]
    max_tokens: int
    """Tokens of each reply; none to have the prompt scored only."""
    deliver: Callable[[Piece], None]
    stops: Sequence[str] = ()
    likeliest: int | None = None
    """Alternatives to be reported with each token; None: not even its own log-probability."""
    score_prompt: bool = False
    deadline: float = float("inf")
    """When it fails, by `time.monotonic`."""
    cancelled: bool = False
    """Nobody wants the replies any more."""
    scores: list[Scored] = field(default_factory=list)
    """Those of the prompt as far as it is read, with `score_prompt`."""


@dataclass(eq=False)
class ReplyRow(Row):
    """A reply that is being written. `</s>` is among its tokens."""

    job: Job = field(kw_only=True)
    choice: int = field(kw_only=True)
    text: ReplyText = field(kw_only=True)
    """Pushed only to find stop strings."""
    seen: int = 0
    """Tokens examined so far; the reply may end before the last one."""
    sent: int = 0
    """How many are in pieces that were delivered."""
    new_scored: list[Scored] = field(default_factory=list)
