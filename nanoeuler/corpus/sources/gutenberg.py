"""Books of Project Gutenberg, fetched from a mirror one by one and cut out of their wrapping."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.corpus.sources.source import (
    Config,
    Files,
    Option,
    Place,
    Step,
    TextSource,
    collection,
    find_section,
)
from nanoeuler.storage.section import Name, Reruns, Section, key, optional, section

BOOK_BYTES = 700_000
"""Mean size of the classics in config/sources.yaml."""
CLEAN_SHARE = 0.97
"""Share of a book that is left without its header, credits and licence."""
SAMPLE_WRAPPING, SAMPLE_PARAGRAPH = 2_100, 197
"""Bytes of the invented books: around the text of each, and of a paragraph."""
NUMBER = Option("--id", "N", "number of the book, such as 1342", int)


@section
class Book(Section):
    """A book of Project Gutenberg."""

    id: int = key("number of the book", ge=1)
    title: str = optional("its title")
    author: str = optional("its author")


@section
class Books(Section):
    """Books of Project Gutenberg."""

    collection: Name = key("name of the folder that the books are kept in")
    mirror: str = key(
        "base address of a mirror, or a local folder laid out like one",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    delay_seconds: float = key("pause between two requests", default=2, ge=0, reruns=Reruns.NEVER)
    title: str = optional("what reports call it", reruns=Reruns.NEVER)
    licence: str = optional("licence of the texts")
    books: list[Book] = key("the books, by their number", min_length=1, reruns=Reruns.NEVER)


def raw(config: Config, item: str) -> Files:
    return {"output": f"{collection(config, 'gutenberg')}/raw/pg{item}.txt"}


def clean(config: Config, item: str) -> Files:
    stem = f"{collection(config, 'gutenberg')}/clean/pg{item}"
    return {"output": f"{stem}.txt", "record": f"{stem}.json"}


def about(config: Config, item: str) -> dict[str, str]:
    """Title and author of a book, empty where the sources file does not give them."""
    books = config["sources"]["gutenberg"]["books"]
    entry: Mapping[str, Any] = next((entry for entry in books if str(entry["id"]) == item), {})
    return {"title": entry.get("title", ""), "author": entry.get("author", "")}


def fetch(config: Config, id: int, output: Path) -> None:
    from nanoeuler.corpus.gutenberg_mirror import fetch_book

    mirror = find_section(config, "sources.gutenberg.mirror")
    pause = config["sources"]["gutenberg"].get("delay_seconds", Books.delay_seconds)
    fetch_book(mirror, id, output, pause)


def cut_out(config: Config, **files_and_texts: Any) -> None:
    from nanoeuler.corpus.gutenberg import clean_file

    clean_file(**files_and_texts)


class Gutenberg(TextSource):
    """Books of Project Gutenberg; an item is the number of one."""

    name, title, entries = "gutenberg", "books", Books
    meaning = "books of Project Gutenberg"
    kind, repetitions = "books", ("in books", "none")
    option = Option("--books", "TXT", "cleaned books, each with its record (.json) beside it", str)
    steps = (
        Step(
            rule="fetch_book",
            command="gutenberg fetch",
            help="fetch a book from a mirror",
            message="Fetching book {wildcards.item} from the Gutenberg mirror",
            run=fetch,
            options=(
                NUMBER,
                Option(
                    "--output",
                    "FILE",
                    "where to keep it as it is served, such as data/gutenberg/raw/pg1342.txt",
                ),
            ),
            values=lambda config, item: {"id": item},
            outputs=raw,
            sections="sources.gutenberg",
            reads=("sources.gutenberg.collection",),
            pattern=r"\d+",
            megabytes=250,
            connections=1,
        ),
        Step(
            rule="clean_book",
            command="gutenberg clean",
            help="cut the book out of its header, credits and licence",
            message="Cutting book {wildcards.item} out of its header, credits and licence",
            run=cut_out,
            options=(
                NUMBER,
                Option("--input", "FILE", "the file as it was served"),
                Option("--output", "FILE", "text file to write"),
                Option("--record", "FILE", "JSON file to write: markers found, bytes in and out"),
                Option(
                    "--title", None, "title of the book (default: the one in its header)", str, ""
                ),
                Option("--author", None, "its author (default: the one in its header)", str, ""),
            ),
            values=lambda config, item: {"id": item} | about(config, item),
            inputs=lambda config, item: {"input": raw(config, item)["output"]},
            outputs=clean,
            entry=about,
            pattern=r"\d+",
            megabytes=250,
        ),
    )

    def items(self, config: Config) -> list[str]:
        """The books in the order of the sources file."""
        if not self.is_taken(config):
            return []
        wanted = config["corpus"]["books"]
        listed = [book["id"] for book in config["sources"][self.name]["books"]]
        return [str(book) for book in listed if wanted == "all" or book in wanted]

    def download_bytes(self, config: Config, item: str) -> float:
        return BOOK_BYTES

    def text_bytes(self, config: Config, item: str) -> float:
        if "sample" not in config:
            return BOOK_BYTES * CLEAN_SHARE
        from nanoeuler.corpus.sample.world import Sample

        paragraphs = Sample.from_config(config["sample"]).paragraphs_per_book - 4
        return SAMPLE_PARAGRAPH * paragraphs

    def disk_bytes(self, config: Config, item: str) -> float:
        """Bytes of the book as it is served and of the clean one."""
        if "sample" not in config:
            return 2 * BOOK_BYTES
        return 2 * self.text_bytes(config, item) + SAMPLE_WRAPPING

    def documents(self, config: Config) -> int:
        return len(self.items(config))

    def language(self, config: Config) -> str:
        return "en"

    def check(self, config: Config, place: Place) -> None:
        wanted = config["corpus"]["books"]
        if wanted == "all" or not self.is_taken(config):
            return
        listed = {book["id"] for book in config["sources"][self.name]["books"]}
        if unknown := [book for book in wanted if book not in listed]:
            place.refuse(
                ("corpus", "books"),
                f"names book {unknown[0]}, which the sources file does not list; "
                "add it there under gutenberg.books",
            )

    def reader(
        self, paths: Sequence[Path], licence: str, settings: Config, group: int | None
    ) -> Any:
        from nanoeuler.corpus.document_sources import Books

        return Books(paths, licence, settings.get("join_lines", True))


SOURCE = Gutenberg()
