"""The two processes of a server, and what they send each other.

The one that was started speaks HTTP; its child owns models, batches and samplers. So an interpreter
that writes to clients holds up no step. A message to HTTP carries what all replies have got since
the last one. When one process ends, the other notices that the channel is closed, and ends too.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nanoeuler import log
from nanoeuler.errors import UserError

if TYPE_CHECKING:  # nothing is imported here that starts threads, which a fork would lose
    from pathlib import Path

    from nanoeuler.model.config import ModelConfig
    from nanoeuler.tokenizer import Tokenizer

DRAINING = (signal.SIGINT, signal.SIGTERM)
"""Signals for HTTP's process, which drains; for the other one they stay blocked."""


class ServedModel(NamedTuple):
    """A served model as the HTTP process sees it."""

    folder: "Path"
    config: "ModelConfig"
    tokenizer: "Tokenizer"
    stage: str
    template: str | None
    engine: str
    """Name of the backend that computes."""
    most_rows: int
    """Most replies that are written at a time."""
    context: int
    """Most tokens of a prompt and its reply together."""


class Scored(NamedTuple):
    """A token with its log-probability, and the likeliest tokens at its place with theirs.

    None for the first token of a text, which nothing predicts, and for results of the calculator,
    which were not sampled.
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
    cached: int = 0
    """Tokens of the prompt that were read for others; in the first piece of its first reply."""


class Submit(NamedTuple):
    """New jobs for a model, as (number, fields of `Job`)."""

    model: str
    jobs: list[tuple[int, dict[str, Any]]]


class Cancel(NamedTuple):
    """Nobody wants these jobs any more."""

    numbers: list[int]


class More(NamedTuple):
    """HTTP has written the last parts of replies, which took it some seconds."""

    seconds: float


class Update(NamedTuple):
    """Parts of replies since the last update."""

    pieces: list[tuple[int, Piece]]
    """By the number of their job."""
    asks: bool
    """Whether `More` shall follow before further parts; ends of replies come at once."""
    writing: int
    """Replies that are being written."""
    waiting: int
    """Jobs whose prompt is not read yet."""
    taken: int
    """Jobs that have arrived, all in all."""


class Busy(Exception):
    """The queue is full. `seconds` is when to try again."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full; try again in {seconds} s")
        self.seconds = seconds


class EngineProcess:
    """The process that decodes, for the one that speaks HTTP."""

    def __init__(self, decode: Callable[..., None], longest_queue: int, *load: Any):
        """`decode` gets there its end of the channel, the messages that arrive, and `load`."""
        self.longest_queue = longest_queue
        self.receivers: dict[int, Callable[[Piece], None]] = {}
        self.models: dict[str, ServedModel] = {}
        self.submitted = 0
        self.status = Update([], False, 0, 0, 0)
        self.reply_seconds = 1.0
        """How long a reply takes, from start to end: a moving average."""
        self.ended = False
        context = multiprocessing.get_context("fork")
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=run_child, args=(decode, self.channel, theirs, *load))
        signal.pthread_sigmask(signal.SIG_BLOCK, DRAINING)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DRAINING)
        theirs.close()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # it has nothing to finish
        self.process.join()

    def wait(self) -> None:
        """Wait until the models are loaded. Raises `UserError` where they cannot be."""
        try:
            loaded = self.channel.recv()
        except (EOFError, OSError):
            raise self.failure() from None
        if isinstance(loaded, UserError):
            raise loaded
        self.models = loaded

    def failure(self) -> UserError:
        """How the process ended that should not have."""
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return UserError(f"the process that decodes {how}, so the server ends; start it again")

    # ---- for the event loop

    def start(self, loop: asyncio.AbstractEventLoop, when_ended: Callable[[], None]) -> None:
        """Let the loop take updates, and call `when_ended` if the process ends."""
        self.loop, self.when_ended = loop, when_ended
        loop.add_reader(self.channel.fileno(), self.receive)

    def submit(
        self, model: str, jobs: Sequence[tuple[Callable[[Piece], None], dict[str, Any]]]
    ) -> list[int]:
        """Let jobs wait for rows, each given as (what gets its pieces, fields of `Job`).

        Returns their numbers. Raises `Busy`.
        """
        if self.waiting + len(jobs) > self.longest_queue:
            raise Busy(self.seconds_to_wait())
        numbers = list(range(self.submitted, self.submitted + len(jobs)))
        numbered = zip(numbers, jobs, strict=True)
        self.channel.send(Submit(model, [(number, fields) for number, (_, fields) in numbered]))
        self.submitted += len(jobs)
        self.receivers.update(zip(numbers, (receive for receive, _ in jobs), strict=True))
        return numbers

    def leave(self, numbers: Sequence[int], *, cancel: bool) -> None:
        """Take no more pieces of these jobs."""
        for number in numbers:
            self.receivers.pop(number, None)
        if cancel:
            self.send(Cancel(list(numbers)))

    def send(self, message: Cancel | More) -> None:
        with contextlib.suppress(OSError):  # it has ended: `receive` will see that
            self.channel.send(message)

    @property
    def writing(self) -> int:
        """Replies that are being written."""
        return self.status.writing

    @property
    def waiting(self) -> int:
        """Jobs whose prompt is not read yet."""
        return self.status.waiting + self.submitted - self.status.taken

    def seconds_to_wait(self) -> int:
        """About when the queue will be shorter, from 1 to 60 seconds."""
        rows = sum(model.most_rows for model in self.models.values())
        return round(min(max(self.reply_seconds * self.waiting / rows, 1), 60))

    def note_reply(self, seconds: float) -> None:
        self.reply_seconds += 0.1 * (seconds - self.reply_seconds)

    def receive(self) -> None:
        """Take an update."""
        began = time.thread_time()
        try:
            self.status = update = self.channel.recv()
        except (EOFError, OSError):
            self.end()
            return
        for number, piece in update.pieces:
            if receive := self.receivers.get(number):
                receive(piece)
        if update.asks:
            # behind the tasks that the pieces have woken, which write them
            self.loop.call_soon(self.ask, began)

    def ask(self, began: float) -> None:
        self.send(More(time.thread_time() - began))

    def end(self) -> None:
        """Fail what is being written, as nothing follows."""
        self.loop.remove_reader(self.channel.fileno())
        self.ended = True
        for receive in list(self.receivers.values()):
            receive(Piece(-1, [], [], "server_error"))
        self.when_ended()


def run_child(
    decode: Callable[..., None], other: Connection, channel: Connection, *load: Any
) -> None:
    """Decode until HTTP's process ends."""
    other.close()
    inbox: SimpleQueue[Submit | Cancel | More] = SimpleQueue()
    threading.Thread(target=listen, args=(channel, inbox), daemon=True).start()
    decode(channel, inbox, *load)


def listen(channel: Connection, inbox: "SimpleQueue[Submit | Cancel | More]") -> NoReturn:
    """Take messages, at any time; end the process with HTTP's."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(channel.recv())
    log.line("error", "the process that speaks HTTP has ended, so decoding ends, too")
    os._exit(1)
