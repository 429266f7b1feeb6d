"""Continuous batching: sequences join and leave a running batch between its tokens.

A prompt is read in pieces, with a decoding step of the others between them, and its row then joins
the batch as a copy. On the CPU it is read by itself, so that its arithmetic depends on it alone; a
decoded row's does, too: a reply has the same bits alone and in a batch. A GPU reads several prompts
together, and the products of another number of rows round otherwise, so that in a batch another of
two tokens whose scores differ by rounding may be sampled.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.decoder import Decoder, Row
from nanoeuler.inference.device_decoder import PROMPT_MULTIPLE, decoder_kind
from nanoeuler.inference.forms import Form
from nanoeuler.inference.sampling import Sampling
from nanoeuler.inference.speculation import DeviceSpeculation, Speculation
from nanoeuler.model.appending import append, extend
from nanoeuler.model.calls import Calls
from nanoeuler.model.config import round_up
from nanoeuler.serving.channel import Piece, Scored
from nanoeuler.serving.fitting import MOST_PROMPTS, USUAL_ROWS, most_rows, prompt_rows
from nanoeuler.serving.prefixes import Prefixes
from nanoeuler.tokenizer.tokenizer import StreamDecoder

PIECE = 128
"""Tokens of a prompt that are read between two decoding steps of the others."""

DEVICE_PIECE = 512
"""Such tokens on a device, which takes less than twice as long for them as for a quarter."""

MOST_TOGETHER = MOST_PROMPTS * PIECE
"""Most tokens of these, with what pads them to one length."""

KEPT_TOKENS = 12 * MOST_TOGETHER
"""A device keeps steps for this many tokens of prompts: for all their numbers and lengths."""


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
    form: Form | None = None
    """That of each reply, which otherwise ends by `length`."""
    deadline: float = float("inf")
    """When it fails, by `time.monotonic`."""
    cancelled: bool = False
    """Nobody wants the replies any more."""
    scores: list[Scored] = field(default_factory=list)
    """Those of the prompt as far as it is read, with `score_prompt`."""
    cached: int = 0
    """Tokens of the prompt that were read for others."""


@dataclass(eq=False)
class ReplyRow(Row):
    """A reply that is being written. `</s>` is among its tokens."""

    job: Job = field(kw_only=True)
    choice: int = field(kw_only=True)
    text: StreamDecoder | None = field(kw_only=True)
    """Where there are stop strings, to find them."""
    seen: int = 0
    """Tokens examined so far; the reply may end before the last one."""
    sent: int = 0
    """How many are in pieces that were delivered."""
    new_scored: list[Scored] = field(default_factory=list)
    scored_calls: Calls | None = None
    """Those of its tokens that are scored."""


class Batch:
    """The sequences that one model decodes together."""

    def __init__(
        self,
        model: LanguageModel,
        rows: int = USUAL_ROWS,
        context: int | None = None,
        prefix_bytes: float = 0,
    ):
        """At most `rows` replies, each within `context` tokens (default: the model's).
        `prefix_bytes`: what the beginnings of prompts may take that are kept for others."""
        self.model = model.transformer
        self.tokenizer, self.allowed_V = model.tokenizer, model.writer.allowed_V
        engine = self.model.backend
        self.most_rows = most_rows(self.model, rows)
        self.context = context or model.config.context
        self.on_device = isinstance(engine, ChoosingBackend)
        speculation = Speculation.of(self.model) if model.writer.speculates else None
        sizes = self.most_rows, self.context
        self.decoder: Decoder[ReplyRow] = decoder_kind(self.model)(
            *(self.model, *sizes, self.allowed_V, speculation),
            joining=True,
            calculator=model.writer.calculator,
        )
        self.piece = DEVICE_PIECE if self.on_device else PIECE
        self.prefixes = Prefixes(self.piece, prefix_bytes)
        prompts = prompt_rows(self.model, self.most_rows)
        self.prompt_cache = self.model.new_cache(prompts, self.context)
        if self.on_device:
            self.prompt_cache.memory.pass_tokens = KEPT_TOKENS
        self.forget_prompts()
        self.waiting: deque[Job] = deque()
        """Jobs whose prompt is unread; the first one's may be read in part."""

    @property
    def rows(self) -> list[ReplyRow]:
        """The replies that are being written."""
        return self.decoder.rows

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    def add(self, job: Job) -> None:
        """Let a job wait. It has at most `most_rows` samplings, a prompt of at least one token, and
        no more new ones than the context has room for: see `requests.tokens_left`."""
        self.waiting.append(job)

    def warm(self) -> None:
        """Decode with every number of rows that a device compiles kernels and records steps for,
        with drafts, and behind prompts of each number and length that it reads.

        The first requests would wait for that.
        """
        speculation, self.decoder.speculation = self.decoder.speculation, None
        for rows in numbers_of_rows(self.most_rows):
            self.warm_up(rows)
        if self.on_device:
            for prompts in numbers_of_rows(min(MOST_PROMPTS, self.most_rows)):
                rows, _ = rectangle(prompts, 1)
                longest = min(self.piece, MOST_TOGETHER // rows, self.context)
                for length in range(1, longest + 1, PROMPT_MULTIPLE):
                    self.warm_up(prompts, length)
            self.warm_up(1, self.piece + 1)
        if speculation:
            self.decoder.speculation = Speculation.of(self.model)
            if isinstance(self.decoder.speculation, DeviceSpeculation):
                self.decoder.speculation.pays = True  # whatever the text
            self.warm_up(1)
            self.decoder.speculation = speculation  # what the warm-up drafted tells nothing

    def warm_up(self, rows: int, prompt_tokens: int = 1) -> None:
        tokens = min(4 + rows // MOST_PROMPTS, self.decoder.cache.capacity - 1)
        prompt_tokens = min(prompt_tokens, self.context - tokens)
        prompt = [self.tokenizer.end_id] * prompt_tokens
        for _ in range(2):  # what is recorded is recorded at its second run
            for seed in range(rows):
                samplings = [Sampling(1.0, seed=seed)]
                self.add(Job(prompt, samplings, tokens, lambda _: None))
            while self.busy:
                self.step(0.0)

    def step(self, now: float) -> None:
        """Read some of the prompts that wait, and append a token to every row, or several to one
        that is alone."""
        self.model.backend.runtime.enter_thread()
        self.drop(now)
        self.read_prompts()
        if self.rows:
            self.decode()

    def deliver(self) -> None:
        """Deliver what was written since the last time. A reply's end is delivered at once."""
        for row in self.rows:
            if row.seen > row.sent:
                self.send(row, row.seen)

    # ---- leaving

    def drop(self, now: float) -> None:
        """Remove what was cancelled or is late."""
        for row in [row for row in self.rows if row.job.cancelled or now > row.job.deadline]:
            self.decoder.remove(row)
            self.fail(row.job, "timeout")
        for job in [job for job in self.waiting if job.cancelled or now > job.deadline]:
            if job is self.waiting[0]:
                self.forget_prompts()
            self.waiting.remove(job)
            self.fail(job, "timeout")

    def fail(self, job: Job, kind: str) -> None:
        """Fail a job that is still wanted."""
        if not job.cancelled:
            job.cancelled = True
            job.deliver(Piece(-1, [], [], kind))

    def fail_all(self) -> None:
        """Fail every job, so that the next ones start afresh."""
        for job in {*self.waiting, *(row.job for row in self.rows)}:
            self.fail(job, "server_error")
        self.waiting.clear()
        self.decoder.clear()
        self.forget_prompts()

    def forget_prompts(self) -> None:
        self.prompt_cache.lengths = np.zeros(1, np.int32)

    # ---- joining

    def read_prompts(self) -> None:
        """Read about `piece` tokens of the prompts that wait, as long as there are free rows."""
        budget = self.piece
        while budget > 0 and self.waiting:
            job = self.waiting[0]
            if len(self.rows) + len(job.samplings) > self.most_rows:
                return
            together = self.readable_together() if self.on_device else []
            if len(together) > 1:
                read = self.read_whole(together)
            else:
                read = self.read_piece(job)
            budget -= max(read, PIECE) if self.on_device else read  # fewer take as long there

    def readable_together(self) -> list[Job]:
        """The first jobs that wait, as far as their prompts can be read in one pass."""
        jobs: list[Job] = []
        if self.prompt_cache.lengths.any():
            return jobs
        most, longest = min(MOST_PROMPTS, self.most_rows - len(self.rows)), 0
        for job in itertools.islice(self.waiting, most):
            plain = len(job.samplings) == 1 and job.likeliest is None and not job.score_prompt
            longest = max(longest, len(job.prompt))
            tokens = math.prod(rectangle(len(jobs) + 1, longest))
            if not plain or longest > self.piece or tokens > MOST_TOGETHER or job.max_tokens == 0:
                break
            jobs.append(job)
        return jobs

    def read_whole(self, jobs: list[Job]) -> int:
        """Read the prompts of the first jobs that wait. Returns the number of their tokens."""
        rows = [self.new_row(job, 0) for job in jobs]
        most, width = rectangle(len(jobs), max(len(job.prompt) for job in jobs))
        prompts = [*(job.prompt for job in jobs), *[[]] * (most - len(jobs))]
        self.prompt_cache.lengths = np.zeros(most, np.int32)
        self.decoder.prefill(self.prompt_cache, prompts, rows)
        for index, row in enumerate(rows):
            self.waiting.popleft()
            self.start_reply(row, index, None)
        self.forget_prompts()
        return most * width

    def read_piece(self, job: Job) -> int:
        """Read the next tokens of the prompt that waits first. Returns their number."""
        begin = int(self.prompt_cache.lengths[0])
        if begin == 0 and not job.score_prompt:
            begin = job.cached = self.prefixes.begin(job.prompt, self.prompt_cache)
        # scores are the host's work, for which the others wait
        most = PIECE if job.score_prompt else self.piece
        piece = job.prompt[begin : begin + most]
        ends = begin + len(piece) == len(job.prompt)
        model, cache, decoder = self.model, self.prompt_cache, self.decoder
        rows = [self.new_row(job, choice) for choice in range(len(job.samplings))]
        logits_1V: np.ndarray | None = None
        if job.score_prompt:
            logits_1NV = extend(model, cache, *decoder.padded([piece]), every=True)
            logits_NV = model.backend.to_host(logits_1NV)[0, : len(piece)]
            self.score_piece(job, begin, logits_NV)
            logits_1V = logits_NV[-1:]
            if ends and job.max_tokens:
                decoder.sample_first(logits_1V, rows)
        elif ends:
            logits_1V = decoder.prefill(cache, [piece], rows)
        else:
            append(model, cache, *decoder.padded([piece]))
        if len(piece) == self.piece and not job.score_prompt:
            self.prefixes.keep(job.prompt, cache)
        if ends:
            self.waiting.popleft()
            for row in rows:
                self.start_reply(row, 0, logits_1V)
            self.forget_prompts()
        return round_up(len(piece), decoder.prompt_multiple)

    def new_row(self, job: Job, choice: int) -> ReplyRow:
        text = StreamDecoder(self.tokenizer, job.stops) if job.stops else None
        scored, form = job.likeliest is not None, job.form and job.form.begin()
        known = job.prompt, job.samplings[choice]
        row = ReplyRow(*known, wants_logits=scored, form=form, job=job, choice=choice, text=text)
        self.decoder.heed_calls(row)
        if scored and row.calls:
            row.scored_calls = Calls(row.calls.calculator, job.prompt)
        return row

    def score_piece(self, job: Job, begin: int, logits_NV: np.ndarray) -> None:
        """Score the tokens of a prompt behind the one at `begin`, where the piece begins."""
        if begin == 0:
            job.scores.append(Scored(job.prompt[0], None, []))
        for logits_V, token in zip(logits_NV, job.prompt[begin + 1 :], strict=False):
            job.scores.append(self.score(logits_V, token, job.likeliest or 0))

    def start_reply(self, row: ReplyRow, prompt: int, logits_1V: np.ndarray | None) -> None:
        """Let the reply to a prompt that was just read, to row `prompt` of its cache, join."""
        row.new_scored = list(row.job.scores)
        if row.job.max_tokens == 0:
            self.send(row, row.seen, "length")
        elif not self.look([row], logits_1V):
            self.decoder.join(row, self.prompt_cache, prompt)

    # ---- decoding

    def decode(self) -> None:
        """Append tokens to every row."""
        # from the last one on: where they end together, no slots of the cache move
        for row in reversed(self.look(*self.decoder.next())):
            self.decoder.remove(row)

    def look(self, rows: list[ReplyRow], logits_BV: np.ndarray | None) -> list[ReplyRow]:
        """Look at the tokens that rows took. Returns the replies that have ended with them."""
        ended, end_id = [], self.tokenizer.end_id
        for index, row in enumerate(rows):
            ids = row.ids
            is_plain = not row.wants_logits and row.text is None and end_id not in ids[row.seen :]
            if is_plain and len(ids) < row.job.max_tokens:  # the usual case, in the least time
                row.seen = len(ids)
            elif not row.left and self.has_ended(
                row, None if logits_BV is None else logits_BV[index]
            ):
                ended.append(row)
        return ended

    def has_ended(self, row: ReplyRow, logits_V: np.ndarray | None) -> bool:
        """Has a reply ended with its new tokens? They are scored by `logits_V`, where it is wanted.

        Its end is delivered.
        """
        job = row.job
        for token in row.ids[row.seen :]:
            row.seen += 1
            if row.form and row.form.failure:
                self.fail(job, "form")
                return True
            if token == self.tokenizer.end_id:
                self.send(row, row.seen - 1, "stop")
                return True
            if job.likeliest is not None:
                assert logits_V is not None
                is_result = row.scored_calls is not None and row.scored_calls.take(token)
                row.new_scored.append(
                    Scored(token, None, [])
                    if is_result
                    else self.score(logits_V, token, job.likeliest)
                )
            if row.text:
                row.text.push(token)
                if row.text.stopped:
                    self.send(row, row.seen, "stop")
                    return True
            if row.seen == job.max_tokens:
                is_whole = row.form and row.form.is_whole(row.ids[: row.seen], self.allowed_V)
                self.send(row, row.seen, "stop" if is_whole else "length")
                return True
        return False

    def send(self, row: ReplyRow, tokens: int, finish: str | None = None) -> None:
        """Deliver what is new in the first `tokens` of a reply."""
        cached = 0 if row.sent or row.choice else row.job.cached
        piece = Piece(row.choice, row.ids[row.sent : tokens], row.new_scored, finish, cached)
        row.sent, row.new_scored = tokens, []
        row.job.deliver(piece)

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


def numbers_of_rows(most: int) -> list[int]:
    """For which a device records steps: powers of two, and `most`."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def rectangle(prompts: int, longest: int) -> tuple[int, int]:
    """Rows and tokens that a device takes for so many prompts."""
    return 1 << (prompts - 1).bit_length(), round_up(longest, PROMPT_MULTIPLE)
