"""About how much data a run has: what it downloads, its text, and the disk that they take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Training
from nanoeuler.corpus.sample.world import Sample
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.sources.registry import NAMED, RECORDS, SOURCES
from nanoeuler.corpus.split import bytes_of_stretches, least_held_out
from nanoeuler.storage.files import read_json
from nanoeuler.tokenizer.shards import token_dtype
from nanoeuler.tokenizer.vocabulary import SMALLEST
from nanoeuler.training.checkpoint import EARLY, REWIND_STEPS
from nanoeuler.training.schedule import Schedule

Config = Mapping[str, Any]

RECORDS_BYTES = {"instructions": 22_000_000, "preferences": 20_000_000, "problems": 4_000_000}
"""A file of records whose size the sources file does not say: as much as Alpaca's, AlpacaFarm's."""
SAMPLE_BYTES_PER_TOKEN = 1.17
"""Bytes a token of invented text, for each that English has: its sentences resemble each other."""
SAMPLE_RECORDS, SAMPLE_RECORD = 10, 250
"""Invented records about a person, and bytes of each: the template counts for 200."""
TOKENIZER_ENTRY_BYTES = 37
INDEX_BYTES = 4
"""Bytes of the index for each token."""
RECORD_OVERHEAD = 1.2
"""Tokens of the rows of a file of records per token of it, with templates and padding. Measured
with Alpaca: 1.21 with 4,096 entries."""
PREPARED_OVERHEAD = {"instructions": 1.3, "preferences": 1.1}
"""The same for records that a stage of their own has prepared, in tokens as long as the corpus's.
Measured with 4,096 and 50,257 entries: Alpaca 1.30, sums in words 1.35 and 1.43, pairs 1.11."""


@dataclass(frozen=True)
class TextEstimate:
    """The corpus of a run."""

    text_bytes: float  # for training
    held_out_bytes: float
    text_tokens: float  # for training
    sources: dict[str, float]  # bytes for training, by source
    data_disk: float  # what its preparation takes
    index_disk: float  # the index of its tokens, which is a part of that


def downloads(config: Config) -> dict[str, float | None]:
    """Bytes to download by kind; None where the sources file does not state a size."""
    found: dict[str, float | None] = {}
    for source in SOURCES:
        if missing := source.missing(config):
            amounts = [source.download_bytes(config, item) for item in missing]
            stated = [amount for amount in amounts if amount is not None]
            found[source.title] = sum(stated) if len(stated) == len(amounts) else None
    return found


def estimate_text(config: Config, paths: Paths, *, reads: bool = True) -> TextEstimate:
    """The corpus of a run; one that is there already counts as it is, and takes no more disk,
    unless it was made of another version of one's own text.

    With `reads`, some of one's own text is read, which takes seconds. Raises `UserError` if it
    can't be.
    """
    if Path(paths.tokens).exists() and not paths.own_text_changed():
        splits = read_json(paths.tokens)["splits"]
        sources = {name: source["bytes"] for name, source in splits["train"].items()}
        held_out_bytes = sum(source["bytes"] for source in splits["validation"].values())
        tokens = sum(source["tokens"] for source in splits["train"].values())
        held_out_tokens = sum(source["tokens"] for source in splits["validation"].values())
        index = index_bytes(config, paths, tokens + held_out_tokens)
        text_bytes = sum(sources.values())
        return TextEstimate(text_bytes, held_out_bytes, tokens, sources, index, index)
    vocab_size, share = config["tokenizer"]["vocab_size"], config["corpus"]["validation_share"]
    of_a_token = own_of_a_token = bytes_per_token(vocab_size)
    if "sample" in config:
        of_a_token *= SAMPLE_BYTES_PER_TOKEN
    sources = {
        source.name: sum(source.text_bytes(config, item) for item in source.items(config))
        for source in NAMED
    }
    fetched = sum(
        source.disk_bytes(config, item) for source in NAMED for item in source.missing(config)
    )
    held_out_bytes = sum(
        sources[source.name] * whole_share(source.documents(config), share) for source in NAMED
    )
    tokens = sum(sources.values()) / of_a_token
    if files := OWN_TEXT.paths(config):
        of_files = np.array([file.stat().st_size for file, _ in files], float)
        own = float(of_files.sum())
        if reads:
            from nanoeuler.planning import text_sample  # loads the compiler

            own, own_of_a_token = text_sample.measure(files, vocab_size)
        sources[OWN_TEXT.name] = own
        held_out_bytes += held_out(own / max(1.0, of_files.sum()) * of_files, share)
        tokens += own / own_of_a_token
    text = sum(sources.values())
    text_bytes = text - held_out_bytes
    index = index_bytes(config, paths, tokens)
    token_bytes = tokens * token_dtype(vocab_size).itemsize
    return TextEstimate(
        text_bytes,
        held_out_bytes,
        tokens * text_bytes / max(1.0, text),
        {name: amount for name, amount in sources.items() if amount},
        fetched + text + token_bytes + index + TOKENIZER_ENTRY_BYTES * vocab_size,
        index,
    )


def index_bytes(config: Config, paths: Paths, tokens: float) -> float:
    """Bytes of the index of so many tokens, if the run is to make one."""
    missing = [path for path in paths.wanted_index if not Path(path).exists()]
    return INDEX_BYTES * tokens * len(missing)


def whole_share(documents: int | None, share: float) -> float:
    """About the share of a source that is held out as whole documents, None where they are many."""
    return max(share, least_held_out(documents) / max(1, documents)) if documents else share


def held_out(own_files: Sequence[float] | np.ndarray, share: float) -> float:
    """About how many bytes are held out of one's own files of these sizes."""
    stretches = float(bytes_of_stretches(np.array(own_files, float), share).sum())
    if len(own_files) < 2:
        return stretches
    whole = whole_share(len(own_files), share) * sum(own_files)
    return min(stretches, whole) if stretches else whole


def records_tokens(config: Config, kind: str) -> float:
    """Tokens of the rows of a kind of records, held-out ones included. Records that are there
    already count as they are."""
    paths, of_a_token = Paths(config), bytes_per_token(config["tokenizer"]["vocab_size"])
    if Path(paths.tokens).exists():
        text = estimate_text(config, paths)
        of_a_token = text.text_bytes / max(1, text.text_tokens)
    manifest = Path(paths.records_manifest(kind))
    prepared = [manifest.with_name(f"{part}.jsonl") for part in ("train", "validation")]
    if all(file.exists() for file in prepared):
        whole = sum(file.stat().st_size for file in prepared)
        return PREPARED_OVERHEAD.get(kind, RECORD_OVERHEAD) * whole / of_a_token
    return records_bytes(config, kind) / of_a_token


def records_bytes(config: Config, kind: str) -> float:
    """About the bytes of the rows of a kind of records, held-out ones included."""
    if "sample" in config:
        sample = Sample.from_config(config["sample"])
        about_people = SAMPLE_RECORDS * sample.people
        if kind == "preferences":
            return 2 * SAMPLE_RECORD * about_people
        return SAMPLE_RECORD * (sample.other_instructions + about_people)
    return RECORD_OVERHEAD * (RECORDS[kind].download_bytes(config, "") or RECORDS_BYTES[kind])


def bytes_per_token(vocab_size: int) -> float:
    """Bytes of English text per token of a byte-level BPE.

    Measured: 1.9 at 512 entries, 3.3 at 4,096, 3.7 at 8,192; about linear in the logarithm. Below,
    it falls to one byte at the smallest vocabulary.
    """
    doublings = np.log2(vocab_size / 512)
    most = 4.6 if doublings >= 0 else 1.9 - 0.9 * doublings / np.log2(SMALLEST / 512)
    return float(np.clip(1.9 + 0.47 * doublings, 1.0, most))


MOST_EVENTS = 10_000
"""Checkpoints and measurements that are followed."""


class Kept(NamedTuple):
    """Numbers of checkpoints, and of best models beside them."""

    last: int  # when the stage is finished
    most: int  # at a time, with the one that is being written
    best: int  # at that time


def checkpoints_kept(settings: Training, steps: int, seconds: float) -> Kept:
    """Checkpoints that remain after `steps` steps that take `seconds`.

    This follows `Trainer.save_and_validate` and `Saver.remove_old`. Each measurement on held-out
    text is taken to be better than the one before.
    """
    minutes = seconds / steps / 60
    between = settings.checkpoint_minutes / minutes if minutes else math.inf  # steps
    # a longer run leaves no other number
    steps = min(steps, MOST_EVENTS * math.ceil(min(settings.validate_every, between)))
    schedule = Schedule.of(settings, steps)
    kept_for_longer = {schedule.decay_start} if schedule.kind == "wsd" else set()
    present: dict[int, int] = {}  # step → the best step when it was saved
    best = saved = step = 0
    most = (0, 0)

    def save(*, finished: bool = False) -> None:
        nonlocal saved, most
        before = len(present)
        saved, present[step] = step, best or step
        models = set(present.values()) - present.keys() if settings.keep == "best" else set()
        most = max(most, (before + 1, len(models)))
        kept = {step} | kept_for_longer
        if not finished:
            kept |= {*sorted(present)[-2:], *[s for s in present if s <= step - REWIND_STEPS][-1:]}
        for other in present.keys() - kept:
            del present[other]

    while step < steps:
        coming = {
            steps,
            settings.validate_every * (step // settings.validate_every + 1),
            saved + math.ceil(between) if between < steps else steps,
            *kept_for_longer,
        }
        step = min(s for s in coming if s > step)
        measured = step % settings.validate_every == 0 or step == steps
        if step in kept_for_longer and step < steps:
            save()
        if step - saved >= between * (EARLY if measured else 1.0):
            save()
        if measured:
            best = step
    save(finished=True)
    return Kept(len(present), *most)
