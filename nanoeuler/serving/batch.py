"""Continuous batching: sequences join and leave a running batch between its tokens.

A prompt is read by itself, in pieces of `PIECE` tokens with a decoding step of the others between
them, and its row then joins the batch as a copy. So the arithmetic of a prompt depends on the
prompt alone. On the CPU the arithmetic of a decoded row does, too: a reply has the same bits alone
and in company. On a GPU the products of another number of rows round otherwise, so a choice between
two tokens whose scores differ by rounding may fall otherwise in company.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nanoeuler.api import LanguageModel
from nanoeuler.inference.sampling import Sampling, choose
from nanoeuler.inference.window import PROMPT_MULTIPLE
from nanoeuler.model.config import round_up
from nanoeuler.serving.text import ReplyText

PIECE = 128
"""Tokens of a prompt that are read between two decoding steps of the others."""

MOST_ROWS = 64
"""Most sequences of a model that are decoded together, by default."""


class Scored(NamedTuple):
    """A token with its log-probability, and the likeliest tokens at its place with theirs.

    None for the first token of a text, which nothing predicts.
    """

    token: int
    logprob: float | None
    likeliest: list[tuple[int, float]]


class Piece(NamedTuple):
    """What a step adds to a reply."""

    choice: int
    """Which of the job's replies; −1 for the scores of its prompt, and for a failure."""
    tokens: int
    text: str
    scored: list[Scored]
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
    """Called from the thread that decodes."""
    stops: Sequence[str] = ()
    likeliest: int | None = None
    """Alternatives to be reported with each token; None: not even its own log-probability."""
    score_prompt: bool = False
    deadline: float = float("inf")
    """When it fails, by `time.monotonic`."""
    cancelled: bool = False
    """Set by any thread: nobody wants the replies any more."""
    scores: list[Scored] = field(default_factory=list)


@dataclass(eq=False)
class Row:
    """A reply that is being written."""

    job: Job
    choice: int
    text: ReplyText
    token: int = 0  # the last one
    written: int = 0

    @property
    def sampling(self) -> Sampling:
        return self.job.samplings[self.choice]

    @property
    def position(self) -> int:
        """Of the next token, from the start of the prompt: the sampler draws by it."""
        return len(self.job.prompt) + self.written


class Batch:
    """The sequences that one model decodes together."""

    def __init__(self, model: LanguageModel, rows: int = MOST_ROWS):
        self.model = model.transformer
        self.tokenizer, self.allowed_V = model.tokenizer, model.writer.allowed_V
        self.context = model.config.context
        # beyond them an engine decodes in another way, with other rounding
        self.most_rows = min(rows, self.model.backend.fused_rows)
        self.cache = self.model.new_cache(self.most_rows, self.context)
        self.cache.lengths = self.cache.lengths[:0]
        self.prompt_cache = self.model.new_cache(1, self.context)
        self.rows: list[Row] = []
        self.waiting: deque[Job] = deque()
        """Jobs whose prompt is unread; the first one's may be read in part."""

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def room(self, prompt: Sequence[int]) -> int:
        """The most tokens that the context leaves behind a prompt.

        The last token is written, not read, so it needs no place of its own.
        """
        return self.context - len(prompt) + 1

    def add(self, job: Job) -> None:
        """Let a job wait. It has at most `most_rows` samplings, a prompt of at least one token,
        and at most `room(prompt)` new ones."""
        self.waiting.append(job)

    def step(self, now: float) -> None:
        """Read some of the prompts that wait, and append a token to every row."""
        self.drop(now)
        self.read_prompts()
        if self.rows:
            self.decode()

    # ---- leaving

    def drop(self, now: float) -> None:
        """Remove what was cancelled or is late."""
        for row in reversed(range(len(self.rows))):
            if self.given_up(self.rows[row].job, now):
                self.leave(row)
        gone = [job for job in self.waiting if self.given_up(job, now)]
        for job in gone:
            if job is self.waiting[0]:
                self.prompt_cache.truncate(0, 0)
            self.waiting.remove(job)

    def given_up(self, job: Job, now: float) -> bool:
        if now > job.deadline and not job.cancelled:
            self.fail(job, "timeout")
        return job.cancelled

    def fail(self, job: Job, kind: str) -> None:
        job.cancelled = True
        job.deliver(Piece(-1, 0, "", [], kind))

    def fail_all(self, kind: str) -> None:
        """Fail every job, so that the next ones start afresh."""
        for job in {*self.waiting, *(row.job for row in self.rows)}:
            self.fail(job, kind)
        self.waiting.clear()
        self.rows.clear()
        self.cache.lengths = self.cache.lengths[:0]
        self.prompt_cache.truncate(0, 0)

    def leave(self, row: int) -> None:
        """Give up a row; the last one takes its place, as in the cache."""
        self.cache.remove(row)
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    # ---- joining

    def read_prompts(self) -> None:
        """Read about `PIECE` tokens of the prompts that wait, as long as there are free rows."""
        budget = PIECE
        while budget > 0 and self.waiting:
            job = self.waiting[0]
            if len(self.rows) + len(job.samplings) > self.most_rows:
                return
            begin = int(self.prompt_cache.lengths[0])
            piece = job.prompt[begin : begin + PIECE]
            budget -= len(piece)
            logits_1V = self.read_piece(job, piece)
            if logits_1V is not None:
                self.waiting.popleft()
                self.start_replies(job, logits_1V)
                self.prompt_cache.truncate(0, 0)

    def read_piece(self, job: Job, piece: list[int]) -> np.ndarray | None:
        """Read the next tokens of a prompt. Returns the logits behind its last one, (1, V)."""
        begin = int(self.prompt_cache.lengths[0])
        count, ends = len(piece), begin + len(piece) == len(job.prompt)
        width = round_up(count, PROMPT_MULTIPLE) if self.model.backend.chooses else count
        tokens = np.zeros((1, width), np.int32)
        tokens[0, :count] = piece
        counts = np.array([count])
        if job.score_prompt:
            logits_1NV = self.model.extend(self.prompt_cache, tokens, counts, every=True)
            logits_NV = self.host(logits_1NV)[0, :count]
            self.score_piece(job, begin, logits_NV)
            return logits_NV[-1:] if ends else None
        if not ends:
            self.model.append(self.prompt_cache, tokens, counts)
            return None
        return self.host(self.model.extend(self.prompt_cache, tokens, counts))

    def score_piece(self, job: Job, begin: int, logits_NV: np.ndarray) -> None:
        """Score the tokens of a prompt behind the one at `begin`, where the piece begins."""
        if begin == 0:
            job.scores.append(Scored(job.prompt[0], None, []))
        for logits_V, token in zip(logits_NV, job.prompt[begin + 1 :], strict=False):
            job.scores.append(self.score(logits_V, token, job.likeliest or 0))

    def start_replies(self, job: Job, logits_1V: np.ndarray) -> None:
        """Choose the first token of each reply to a prompt that was just read."""
        if job.score_prompt:
            job.deliver(Piece(-1, 0, "", job.scores))
        for choice in range(len(job.samplings)):
            row = Row(job, choice, ReplyText(self.tokenizer, job.stops))
            if job.max_tokens == 0:
                self.finish(row, "length")
                continue
            (token,) = choose(logits_1V, row.sampling, [row.position], self.allowed_V)
            if not self.write(row, int(token), logits_1V[0]):
                self.rows.append(row)
                self.cache.join(self.prompt_cache)

    # ---- decoding

    def decode(self) -> None:
        """Append a token to every row."""
        tokens_B1 = np.array([[row.token] for row in self.rows], np.int32)
        logits_BV = self.host(self.model.extend(self.cache, tokens_B1))
        samplings = [row.sampling for row in self.rows]
        positions = [row.position for row in self.rows]
        chosen_B = choose(logits_BV, samplings, positions, self.allowed_V).tolist()
        for row in reversed(range(len(self.rows))):
            if self.write(self.rows[row], chosen_B[row], logits_BV[row]):
                self.leave(row)

    def write(self, row: Row, token: int, logits_V: np.ndarray) -> bool:
        """Deliver a chosen token. Returns whether the reply has ended."""
        if token == self.tokenizer.end_id:
            self.finish(row, "stop")
            return True
        job = row.job
        row.token = token
        row.written += 1
        text = row.text.push(token)
        scored = [] if job.likeliest is None else [self.score(logits_V, token, job.likeliest)]
        finish = None
        if row.text.stopped:
            finish = "stop"
        elif row.written == job.max_tokens:
            finish = "length"
            text += row.text.end()
        job.deliver(Piece(row.choice, 1, text, scored, finish))
        return finish is not None

    def finish(self, row: Row, finish: str) -> None:
        row.job.deliver(Piece(row.choice, 0, row.text.end(), [], finish))

    def score(self, logits_V: np.ndarray, token: int, likeliest: int) -> Scored:
        """A token's log-probability under the model as it is, without temperature."""
        logits_V = logits_V.astype(np.float64)
        top = logits_V.max()
        logprobs_V = logits_V - top - np.log(np.exp(logits_V - top).sum())
        if likeliest == 0:
            return Scored(token, float(logprobs_V[token]), [])
        candidates_V = np.where(self.allowed_V, logprobs_V, -np.inf)
        best = np.argsort(-candidates_V, kind="stable")[:likeliest].tolist()
        return Scored(token, float(logprobs_V[token]), [(id, float(logprobs_V[id])) for id in best])

    def host(self, logits: np.ndarray) -> np.ndarray:
        return self.model.backend.to_host(logits)
