"""The keys of what is read and measured: the sections corpus, tokenizer and evaluate, see
settings.py; and those of a sources file."""

from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from nanoeuler.corpus.sources.data_sets import Asked
from nanoeuler.corpus.sources.registry import ALL_TEXTS, NAMED, SOURCES
from nanoeuler.storage.section import (
    EACH_ONCE,
    Name,
    Section,
    key,
    optional,
    section,
    subsection,
    with_keys,
)

Deduplication = Literal["near", "exact", "none"]


@section
@with_keys(
    {
        source.kind: (Deduplication, key(source.repetitions[0], default=source.repetitions[1]))
        for source in ALL_TEXTS
    }
)
class Deduplicate(Section):
    """Which repetitions are dropped from each kind of source."""

    threshold: float = key(
        "how alike near-duplicates are at least: of all runs of five words in two documents, the "
        "share that is in both",
        default=0.8,
        ge=0.5,
        le=1,
    )


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
@with_keys(
    {
        source.name: (source.settings, subsection(source.settings, source.settings_meaning))
        for source in NAMED
        if source.settings
    }
)
class Corpus(Section):
    """The text to learn from."""

    name: Name | None = key(
        "name of the prepared corpus; runs with the same name share it, so they must agree on this "
        "section; null takes the run's name",
        default=None,
    )
    sources: Annotated[list[Annotated[str, MinLen(1)] | OwnTextSource], EACH_ONCE] = key(
        f"{', '.join(source.name for source in NAMED)}, and any number of text files, folders or "
        "globs of your own; {path: …, encoding: …, separator: …} says how the files are "
        "read: those that are not Unicode in the encoding, each parted into documents at lines "
        "that are the separator",
        default=["gutenberg", "fineweb"],
        min_length=1,
    )
    books: Literal["all"] | Annotated[list[Annotated[int, Ge(1)]], MinLen(1), EACH_ONCE] = key(
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
        names_files=True,
        min_length=1,
    )


@section
@with_keys({source.name: (source.entries, optional(source.meaning)) for source in SOURCES})
class Sources(Section):
    """A whole sources file."""


@section
class Task(Asked):
    """An entry of evaluate.tasks."""

    name: Name = key(
        "a name or group under tasks in the sources file, or one of your own beside a url"
    )
    url: str | None = key(
        "address or path of the task's file, folder or zip archive; null takes the sources file's",
        default=None,
        min_length=1,
    )
    limit: int | None = key(
        "items that are asked, chosen by the seed and the same for every model; null asks all",
        default=None,
        ge=1,
    )


@section
class Evaluate(Section):
    """Measurements of every stage's model."""

    prompts: list[Annotated[str, MinLen(1)]] = key(
        "prompts whose replies are printed in the report; without any, it has the first words of "
        "held-out documents, and held-out instructions",
        default=[],
    )
    questions: str | None = key(
        "a name under questions in the sources file: held-out questions that are scored exactly; "
        "null asks none",
        default=None,
    )
    tasks: list[Task] = key(
        "tasks that are scored; an entry gives name, and url, kind, shots, delimiter, baseline and "
        "limit where they differ from the sources file",
        default=[],
    )
    controls: bool = key(
        "whether each task is asked again with the contexts of other items: a model that reads "
        "falls to chance",
        default=False,
    )
    chat_prompts: int = key(
        "held-out instructions that are answered, once greedily and once by sampling, to see how "
        "many replies stop, how long they are and how much they repeat",
        default=100,
        ge=0,
    )
    validation_tokens: int = key(
        "held-out tokens per source that bits per byte is measured on", default=1_000_000, ge=1
    )
    max_new_tokens: int = key("longest reply, in tokens", default=128, ge=1)
    temperature: float = key(
        "temperature of the samples in the report; 0 is greedy. Questions are always answered "
        "greedily",
        default=0.8,
        ge=0,
    )
    top_k: int = key("sample from the k likeliest tokens only; 0 means all", default=0, ge=0)
    top_p: float = key(
        "sample from the likeliest tokens only that together have this probability",
        default=0.95,
        gt=0,
        le=1,
    )
