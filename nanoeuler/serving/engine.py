"""The thread that decodes for all requests, and its queue.

One thread serves all models, a step of each in turn: a step takes every core or the whole device.
"""

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.serving.batch import Batch
from nanoeuler.serving.jobs import Job, Piece

PAUSE = 3
"""The event loop gets new parts of replies when this many times the time has passed that it took
for the last ones: while it writes them, Python can do nothing else. Under load parts are longer."""


class Busy(Exception):
    """The queue is full. `seconds` is when to try again."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full; try again in {seconds} s")
        self.seconds = seconds


class Engine:
    """Decodes jobs in a thread of its own and hands their pieces to an event loop."""

    def __init__(self, batches: dict[str, Batch], longest_queue: int):
        self.batches, self.longest_queue = batches, longest_queue
        self.changed = threading.Condition()
        self.arrived: list[tuple[Batch, Job]] = []
        self.stopping = False
        self.outbox: list[tuple[Callable[[Piece], None], Piece]] = []
        self.reply_seconds = 1.0
        """How long a reply takes, from start to end: a moving average."""
        self.next_send = 0.0
        """When the event loop takes new parts, by `time.monotonic`."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self.run, name="decoding", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread.start()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify()
        self.thread.join()

    # ---- for the thread of the event loop

    def job(self, receive: Callable[[Piece], None], **fields: Any) -> Job:
        """A job whose pieces `receive` gets in the event loop's thread."""
        return Job(deliver=lambda piece: self.outbox.append((receive, piece)), **fields)

    def submit(self, model: str, jobs: Sequence[Job]) -> None:
        """Let jobs wait for rows. Raises `Busy`."""
        with self.changed:
            if self.waiting + len(jobs) > self.longest_queue:
                raise Busy(self.seconds_to_wait())
            self.arrived += [(self.batches[model], job) for job in jobs]
            self.changed.notify()

    @property
    def waiting(self) -> int:
        """Jobs whose prompt is not read yet."""
        return len(self.arrived) + sum(len(batch.waiting) for batch in self.batches.values())

    @property
    def writing(self) -> int:
        """Replies that are being written."""
        return sum(len(batch.rows) for batch in self.batches.values())

    def seconds_to_wait(self) -> int:
        """About when the queue will be shorter, from 1 to 60 seconds."""
        rows = sum(batch.most_rows for batch in self.batches.values())
        return round(min(max(self.reply_seconds * self.waiting / rows, 1), 60))

    def note_reply(self, seconds: float) -> None:
        self.reply_seconds += 0.1 * (seconds - self.reply_seconds)

    # ---- the thread

    def run(self) -> None:
        while self.take_arrived():
            for batch in self.batches.values():
                if batch.busy:
                    self.step(batch)
            self.send()

    def take_arrived(self) -> bool:
        """Put new jobs into their batches; wait for one when there is nothing to do. Returns
        whether to go on."""
        with self.changed:
            busy = any(batch.busy for batch in self.batches.values())
            while not (busy or self.arrived or self.stopping):
                self.changed.wait()
            for batch, job in self.arrived:
                batch.add(job)
            self.arrived.clear()
        return not self.stopping

    def step(self, batch: Batch) -> None:
        """A step of one batch. Whatever goes wrong fails its jobs, and the next ones are served."""
        try:
            batch.step(time.monotonic())
        except UserError as error:
            log.line("error", str(error))
            batch.fail_all("server_error")
        except Exception:
            log.line("error", traceback.format_exc())
            batch.fail_all("server_error")

    def send(self) -> None:
        """Hand over ends of replies, and when it is time all that was written, in one call."""
        assert self.loop is not None
        if all_parts := time.monotonic() >= self.next_send:
            for batch in self.batches.values():
                batch.deliver()
        pieces, self.outbox = self.outbox, []
        if pieces:
            if all_parts:
                self.next_send = float("inf")  # until the event loop is done with these
            self.loop.call_soon_threadsafe(self.receive, pieces, all_parts)

    # ---- in the thread of the event loop

    def receive(
        self, pieces: Sequence[tuple[Callable[[Piece], None], Piece]], all_parts: bool
    ) -> None:
        began = time.thread_time()
        try:
            for receive, piece in pieces:
                receive(piece)
        finally:
            if all_parts and self.loop is not None:
                # behind the tasks that the pieces have woken, which write them
                self.loop.call_soon(self.received, began)

    def received(self, began: float) -> None:
        self.next_send = time.monotonic() + PAUSE * (time.thread_time() - began)
