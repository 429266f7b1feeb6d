"""Continuous batching: sequences join and leave a running batch between its tokens.

A prompt is read by itself, in pieces of `PIECE` tokens with a decoding step of the others between
them, and its row then joins the batch as a copy. So the arithmetic of a prompt depends on the
prompt alone. On the CPU the arithmetic of a decoded row does, too: a reply has the same bits alone
and in company. On a GPU the products of another number of rows round otherwise, so a choice between
two tokens whose scores differ by rounding may fall otherwise in company.
"""

from collections import deque

import numpy as np

from nanoeuler.api import LanguageModel
from nanoeuler.backend.capabilities import ChoosingBackend, FusingBackend
from nanoeuler.inference.sampling import Sampling
from nanoeuler.inference.window import PROMPT_MULTIPLE
from nanoeuler.model.config import round_up
from nanoeuler.serving.jobs import Job, Piece, Row, Scored
from nanoeuler.serving.steps import DeviceSteps, HostSteps
from nanoeuler.serving.text import ReplyText

PIECE = 128
"""Tokens of a prompt that are read between two decoding steps of the others."""

MOST_ROWS = 64
"""Most sequences of a model that are decoded together, by default."""


class Batch:
    """The sequences that one model decodes together."""

    def __init__(self, model: LanguageModel, rows: int = MOST_ROWS):
        self.model = model.transformer
        self.tokenizer, self.allowed_V = model.tokenizer, model.writer.allowed_V
        engine = self.model.backend
        # beyond its rows an engine decodes in another way, with other rounding
        self.most_rows = min(rows, engine.fused_rows) if isinstance(engine, FusingBackend) else rows
        self.on_device = isinstance(engine, ChoosingBackend)
        context = model.config.context
        steps = DeviceSteps if self.on_device else HostSteps
        self.cache = self.model.new_cache(self.most_rows, context + steps.spare)
        self.steps = steps(self.model, self.cache, self.allowed_V)
        self.cache.lengths = self.cache.lengths[:0]
        self.prompt_cache = self.model.new_cache(1, context)
        self.rows: list[Row] = []
        self.waiting: deque[Job] = deque()
        """Jobs whose prompt is unread; the first one's may be read in part."""

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def add(self, job: Job) -> None:
        """Let a job wait. It has at most `most_rows` samplings, a prompt of at least one token, and
        no more new ones than the context has room for: see `requests.tokens_left`."""
        self.waiting.append(job)

    def warm(self) -> None:
        """Decode with every number of rows that a device compiles kernels and records steps for.

        The first requests would wait for that.
        """
        rows = 1
        while rows <= self.most_rows:
            samplings = [Sampling(1.0, seed=seed) for seed in range(rows)]
            self.add(Job([self.tokenizer.end_id], samplings, 4, lambda _: None))
            while self.busy:
                self.step(0.0)
            rows *= 2

    def step(self, now: float) -> None:
        """Read some of the prompts that wait, and append a token to every row."""
        self.model.backend.enter_thread()
        self.drop(now)
        self.read_prompts()
        if self.rows:
            self.decode()

    # ---- leaving

    def drop(self, now: float) -> None:
        """Remove what was cancelled or is late."""
        for row in list(self.rows):
            if self.given_up(row.job, now):
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
        self.steps.forget()
        self.cache.lengths = self.cache.lengths[:0]
        self.prompt_cache.truncate(0, 0)

    def leave(self, row: Row) -> None:
        """Give up a row; the last one takes its place, as in the cache."""
        row.left = True
        place = self.rows.index(row)
        self.cache.remove(place)
        self.rows[place] = self.rows[-1]
        self.rows.pop()

    # ---- joining

    def read_prompts(self) -> None:
        """Read about `PIECE` tokens of the prompts that wait, as long as there are free rows."""
        budget = PIECE
        while budget > 0 and self.waiting:
            job = self.waiting[0]
            if len(self.rows) + len(job.samplings) > self.most_rows:
                return
            budget -= self.read_piece(job)

    def read_piece(self, job: Job) -> int:
        """Read the next tokens of the prompt that waits first. Returns their number."""
        begin = int(self.prompt_cache.lengths[0])
        piece = job.prompt[begin : begin + PIECE]
        count, ends = len(piece), begin + len(piece) == len(job.prompt)
        width = round_up(count, PROMPT_MULTIPLE) if self.on_device else count
        tokens = np.zeros((1, width), np.int32)
        tokens[0, :count] = piece
        given = self.prompt_cache, tokens, np.array([count])
        rows = [
            Row(job, c, ReplyText(self.tokenizer, job.stops)) for c in range(len(job.samplings))
        ]
        logits_1V: np.ndarray | None = None
        if job.score_prompt:
            logits_NV = self.model.backend.to_host(self.model.extend(*given, every=True))[0, :count]
            self.score_piece(job, begin, logits_NV)
            logits_1V = logits_NV[-1:]
            if ends and job.max_tokens:
                self.steps.choose_first(logits_1V, rows)
        elif ends:
            logits_1V = self.steps.first(*given, rows)
        else:
            self.model.append(*given)
        if ends:
            self.waiting.popleft()
            self.start_replies(job, rows, logits_1V)
            self.prompt_cache.truncate(0, 0)
        return count

    def score_piece(self, job: Job, begin: int, logits_NV: np.ndarray) -> None:
        """Score the tokens of a prompt behind the one at `begin`, where the piece begins."""
        if begin == 0:
            job.scores.append(Scored(job.prompt[0], None, []))
        for logits_V, token in zip(logits_NV, job.prompt[begin + 1 :], strict=False):
            job.scores.append(self.score(logits_V, token, job.likeliest or 0))

    def start_replies(self, job: Job, rows: list[Row], logits_1V: np.ndarray | None) -> None:
        """Let the replies to a prompt that was just read join the batch."""
        for row in rows:
            if job.max_tokens == 0:
                self.finish(row, "length")
            elif not self.write(row, logits_1V, 0):
                self.rows.append(row)
                self.cache.join(self.prompt_cache)

    # ---- decoding

    def decode(self) -> None:
        """Append a token to every row."""
        rows, logits_BV = self.steps.next(self.rows)
        for index, row in enumerate(rows):
            if not row.left and self.write(row, logits_BV, index):
                self.leave(row)

    def write(self, row: Row, logits_BV: np.ndarray | None, index: int) -> bool:
        """Deliver the token that a row took, with its scores by `logits_BV[index]`.

        Returns whether the reply has ended.
        """
        job, token = row.job, row.token
        if token == self.tokenizer.end_id:
            self.finish(row, "stop")
            return True
        text = row.text.push(token)
        scored = []
        if job.likeliest is not None:
            assert logits_BV is not None
            scored = [self.score(logits_BV[index], token, job.likeliest)]
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
