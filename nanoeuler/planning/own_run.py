"""A configuration for one's own text, made for the minutes and the machine at hand.

The size of the model follows two rules. It must have time to read the text `EPOCHS` times, or
`TOKENS_PER_PARAMETER` tokens for each of its parameters if that is less; and it has at most
`PARAMETERS_PER_TOKEN` parameters for each token of the text, since a larger one learns the text by
heart. The largest size that keeps both is taken. Speeds are measured: a second of real steps each.
docs/own-text.md has the measurements behind the constants.
"""

import filecmp
import glob
import itertools
import math
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nanoeuler import log
from nanoeuler.backend import make_backend
from nanoeuler.config.loading import load_files
from nanoeuler.config.yaml_file import write_yaml
from nanoeuler.corpus.document_sources import OwnText
from nanoeuler.corpus.openings import openings_of
from nanoeuler.corpus.own_text import Entry, Named, is_output
from nanoeuler.corpus.sources.own_text import GO_ON
from nanoeuler.corpus.sources.registry import choose_readers
from nanoeuler.corpus.split import last_of_own_text, position
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameter_count
from nanoeuler.planning import data as planned_data
from nanoeuler.planning import plan as planning
from nanoeuler.planning import speed as planned_speed
from nanoeuler.planning.text_sample import Sample, bytes_per_token
from nanoeuler.storage.files import atomic_write
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import SMALLEST, build

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

T = TypeVar("T")

LEAST_BYTES = 20_000
"""Some ten pages. Of less, a model learns little more than the alphabet."""
HELD_OUT_BYTES = 50_000
"""Enough to compare two models to 0.02 bits per byte."""
SEARCHED_BYTES = 8_000_000
"""Bytes of documents from all parts of the text in which the beginnings of sentences are sought."""
EPOCHS = 12
"""Most epochs; more overfit a model of `PARAMETERS_PER_TOKEN`."""
TOKENS_PER_PARAMETER = 8
PARAMETERS_PER_TOKEN = 10
WEIGHT_DECAY, LEAST_DECAY, MOST_DECAY = 0.07, 0.1, 0.6
"""Weight decay for each epoch, and its limits. More decay lets a text be read more often before it
is memorised (Kim et al. 2025, Pre-training under infinite compute).
"""
DROPOUT, MOST_DROPOUT = 0.02, 0.25
"""Dropout for each epoch, and its limit."""
SHORT_ROWS = 0.6
"""Share of the steps that see parts of rows."""
MUON = {
    "optimizer": "muon",
    "muon_momentum": 0.95,
    "embedding_std": 0.4,
    "embedding_rate": 10.0,
    "schedule": "wsd",
    "decay_share": 1.0,  # linearly to zero
    "minimum_learning_rate_share": 0.0,
}
"""Muon's settings, measured beside AdamW in docs/own-text.md."""
UPDATES = 1000
"""Steps of a run at least, as far as the smallest batch allows."""
SMALLEST_BATCH, LARGEST_BATCH = 2_048, 262_144  # tokens
DEVICE_BATCH = 65_536
"""Tokens of a timed step on a GPU: fewer leave it idle, and minutes of it come in more."""
MEASUREMENTS = 10
"""Measurements on held-out text during a run, each with a sample."""
FIXED_SECONDS = 40
"""The stages around training, on two cores: corpus, tokenizer, evaluation, report."""
PROMPTS = 4
VOCABULARIES = ((200_000, 512), (3_000_000, 1024), (20_000_000, 2048), (200_000_000, 4096))
"""Sizes of the tokenizer for texts below so many bytes."""
LARGEST_VOCABULARY = 8192


@dataclass(frozen=True)
class Size:
    """A size of model, and the peak learning rate that suits it."""

    dim: int
    layers: int
    context: int
    learning_rate: float

    def section(self) -> dict[str, Any]:
        """The section `model`. One head: several are slower, and no better at these sizes."""
        heads = self.dim // (32 if self.dim <= 256 else 64)
        return {
            "dim": self.dim,
            "layers": self.layers,
            "heads": heads,
            "kv_heads": heads if heads % 2 else heads // 2,
            "ffn": round(self.dim / 3) * 8,
            "context": self.context,
            "mtp_heads": 1,
        }

    def model(self, vocab_size: int) -> ModelConfig:
        return ModelConfig.from_dict(self.section() | {"vocab_size": vocab_size})


SIZES = (
    Size(64, 3, 128, 12e-3),
    Size(96, 3, 128, 8e-3),
    Size(128, 4, 128, 8e-3),
    Size(192, 4, 256, 6e-3),
    Size(256, 6, 256, 6e-3),
    Size(384, 8, 256, 5e-3),
    Size(512, 12, 512, 4e-3),
    Size(768, 16, 512, 4e-3),
    Size(1024, 20, 1024, 3e-3),
)
"""Sizes of about twice the parameters each."""


@dataclass(frozen=True)
class Text:
    """Size of one's own text, and the first words of a few sentences."""

    bytes: int
    tokens: int  # for training
    vocab_size: int  # of the tokenizer that `tokens` counts
    openings: list[str]


@dataclass(frozen=True)
class Speed:
    """Seconds that training takes here: of each token, and of each update beyond AdamW's."""

    of_token: float
    of_update: float

    def tokens_within(self, seconds: float) -> float:
        """The tokens of a run that takes so long."""
        tokens = seconds / self.of_token
        for _ in range(2):  # fewer tokens may come in smaller steps
            tokens = seconds / (self.of_token + self.of_update / step_tokens(tokens))
        return tokens


@dataclass(frozen=True)
class Choice:
    """A size for a text, the tokens that it is trained on, and about how many a second."""

    size: Size
    tokens: int
    tokens_per_second: float


def read_text(
    entries: Sequence[Entry], tokenizer: Tokenizer | None = None, least: int = LEAST_BYTES
) -> Text:
    """Read all files that `entries` of `corpus.sources` name, in tokens of `tokenizer` or of one
    that suits the text.

    Raises `UserError` if one cannot be read, and for less than `least` bytes of text.
    """
    readers = choose_readers([], config={"corpus": {"sources": list(entries)}})
    sources = [each for each in readers if isinstance(each, OwnText)]
    available = sum(source.size() for source in sources)
    sample, searched = Sample(available), Sample(available, SEARCHED_BYTES)
    prose: list[str] = []
    others: list[str] = []  # beginnings of what is no prose, where there is nothing else
    read: list[list[tuple[int, int]]] = []  # of each source, the position and size of each document
    owners: list[tuple[int, int]] = []  # of each block of the sample, its source and document
    with log.Progress("read", available, "MB", 1e-6) as progress:
        for number, source in enumerate(sources):
            source.read_before = True  # its notices are logged once, when the corpus is made
            read.append([])
            for key, document in source.read():
                if searched.takes(len(document)):
                    openings = openings_of(document.decode("utf-8"))
                    prose += openings[0]
                    others += openings[1]
                sample.add(document)
                owners += [(number, len(read[-1]))] * (len(sample.blocks) - len(owners))
                read[-1].append((position(key), len(document)))
                progress.update(len(document))
    sizes = [size for documents in read for _, size in documents]
    total = sum(sizes)
    if total < least:
        instead = "" if tokenizer else f"; or go on from a model that can write: {GO_ON}"
        raise UserError(
            f"{named(entries)}: {log.size(total)} of text is too little to learn from; "
            f"give at least {log.size(least)}, some {least // 2_000} pages{instead}"
        )
    share = validation_share(total)
    held_out = [held_out_whole(documents, share) for documents in read]
    blocks = [
        block
        for block, (number, document) in zip(sample.blocks, owners, strict=True)
        if not held_out[number][document]
    ]
    tokenizer = tokenizer or learn_vocabulary(blocks, total)
    learned = total - planned_data.held_out(sizes, share)
    tokens = round(learned / bytes_per_token(blocks, tokenizer))
    beginnings = list(dict.fromkeys(prose or others))
    step = max(1, len(beginnings) // PROMPTS)
    prompts = beginnings[step // 2 :: step][:PROMPTS]
    return Text(total, tokens, tokenizer.vocab_size, prompts)


def held_out_whole(documents: Sequence[tuple[int, int]], share: float) -> np.ndarray:
    """Which documents (their positions and sizes) are no part of what the tokenizer is learned from
    (bool)."""
    positions, sizes = np.array(documents, np.uint64).T
    last = last_of_own_text(positions, sizes.astype(np.int64), share)
    return np.zeros(len(sizes), bool) if last is None else positions <= np.uint64(last)


def validation_share(total: int) -> float:
    """The share of `total` bytes that is held out."""
    return round(min(0.1, max(0.01, HELD_OUT_BYTES / total)), 3)


def learn_vocabulary(sample: Sequence[bytes], total: int) -> Tokenizer:
    """A tokenizer of the size for `total` bytes of text like `sample`.

    It is larger where there is enough text to learn each entry, and smaller where the text repeats
    itself so much that it hardly yields the entries.
    """
    counts = count_words(sample)
    wanted = next((size for limit, size in VOCABULARIES if total < limit), LARGEST_VOCABULARY)
    found = Tokenizer(build(learn(counts, wanted + wanted // 4))).vocab_size
    if found < wanted + wanted // 4:
        wanted = SMALLEST + (found - SMALLEST) // 2
    return Tokenizer(build(learn(counts, wanted)))


def apart(measure: Callable[..., T], *arguments: Any) -> T:
    """Measure speeds in a process of its own, whose end leaves the GPU to the training."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=log.start) as process:
        return process.submit(measure, *arguments).result()


def choose_here(text: Text, minutes: float) -> tuple[Choice, str]:
    """Choose for this machine. Returns the choice and the name of the engine."""
    return apart(measure_and_choose, text, minutes)


def measure_and_choose(text: Text, minutes: float) -> tuple[Choice, str]:
    backend = make_backend()
    return choose(text, minutes, lambda model: measure(model, backend)), backend.name


def choose(text: Text, minutes: float, speed_of: Callable[[ModelConfig], Speed]) -> Choice:
    """Choose the largest size that keeps the two rules, from the smallest upwards."""
    seconds = seconds_of_training(minutes)
    chosen: Choice | None = None
    for size in SIZES:
        model = size.model(text.vocab_size)
        parameters = parameter_count(model)
        if chosen and parameters > PARAMETERS_PER_TOKEN * text.tokens:
            break
        affordable = speed_of(model).tokens_within(seconds)
        wanted = EPOCHS * text.tokens
        if chosen and affordable < min(wanted, TOKENS_PER_PARAMETER * parameters):
            break
        chosen = Choice(size, int(min(affordable, wanted)), affordable / seconds)
    assert chosen
    parameters = parameter_count(chosen.size.model(text.vocab_size))
    duration = log.format_seconds(chosen.tokens / chosen.tokens_per_second)
    log.line(
        "choice",
        f"{parameters:,} parameters, {chosen.tokens:,} tokens "
        f"({chosen.tokens / text.tokens:.1f} times the text), about {duration} of training",
    )
    return chosen


def seconds_of_training(minutes: float) -> float:
    """Minutes that the other stages leave for training."""
    return max(60 * minutes - FIXED_SECONDS, 30 * minutes)


def measure(
    model: ModelConfig,
    backend: "Backend",
    settings: Mapping[str, Any] = MUON | {"dropout": DROPOUT},
) -> Speed:
    """Time a few steps of a model on this machine, with these settings of pretraining."""
    batch = DEVICE_BATCH if backend.device else SMALLEST_BATCH
    pretrain = {"tokens": batch, "batch_tokens": batch, "learning_rate": 0.0, **settings}
    plan = planning.Plan(parameter_count(model), backend.name)
    plan.stages = {"pretrain": planning.StageCost(batch, 1.0, steps=1)}
    config = {"model": model.to_dict(), "pretrain": pretrain}
    planned_speed.probe(config, backend, plan, seconds=1)
    assert plan.tokens_per_second
    log.line("speed", parameters=plan.parameters, tokens_per_second=round(plan.tokens_per_second))
    return Speed(1 / plan.tokens_per_second, plan.stages["pretrain"].updates)


def step_tokens(tokens: float) -> int:
    """The tokens of a step, in a run of so many."""
    batch = SMALLEST_BATCH
    while 2 * batch * UPDATES <= tokens and batch < LARGEST_BATCH:
        batch *= 2
    return batch


def make_config(name: str, entries: Sequence[Entry], text: Text, choice: Choice) -> dict[str, Any]:
    """The configuration of a run; what it leaves out has its default."""
    size, batch = choice.size, step_tokens(choice.tokens)
    steps = math.ceil(choice.tokens / batch)
    epochs = choice.tokens / text.tokens
    pretrain = {
        "tokens": choice.tokens,
        "batch_tokens": batch,
        "learning_rate": size.learning_rate,
        "warmup_steps": min(100, max(1, steps // 10)),
        "weight_decay": round(min(max(WEIGHT_DECAY * epochs, LEAST_DECAY), MOST_DECAY), 2),
        "dropout": round(min(DROPOUT * epochs, MOST_DROPOUT), 2),
        **MUON,
        "short_rows_until": max(1, round(SHORT_ROWS * steps)),
        "validate_every": math.ceil(steps / MEASUREMENTS),
    }
    tokenizer = {"vocab_size": text.vocab_size}
    return configuration(name, entries, text, tokenizer, size.section(), pretrain)


def configuration(
    name: str,
    entries: Sequence[Entry],
    text: Text,
    tokenizer: dict[str, Any],
    model: dict[str, Any],
    pretrain: dict[str, Any],
) -> dict[str, Any]:
    """The sections of a run on one's own text, with what is the same in all of them."""
    return {
        "run": name,
        "corpus": {"sources": list(entries), "validation_share": validation_share(text.bytes)},
        "tokenizer": tokenizer,
        "model": model,
        "pretrain": {
            **pretrain,
            "checkpoint_minutes": 1,
            "keep": "best",
            "sample_prompt": text.openings[0] if text.openings else None,
        },
        "evaluate": {"prompts": text.openings, "max_new_tokens": 150, "temperature": 0.7},
    }


def write_config(path: Path, comment: Sequence[str], config: dict[str, Any]) -> Path | None:
    """Write a configuration with `comment` above it, atomically, once it is known to be valid.

    Returns where one that was there before is kept. Raises `UserError` without a change.
    """
    kept = beside(path) if path.is_file() else None
    with atomic_write(path) as file:
        file.writelines(f"# {line}".rstrip() + "\n" for line in comment)
        write_yaml(config, file)
        file.flush()
        load_files([file.name])
        if kept:
            shutil.copy2(path, kept)
    return kept


def beside(path: Path) -> Path:
    """Where a configuration is kept: config.before.yaml, config.before-2.yaml, …"""
    numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (path.with_suffix(f".before{number}.yaml") for number in numbers)
    return next(
        name for name in names if not name.exists() or filecmp.cmp(path, name, shallow=False)
    )


def named(entries: Iterable[Entry]) -> str:
    """The paths of entries, for a sentence."""
    return ", ".join(Named.of(entry).path for entry in entries)


def together(paths: Sequence[str]) -> list[str]:
    """Put the pattern in the place of the files that a shell has made of it, and take a path that
    is given twice once. Of several paths, what nanoeuler has written is left out.

    Each path is a source of the corpus, which is measured by itself; a folder's files are one.
    """
    known: dict[str, str] = {}
    for path in paths:
        known.setdefault(os.path.normpath(path), path)
    paths = list(known.values())
    own = paths if len(paths) == 1 else [path for path in paths if not is_output(path)]
    if own and (left_out := [path for path in paths if path not in own]):
        log.line("text", f"left out {', '.join(left_out)}: written by nanoeuler")
        paths = own
    first = Path(paths[0])
    pattern = str(first.parent / f"*{first.suffix}")
    if len(paths) > 1 and sorted(paths) == sorted(glob.glob(pattern)):
        return [pattern]
    return paths
