"""What a run's stages learned from, and the steps at which they read each part of it.

Rows are a function of seed, stream and step (training/streams.py), so that nothing was logged for
this: the order of the rows is drawn again. A stage whose replies are its own, `rl`, has no text.
"""

import contextlib
import functools
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.config.settings import Pretrain
from nanoeuler.config.stages import BY_NAME, DPO, PRETRAIN, SFT, Stage, parent_of
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import WEIGHTS, read_description
from nanoeuler.storage.files import atomic_write
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore, token_dtype
from nanoeuler.tracing.index import Part
from nanoeuler.tracing.suffix_array import suffix_array
from nanoeuler.training.job import row_facts
from nanoeuler.training.pairs import PairStream, encode_pairs
from nanoeuler.training.records import RecordStream, TokenRecord, encode_records
from nanoeuler.training.resuming import Skipped, changes
from nanoeuler.training.stages import dpo, pretrain, sft
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.streams import row_order

KEPT = "traced.npz"


class Reading(NamedTuple):
    """A step of a stage, and the epoch that its rows belong to, both counted from 1."""

    stage: str
    epoch: int
    step: int


@dataclass(frozen=True)
class Rows:
    """The rows of a stage: how many an epoch and a step have, and the steps of its model."""

    stage: str
    seed: int
    rows: int
    rows_per_step: int
    steps: int
    skipped: Skipped

    def readings(self, wanted: Iterable[int]) -> list[Reading]:
        """The steps that had one of the rows `wanted`, in their order."""
        numbers = np.unique(np.fromiter(wanted, np.int64))
        stream_steps = self.skipped.rows_of(self.steps - 1) + 1 if self.steps else 0
        found = set()
        for epoch in range(math.ceil(stream_steps * self.rows_per_step / self.rows)):
            for place in row_places(self.seed, self.stage, epoch, self.rows)[numbers].tolist():
                update = self.skipped.update_of((epoch * self.rows + place) // self.rows_per_step)
                if update is not None and update < self.steps:
                    found.add(Reading(self.stage, epoch + 1, update + 1))
        return sorted(found, key=lambda reading: (reading.step, reading.epoch))


@functools.lru_cache(maxsize=16)
def row_places(seed: int, stage: str, epoch: int, rows: int) -> np.ndarray:
    """The place (rows,) int32 of each row in the order of an epoch."""
    places = np.empty(rows, np.int32)
    places[row_order(seed, stage, epoch, rows)] = np.arange(rows, dtype=np.int32)
    return places


@dataclass(frozen=True)
class Lesson:
    """What a stage learned from: `rows_of(first, length)` are the rows with these tokens of it."""

    rows: Rows
    rows_of: Callable[[int, int], Iterable[int]]
    records: "Records | None" = None
    """Instructions or preferences; None of pretraining, whose text the index of tokens has."""

    def readings(self, first: int, length: int) -> list[Reading]:
        return self.rows.readings(self.rows_of(first, length))


class Records(NamedTuple):
    """Encoded records as one text, indexed; record i begins at `starts[i]`."""

    kind: str
    licence: str
    part: Part
    starts: np.ndarray


def lessons(model_folder: Path, config: Mapping[str, Any], tokens: TokenStore) -> list[Lesson]:
    """What the model in `model_folder`, of a run of `config`, and those before it learned from.

    A stage whose model is given by `init_from` ends the line: it is of another run. Raises
    `UserError` where a model is not the one that the next stage started from, or was trained on
    other rows than `config` has.
    """
    tokenizer = Tokenizer.load(model_folder / "tokenizer.json")
    stage: Stage | None = BY_NAME[model_folder.parent.name]
    of_records = dict.fromkeys((SFT.section, DPO.section), record_lesson)
    makers = {PRETRAIN.section: text_lesson, **of_records}
    found: list[Lesson] = []
    parent: tuple[Stage, str] | None = None  # whose model started from one with this hash
    while stage:
        folder = model_folder.parents[1] / stage.name / "model"
        description = read_description(folder)[1]
        if parent and parent[1] != description["sha256"][WEIGHTS]:
            raise UserError(
                f"{folder}: is not the model that the stage {parent[0].name} started from, so that "
                f"nobody knows what that one read; run the stage {parent[0].name} again"
            )
        if make := makers.get(stage.section):
            given = stage, config, tokenizer, description, tokens, folder.parent
            found.append(make(Told(*given)))
        if config[stage.section].get("init_from"):
            break
        before = description["info"].get("parent")
        parent, stage = (stage, before) if before else None, parent_of(stage, config)
    return found[::-1]


class Kept(NamedTuple):
    """What a stage learned from records: their tokens one after another, and their rows."""

    tokens: np.ndarray  # in the dtype of shards
    order: np.ndarray  # their suffix array
    starts: np.ndarray  # (records,) where each begins
    row_of: np.ndarray  # (records,) the row that each is packed into
    sizes: np.ndarray  # (2,) rows of an epoch, and of a step


class Told(NamedTuple):
    """A stage, and all that says what it read."""

    stage: Stage
    config: Mapping[str, Any]
    tokenizer: Tokenizer
    description: Mapping[str, Any]
    tokens: TokenStore
    folder: Path

    @property
    def settings(self) -> Any:
        return self.stage.settings.read(self.config[self.stage.section])

    @property
    def model(self) -> ModelConfig:
        model = ModelConfig.from_dict(self.config["model"])
        return replace(model, context=getattr(self.settings, "context", None) or model.context)

    def rows(self, data: Sequence[str], rows: int, rows_per_step: int) -> Rows:
        """The rows of the stage, made of what has the hashes `data`."""
        info, seed = self.description["info"], self.config["seed"]
        now = row_facts(seed, data, rows, rows_per_step)
        if changed := changes(info.get("rows", now), now):
            raise UserError(
                f"{self.folder}: its model was trained on other rows than the configuration has "
                f"now, so that the steps would be wrong ({', '.join(changed)}); run the stage "
                f"{self.stage.name} again"
            )
        skipped = Skipped(info.get("skipped", []))
        return Rows(self.stage.section, seed, rows, rows_per_step, info["step"], skipped)

    def kept(
        self, records: list[TokenRecord], stream: RecordStream | PairStream, sides: int
    ) -> Kept:
        """What is kept of records, of which `sides` are packed together."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        tokens = np.concatenate([record.tokens for record in records]).astype(dtype)
        starts = np.cumsum([0, *(len(record.tokens) for record in records)])[:-1]
        row_of = np.empty(len(records) // sides, np.int64)
        for row, packed in enumerate(stream.packed):
            row_of[packed] = row
        sizes = np.array([stream.row_count, stream.rows_per_step])
        return Kept(tokens, suffix_array(tokens), starts, np.repeat(row_of, sides), sizes)

    @property
    def inputs(self) -> Inputs[Any]:
        return Inputs.of_run(self.config, self.stage, self.settings)


def text_lesson(told: Told) -> Lesson:
    settings: Pretrain = told.settings
    old = TokenStore.open(settings.old_tokens) if settings.old_tokens else None
    end_id, seed = told.tokenizer.end_id, told.config["seed"]
    text = told.tokens.tokens("train"), old
    stream = pretrain.training_stream(settings, told.model, *text, end_id, seed)
    length = stream.length

    left_out = told.description["info"].get("without", [])

    def rows_of(first: int, tokens: int) -> range:
        if any(start <= first < stop for start, stop in left_out):  # a span is of one document
            return range(0)
        return range(first // length, (first + tokens - 1) // length + 1)

    sizes = stream.row_count, stream.rows_per_step
    return Lesson(told.rows([told.tokens.fingerprint], *sizes), rows_of)


def learned(told: Told, folder: RecordFolder) -> Kept:
    """The records that a stage learned from, encoded again."""
    model, end_id, seed = told.model, told.tokenizer.end_id, told.config["seed"]
    apart, template = told.inputs.apart()[0], told.description["template"]
    given = folder.file("train"), told.tokenizer, template, model.context, apart
    if told.stage.pairs:
        pairs, _ = encode_pairs(*given)
        rows, _ = dpo.training_stream(told.settings, model, pairs, end_id, seed)
        return told.kept([side for pair in pairs for side in pair.sides], rows, 2)
    records, _ = encode_records(*given)
    stream, _ = sft.training_stream(told.settings, model, records, end_id, seed)
    return told.kept(records, stream, 1)


def record_lesson(told: Told) -> Lesson:
    """The lesson of a stage's records. What `learned` finds is kept beside the stage's model, as
    tens of thousands of records take half a minute; it is found again if that is damaged, or of
    another training."""
    assert told.stage.records is not None
    folder = RecordFolder(told.inputs.data, told.stage.records.kind)
    path, fingerprint = told.folder / KEPT, told.description["info"]["fingerprint"]
    found = read_kept(path, fingerprint)
    kept = found or learned(told, folder)
    data = [folder.check(part) for part in ("train", "validation")]
    rows = told.rows(data, *kept.sizes.tolist())
    if found is None:
        with contextlib.suppress(OSError, UserError), atomic_write(path, "wb") as file:
            np.savez(file, fingerprint=fingerprint, **kept._asdict())
    for array in (kept.tokens, kept.order):
        array.setflags(write=False)  # as those of the index are, of which there is machine code
    part = Part("train", folder.stage, 0, kept.tokens, kept.order)
    records = Records(folder.stage, folder.manifest.get("licence") or "", part, kept.starts)

    def rows_of(first: int, tokens: int) -> list[int]:
        record = int(np.searchsorted(kept.starts, first, side="right")) - 1
        return [int(kept.row_of[record])]

    return Lesson(rows, rows_of, records)


def read_kept(path: Path, fingerprint: str) -> Kept | None:
    """What an earlier trace kept of a training; None where there is none, or it is damaged."""
    try:
        with np.load(path) as arrays:
            if str(arrays["fingerprint"]) == fingerprint:
                return Kept(*(arrays[name] for name in Kept._fields))
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile, zlib.error):
        pass
    return None
