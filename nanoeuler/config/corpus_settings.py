"""The keys of the sections sample, corpus and tokenizer: see settings.py."""

from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from nanoeuler.config.section import (
    EachOnce,
    Reruns,
    Section,
    key,
    section,
    subsection,
)
from nanoeuler.storage.names import Name

Deduplication = Literal["near", "exact", "none"]


@section
class Sample(Section):
    """A small invented world; a key that is left out has the demo's value."""

    seed: int = key("another seed invents another world", optional=True)
    people: int = key(
        "people in it; half of them are asked about only in the held-out questions", optional=True
    )
    boats: int = key("boats in it, likewise", optional=True)
    paragraphs_per_book: int = key("length of its books", optional=True)
    articles: int = key("number of its web pages", optional=True)
    other_instructions: int = key(
        "number of instructions that are not questions about it", optional=True
    )


@section
class Deduplicate(Section):
    """Which repetitions are dropped from each kind of source."""

    web: Deduplication = key("in web pages, across all shards", default="near")
    books: Deduplication = key("in books", default="none")
    own_text: Deduplication = key("in your own text, each path for itself", default="none")
    threshold: float = key(
        "how alike near-duplicates are at least: of all runs of five words in two documents, the "
        "share that is in both",
        default=0.8,
        ge=0.5,
        le=1,
    )


@section
class Fineweb(Section):
    """The part of each FineWeb-Edu shard that is taken."""

    shards: int = key(
        "number of shards, counted from the first in the sources file",
        default=1,
        ge=1,
        reruns=Reruns.NEVER,
    )
    max_bytes_per_shard: int = key(
        "UTF-8 bytes of text to take from a shard; only the parts of the file that hold them are "
        "downloaded",
        default=1_000_000_000,
        ge=1,
    )
    min_score: int = key("lowest educational score (0 to 5) of a page", default=3, ge=0, le=5)
    language: str = key("language of a page as the data set labels it", default="en", min_length=2)
    min_language_score: float = key("lowest certainty of that label", default=0.65, ge=0, le=1)
    min_characters: int = key("length of the shortest page", default=200, ge=1)
    max_characters: int = key("length of the longest page", default=100_000, ge=1)


@section
class OwnTextSource(Section):
    """Text of your own that is read in a certain way."""

    path: str = key("a file, folder or glob", min_length=1)
    encoding: str | None = key(
        "of its files, like cp1251; null recognises it", default=None, min_length=1
    )
    separator: str | None = key(
        "a line that parts documents in a file; null takes <|endoftext|>",
        default=None,
        pattern=r"^[^\n]*\S[^\n]*$",
        form="one line of text",
    )


@section
class Corpus(Section):
    """The text to learn from."""

    name: Name | None = key(
        "name of the prepared corpus; runs with the same name share it, so they must agree on this "
        "section; null takes the run's name",
        default=None,
    )
    sources: Annotated[list[Annotated[str, MinLen(1)] | OwnTextSource], EachOnce()] = key(
        "gutenberg, fineweb, and any number of text files, folders or globs of your own; "
        "{path: …, encoding: …, separator: …} says how the files are read: in the encoding, each "
        "parted into documents at lines that are the separator",
        default=["gutenberg", "fineweb"],
        min_length=1,
    )
    books: Literal["all"] | Annotated[list[Annotated[int, Ge(1)]], MinLen(1), EachOnce()] = key(
        "ids of the books to take from the sources file, or all", default="all"
    )
    join_lines: bool = key(
        "join the lines of paragraphs of prose in books, whose ends a typesetter chose; verse, "
        "tables and lists stay",
        default=True,
    )
    validation_share: float = key(
        "share of each source that is held out: whole documents, at least two; of your own text "
        "stretches of each document where that is less",
        default=0.01,
        gt=0,
        le=0.5,
    )
    deduplicate: Deduplicate = subsection(
        Deduplicate,
        "which repetitions are dropped; near stands for near-duplicates and copies, exact for "
        "copies, none for nothing",
    )
    decontaminate: bool = key(
        "drop training documents that have 13 words in a row in common with held-out text, "
        "evaluate.questions or evaluate.tasks, unless more than 10 documents have the same words; "
        "your own text may quote your own held-out text",
        default=True,
    )
    fineweb: Fineweb = subsection(Fineweb, "the part of each FineWeb-Edu shard that is taken")


@section
class Tokenizer(Section):
    """The byte-level BPE."""

    vocab_size: int | None = key(
        "entries of the vocabulary, including 16 reserved ids and the 256 bytes; null takes the "
        "model preset's",
        default=None,
        ge=272,
        le=65536,
    )
    sample_bytes: int = key(
        "bytes of the corpus that the merges are learned from", default=100_000_000, ge=1
    )
    path: str | None = key(
        "folder of a model, or a tokenizer.json, whose tokenizer is taken as it is, so that "
        "pretrain.init_from can go on from a model that was trained with it; null learns one from "
        "the corpus",
        default=None,
        min_length=1,
    )
