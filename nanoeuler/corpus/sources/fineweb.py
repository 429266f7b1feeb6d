"""Web pages in the schema of FineWeb-Edu: a part of each parquet file that passes filters."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.corpus.addresses import file_bytes
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.sources.source import (
    Config,
    File,
    Files,
    Option,
    Place,
    Step,
    TextSource,
    filtered,
    find_section,
    with_file,
)
from nanoeuler.storage.section import Name, Reruns, Section, key, optional, section

FETCHED_SHARE = 0.65
"""Compressed bytes that are downloaded for a byte of web text, filters and margin included."""
SHARD_BYTES = 2_000_000_000
"""A web shard whose size the sources file does not say."""
WHOLE_SHARD = 4e9
"""Bytes of text in a shard of which everything is taken."""
SAMPLE_PAGE = 332
"""Bytes of an invented page."""


@section
class WebPages(Section):
    """Web pages in the schema of FineWeb-Edu."""

    collection: Name = key("name of the folder that the pages are kept in")
    revision: str | None = key("revision of the data set that hf:// addresses mean", default=None)
    title: str = optional("what reports call it", reruns=Reruns.NEVER)
    licence: str = optional("licence of the pages")
    shards: list[File] = key("the parquet files", min_length=1, reruns=Reruns.NEVER)


@section
class Part(Filters):
    """The part of each FineWeb-Edu shard that is taken."""

    shards: int = key(
        "number of shards, counted from the first in the sources file",
        default=1,
        ge=1,
        reruns=Reruns.NEVER,
    )


def shard_files(config: Config, item: str) -> Files:
    return filtered(config, "fineweb", "shards", f"shard-{item}", ".parquet")


def shard(config: Config, item: str) -> Mapping[str, Any]:
    """The entry of a shard in the sources file."""
    entry: Mapping[str, Any] = config["sources"]["fineweb"]["shards"][int(item)]
    return entry


def extract_shard(config: Config, shard: int, output: Path, record: Path) -> None:
    from nanoeuler.corpus.fineweb import extract

    filters = Filters.read(find_section(config, "corpus.fineweb"))
    extract(find_section(config, "sources.fineweb"), shard, filters, output, record)


class Fineweb(TextSource):
    """Web pages; an item is a shard, the three digits of its number in the sources file."""

    name, title, entries = "fineweb", "web pages", WebPages
    meaning = "web pages in FineWeb-Edu's schema"
    kind, repetitions = "web", ("in web pages, across all shards", "near")
    option = Option(
        "--fineweb", "TXT", "extracted web pages, each file with its index beside it", str
    )
    settings = Part
    settings_meaning = "the part of each FineWeb-Edu shard that is taken"
    steps = (
        Step(
            rule="extract_fineweb",
            command="fineweb",
            message="Extracting the pages of web shard {wildcards.item} that pass the filters",
            run=extract_shard,
            options=(
                Option("--shard", "N", "number of the shard in the sources file, from 0", int),
                Option(
                    "--output",
                    "FILE",
                    "file of texts to write; their index and origins (id, url) come beside it",
                ),
                Option(
                    "--record",
                    "FILE",
                    "JSON file to write: what was read, dropped, kept and fetched",
                ),
            ),
            values=lambda config, item: {"shard": item},
            outputs=shard_files,
            sections="corpus.fineweb and sources.fineweb",
            reads=(
                "corpus.fineweb",
                "sources.fineweb.collection",
                "sources.fineweb.revision",
                "sources.fineweb.shards",
            ),
            entry=lambda config, item: with_file(config, shard(config, item)),
            pattern=r"\d{3,6}",
            megabytes=2000,
            heavy=True,
        ),
    )

    def items(self, config: Config) -> list[str]:
        if not self.is_taken(config):
            return []
        return [f"{number:03d}" for number in range(config["corpus"][self.name]["shards"])]

    def download_bytes(self, config: Config, item: str) -> float:
        return self.text_bytes(config, item) * FETCHED_SHARE

    def text_bytes(self, config: Config, item: str) -> float:
        if "sample" not in config:
            size = file_bytes(shard(config, item)) or SHARD_BYTES
            return min(config["corpus"][self.name]["max_bytes_per_shard"], size / FETCHED_SHARE)
        from nanoeuler.corpus.sample.world import Sample

        return SAMPLE_PAGE * Sample.from_config(config["sample"]).articles

    def most_bytes(self, config: Config) -> float:
        most: float = config["corpus"][self.name]["max_bytes_per_shard"]
        return min(most, WHOLE_SHARD)

    def learned(self, config: Config) -> Iterable[Mapping[str, Any]]:
        pages = config.get("sources", {}).get(self.name, {})
        return list(pages.get("shards", []))

    def language(self, config: Config) -> str:
        wanted: str = config.get("corpus", {}).get(self.name, {}).get("language", "en")
        return wanted

    def check(self, config: Config, place: Place) -> None:
        wanted = config["corpus"][self.name]
        listed = len(config["sources"].get(self.name, {}).get("shards", []))
        if self.is_taken(config) and wanted["shards"] > listed:
            place.refuse(
                ("corpus", self.name, "shards"),
                f"is {wanted['shards']}, but the sources file lists {listed}; add shards there",
            )
        if wanted["min_characters"] > wanted["max_characters"]:
            place.refuse(
                ("corpus", self.name, "min_characters"),
                "is above max_characters, so that no page would be left; exchange them",
            )

    def reader(
        self, paths: Sequence[Path], licence: str, settings: Config, group: int | None
    ) -> Any:
        from nanoeuler.corpus.document_sources import WebPages

        return WebPages(paths, licence, group=group)


SOURCE = Fineweb()
