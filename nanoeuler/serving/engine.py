"""The process that decodes for all requests.

One thread serves all models, a step of each in turn: a step takes every core or the whole device.
Another one takes HTTP's messages.
"""

import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.finding import find_model
from nanoeuler.inference.forms import Form
from nanoeuler.serving.batch import Batch, Job
from nanoeuler.serving.channel import Cancel, More, Piece, ServedModel, Submit, Update
from nanoeuler.serving.fitting import Room, cache_memory, fit, prefix_memory
from nanoeuler.storage.files import explain_os_errors

PAUSE = 3
"""HTTP gets new parts of replies when this many times the time has passed that it took for the last
ones. Under load parts are longer, and a CPU's cores are left to the decoding."""


class Engine:
    """Decodes jobs that come from `inbox` and sends their pieces over a channel."""

    def __init__(
        self,
        batches: dict[str, Batch],
        channel: Connection,
        inbox: "SimpleQueue[Submit | Cancel | More]",
    ):
        self.batches, self.channel, self.inbox = batches, channel, inbox
        self.jobs: WeakValueDictionary[int, Job] = WeakValueDictionary()
        """Those of the batches, by number."""
        self.pieces: list[tuple[int, Piece]] = []
        self.next_parts = 0.0
        """When HTTP gets new parts of replies, by `time.monotonic`."""
        self.taken = 0
        self.sent = Update([], False, 0, 0, 0)

    def run(self) -> NoReturn:
        while True:
            self.take_messages()
            for batch in self.batches.values():
                if batch.busy:
                    self.step(batch)
            self.send()

    def take_messages(self) -> None:
        """Take what has come; wait for it when there is nothing to do."""
        while not self.inbox.empty() or not any(batch.busy for batch in self.batches.values()):
            match self.inbox.get():
                case Submit(model, jobs):
                    for number, fields in jobs:
                        if grammar := fields.pop("grammar", None):
                            fields["form"] = Form.of(self.batches[model].tokenizer, grammar)
                        self.batches[model].add(self.job(number, fields))
                    self.taken += len(jobs)
                case Cancel(numbers):
                    for number in numbers:
                        if job := self.jobs.get(number):
                            job.cancelled = True
                case More(seconds):
                    self.next_parts = time.monotonic() + PAUSE * seconds

    def job(self, number: int, fields: dict[str, Any]) -> Job:
        job = Job(deliver=lambda piece: self.pieces.append((number, piece)), **fields)
        self.jobs[number] = job
        return job

    def step(self, batch: Batch) -> None:
        """A step of one batch. Whatever goes wrong fails its jobs, and the next ones are served."""
        try:
            batch.step(time.monotonic())
        except UserError as error:
            log.line("error", str(error))
            batch.fail_all()
        except Exception:
            log.line("error", traceback.format_exc())
            batch.fail_all()

    def send(self) -> None:
        """Send ends of replies, and when it is time all that was written."""
        batches = self.batches.values()
        if all_parts := time.monotonic() >= self.next_parts:
            for batch in batches:
                batch.deliver()
        writing = sum(len(batch.rows) for batch in batches)
        waiting = sum(len(batch.waiting) for batch in batches)
        asks = all_parts and bool(self.pieces)
        update = Update(self.pieces, asks, writing, waiting, self.taken)
        if update != self.sent:
            with contextlib.suppress(OSError):  # HTTP's process has ended, so this one does
                self.channel.send(update)
            if asks:
                self.next_parts = float("inf")  # until HTTP is done with these
            self.pieces = []
            self.sent = Update([], False, writing, waiting, self.taken)


def decode(
    channel: Connection,
    inbox: "SimpleQueue[Submit | Cancel | More]",
    folders: Sequence[Path],
    rows: int | None,
    context: int | None,
    prefix_megabytes: float | None,
    loading: Mapping[str, Any],
) -> None:
    """Load models, send what HTTP must know of them or why they cannot be loaded, and decode.
    `loading`: see `load_models`."""
    try:
        with explain_os_errors():
            found = list(map(find_model, folders))  # once: a run's next stage may end meanwhile
            models = load_models(found, **loading)
            rooms = rooms_for(models, rows, context, prefix_megabytes)
            batches = {name: Batch(model, *rooms[name]) for name, model in models.items()}
            for batch in batches.values():
                batch.warm()
    except UserError as error:
        channel.send(error)
        return
    for name, model in models.items():
        log.line("model", f"{name}: {model!r}")
    served = zip(found, models.values(), batches.values(), strict=True)
    channel.send({name: described(*each) for name, each in zip(models, served, strict=True)})
    Engine(batches, channel, inbox).run()


def described(folder: Path, model: LanguageModel, batch: Batch) -> ServedModel:
    engine = model.transformer.backend.name
    known = folder, model.config, model.tokenizer, model.stage, model.template
    return ServedModel(*known, engine, batch.most_rows, batch.context)


def rooms_for(
    models: dict[str, LanguageModel],
    rows: int | None,
    context: int | None,
    prefix_megabytes: float | None,
) -> dict[str, Room]:
    """Rows and context of each model that fit into memory, shared equally, and what is left for the
    beginnings of prompts."""
    found = {}
    for name, model in models.items():
        memory = cache_memory(model.transformer, len(models))
        prefixes = prefix_memory(memory, prefix_megabytes)
        room = fit(model.transformer, rows, context, memory - prefixes, name)
        found[name] = room._replace(prefix_bytes=prefixes)
    return found


def load_models(folders: Sequence[Path], **loading: Any) -> dict[str, LanguageModel]:
    """The models in some folders by the names that clients give: run-stage. `loading`: further
    arguments of `api.load`."""
    models: dict[str, LanguageModel] = {}
    for folder in folders:
        name = free_name(model_name(folder), models)
        models[name] = api.load(folder, **loading)
    return models


def model_name(folder: Path) -> str:
    """demo-sft for results/demo/sft/model; the folder's own name where it lies otherwise."""
    parts = [part for part in folder.absolute().parts if part != "model"]
    name = "-".join(parts[-2:] if folder.name == "model" else parts[-1:])
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)


def free_name(name: str, taken: dict[str, LanguageModel]) -> str:
    """`name`, or name-2, name-3, … where others have it."""
    number = 2
    free = name
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free
