"""About how much data a run has: what it downloads, its text, and the disk that they take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import RECORD_STAGES
from nanoeuler.corpus.addresses import file_bytes
from nanoeuler.corpus.document_sources import FINEWEB, GUTENBERG, OWN_TEXT
from nanoeuler.corpus.sample.settings import Settings as SampleSettings
from nanoeuler.corpus.split import bytes_of_stretches, least_held_out
from nanoeuler.storage.files import read_json
from nanoeuler.tokenizer.shards import token_dtype
from nanoeuler.tokenizer.vocabulary import SMALLEST

Config = Mapping[str, Any]

BOOK_BYTES = 700_000
"""Mean size of the classics in config/sources.yaml."""
CLEAN_SHARE = 0.97
"""Share of a book that is left without its header, credits and licence."""
FETCHED_SHARE = 0.65
"""Compressed bytes that are downloaded for a byte of web text, filters and margin included."""
SHARD_BYTES = 2_000_000_000
"""A web shard whose size the sources file does not say."""
RECORDS_BYTES = {"instructions": 22_000_000, "preferences": 20_000_000}
"""A file of records whose size the sources file does not say: as much as Alpaca's, AlpacaFarm's."""
SAMPLE_WRAPPING, SAMPLE_PARAGRAPH, SAMPLE_PAGE = 2_100, 197, 332
"""Bytes of the invented text: around that of each book, of a paragraph of one, of a page."""
SAMPLE_BYTES_PER_TOKEN = 1.17
"""Bytes a token of invented text, for each that English has: its sentences resemble each other."""
SAMPLE_RECORDS, SAMPLE_RECORD = 10, 250
"""Invented records about a person, and bytes of each: the template counts for 200."""
TOKENIZER_ENTRY_BYTES = 37
RECORD_OVERHEAD = 1.2
"""Tokens of the rows of a file of records per token of it, with templates and padding. Measured
with Alpaca: 1.21 with 4,096 entries."""


@dataclass(frozen=True)
class TextEstimate:
    """The corpus of a run."""

    text_bytes: float  # for training
    held_out_bytes: float
    text_tokens: float  # for training
    sources: dict[str, float]  # bytes for training, by source
    data_disk: float  # what its preparation takes


def downloads(config: Config, paths: Paths) -> dict[str, float | None]:
    """Bytes to download by kind; None where the sources file does not state a size."""
    sources, evaluate = config["sources"], config["evaluate"]
    books = [book for book in paths.books if not Path(paths.raw_book(book)).exists()]
    pages = missing_shards(paths)
    found: dict[str, float | None] = {
        "books": len(books) * BOOK_BYTES,
        "web pages": sum(shard_text(config, shard) for shard in pages) * FETCHED_SHARE,
    }
    for kind, manifest in paths.learned_records.items():
        if not Path(manifest).exists():
            found[kind] = source_bytes(sources, kind, config[RECORD_STAGES[kind].section][kind])
    tasks = [
        source_bytes(sources, "tasks", entry["name"])
        for entry, manifest in zip(evaluate["tasks"], paths.tasks, strict=True)
        if not Path(manifest).exists()
    ]
    stated = [amount for amount in tasks if amount]
    found["tasks"] = sum(stated) if len(stated) == len(tasks) else None
    if any(not Path(file).exists() for file in paths.questions):
        found["questions"] = source_bytes(sources, "questions", evaluate["questions"])
    return found


def missing_shards(paths: Paths) -> list[int]:
    return [shard for shard in paths.web_shards if not Path(paths.web_shard(shard)).exists()]


def shard_text(config: Config, shard: int) -> float:
    """Bytes of text that are taken from a web shard."""
    size = file_bytes(config["sources"]["fineweb"]["shards"][shard]) or SHARD_BYTES
    return min(config["corpus"]["fineweb"]["max_bytes_per_shard"], size / FETCHED_SHARE)


def source_bytes(sources: Mapping[str, Any], kind: str, name: str) -> float | None:
    """The size of a data set that the sources file names, or whose path `name` is, if known."""
    return file_bytes(sources.get(kind, {}).get(name, {"url": name}))


def estimate_text(config: Config, paths: Paths, *, reads: bool = True) -> TextEstimate:
    """The corpus of a run; one that is there already counts as it is, and takes no more disk.

    With `reads`, some of one's own text is read, which takes seconds. Raises `UserError` if it
    can't be.
    """
    if Path(paths.tokens).exists():
        splits = read_json(paths.tokens)["splits"]
        sources = {name: source["bytes"] for name, source in splits["train"].items()}
        held_out_bytes = sum(source["bytes"] for source in splits["validation"].values())
        tokens = sum(source["tokens"] for source in splits["train"].values())
        return TextEstimate(sum(sources.values()), held_out_bytes, tokens, sources, 0.0)
    vocab_size, share = config["tokenizer"]["vocab_size"], config["corpus"]["validation_share"]
    of_a_token = own_of_a_token = bytes_per_token(vocab_size)
    books = pages = raw_bytes = own = 0.0
    if "sample" in config:
        sample = SampleSettings.from_config(config["sample"])
        books = len(paths.books) * SAMPLE_PARAGRAPH * (sample.paragraphs_per_book - 4)
        raw_books = books + len(paths.books) * SAMPLE_WRAPPING
        pages = SAMPLE_PAGE * sample.articles * len(paths.web_shards)
        raw_bytes = raw_books + books + pages
        held_out_bytes = books * whole_share(len(paths.books), share) + pages * share
        of_a_token *= SAMPLE_BYTES_PER_TOKEN
    else:
        books = len(paths.books) * BOOK_BYTES * CLEAN_SHARE
        pages = sum(shard_text(config, shard) for shard in paths.web_shards)
        files = paths.own_files
        of_files = np.array([file.stat().st_size for file, _ in files], float)
        own = float(of_files.sum())
        if files and reads:
            from nanoeuler.planning import text_sample  # loads the compiler

            own, own_of_a_token = text_sample.measure(files, vocab_size)
        own_held_out = held_out(own / max(1.0, of_files.sum()) * of_files, share)
        held_out_bytes = books * whole_share(len(paths.books), share) + pages * share + own_held_out
        missing = [book for book in paths.books if not Path(paths.raw_book(book)).exists()]
        raw_pages = sum(shard_text(config, shard) for shard in missing_shards(paths))
        raw_bytes = len(missing) * BOOK_BYTES * 2 + raw_pages
    text = books + pages + own
    tokens = (books + pages) / of_a_token + own / own_of_a_token
    text_bytes = text - held_out_bytes
    sources = {GUTENBERG: books, FINEWEB: pages, OWN_TEXT: own}
    token_bytes = tokens * token_dtype(vocab_size).itemsize
    return TextEstimate(
        text_bytes,
        held_out_bytes,
        tokens * text_bytes / max(1.0, text),
        {name: amount for name, amount in sources.items() if amount},
        raw_bytes + text + token_bytes + TOKENIZER_ENTRY_BYTES * vocab_size,
    )


def whole_share(documents: int, share: float) -> float:
    """About the share of a source that is held out as whole documents."""
    return max(share, least_held_out(documents) / max(1, documents))


def held_out(own_files: Sequence[float] | np.ndarray, share: float) -> float:
    """About how many bytes are held out of one's own files of these sizes."""
    stretches = float(bytes_of_stretches(np.array(own_files, float), share).sum())
    if len(own_files) < 2:
        return stretches
    whole = whole_share(len(own_files), share) * sum(own_files)
    return min(stretches, whole) if stretches else whole


def records_bytes(config: Config, kind: str) -> float:
    """Bytes of the rows of a kind of records, held-out ones included."""
    if "sample" in config:
        sample = SampleSettings.from_config(config["sample"])
        about_people = SAMPLE_RECORDS * sample.people
        if kind == "preferences":
            return 2 * SAMPLE_RECORD * about_people
        return SAMPLE_RECORD * (sample.other_instructions + about_people)
    name = config[RECORD_STAGES[kind].section][kind]
    return RECORD_OVERHEAD * (source_bytes(config["sources"], kind, name) or RECORDS_BYTES[kind])


def bytes_per_token(vocab_size: int) -> float:
    """Bytes of English text per token of a byte-level BPE.

    Measured: 1.9 at 512 entries, 3.3 at 4,096, 3.7 at 8,192; about linear in the logarithm. Below,
    it falls to one byte at the smallest vocabulary.
    """
    doublings = np.log2(vocab_size / 512)
    most = 4.6 if doublings >= 0 else 1.9 - 0.9 * doublings / np.log2(SMALLEST / 512)
    return float(np.clip(1.9 + 0.47 * doublings, 1.0, most))
