"""Every key of a sources file: what is downloaded, from where, and under which licence."""

from typing import Literal

from nanoeuler.config.section import Reruns, Section, key, section
from nanoeuler.storage.names import Name


@section
class File(Section):
    """A file to download."""

    url: str = key(
        "https://, http://, hf://datasets/OWNER/NAME/PATH, file:// or a local path", min_length=1
    )
    bytes: int | None = key("its size", default=None, ge=0)
    sha256: str | None = key(
        "its SHA-256", default=None, pattern="^[0-9a-f]{64}$", form="64 hexadecimal digits"
    )


@section
class DataSet(File):
    """A file of records under one licence."""

    revision: str | None = key("revision of the data set that an hf:// address means", default=None)
    licence: str = key("licence of the records", optional=True)


@section
class MixedInstructions(DataSet):
    """One of the files that a mixture of instructions is made of."""

    weight: float = key(
        "how often each training record is seen in an epoch; 0.5 takes half of them, 2 each twice",
        default=1,
        gt=0,
    )


@section
class Instructions(DataSet):
    """Instructions: a file of them, or a mixture of several."""

    url: str = key(
        "https://, http://, hf://datasets/OWNER/NAME/PATH, file:// or a local path",
        optional=True,
        min_length=1,
    )
    mixture: list[MixedInstructions] = key("the files that are mixed", optional=True, min_length=1)
    format: Literal["alpaca"] = key("shape of the records", default="alpaca")


@section
class Questions(File):
    """Held-out questions with exact answers."""

    licence: str = key("licence of the questions", optional=True)


@section
class TaskFile(DataSet):
    """The items of a task."""

    kind: Literal[
        "hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "blimp", "lambada", None
    ] = key("layout and scoring of the file; null takes the name", default=None)
    members: str | None = key(
        "pattern of the files in a zip archive that are read; null takes every .jsonl file",
        default=None,
    )


@section
class Book(Section):
    """A book of Project Gutenberg."""

    id: int = key("number of the book", ge=1)
    title: str = key("its title", optional=True)
    author: str = key("its author", optional=True)


@section
class Gutenberg(Section):
    """Books of Project Gutenberg."""

    collection: Name = key("name of the folder that the books are kept in")
    mirror: str = key(
        "base address of a mirror, or a local folder laid out like one",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    delay_seconds: float = key("pause between two requests", default=2, ge=0, reruns=Reruns.NEVER)
    title: str = key("what reports call it", optional=True, reruns=Reruns.NEVER)
    licence: str = key("licence of the texts", optional=True)
    books: list[Book] = key("the books, by their number", min_length=1, reruns=Reruns.NEVER)


@section
class WebPages(Section):
    """Web pages in the schema of FineWeb-Edu."""

    collection: Name = key("name of the folder that the pages are kept in")
    revision: str | None = key("revision of the data set that hf:// addresses mean", default=None)
    title: str = key("what reports call it", optional=True, reruns=Reruns.NEVER)
    licence: str = key("licence of the pages", optional=True)
    shards: list[File] = key("the parquet files", min_length=1, reruns=Reruns.NEVER)


@section
class Sources(Section):
    """A whole sources file."""

    gutenberg: Gutenberg = key("books of Project Gutenberg", optional=True)
    fineweb: WebPages = key("web pages in FineWeb-Edu's schema", optional=True)
    instructions: dict[str, Instructions] = key(
        "instruction data sets by name; each has a url, or is a mixture of several", optional=True
    )
    preferences: dict[str, DataSet] = key("data sets of preference pairs by name", optional=True)
    questions: dict[str, Questions] = key(
        "held-out questions with exact answers by name", optional=True
    )
    tasks: dict[str, TaskFile] = key("multiple-choice and last-word tasks by name", optional=True)
