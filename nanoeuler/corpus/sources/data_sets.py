"""Data sets that a run names: by a name in the sources file, or by the path of a file."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from nanoeuler.corpus.addresses import file_bytes
from nanoeuler.corpus.sources.source import Config, Files, Option, Place, Source, Step, folder_of
from nanoeuler.errors import LONGEST_PATH, brief

VALIDATION_SHARE = 0.02
"""Share of the records that is held out, unless the configuration says otherwise."""
NAME = Option("--name", None, "name in the sources file", str)
SPLIT_FOLDER = Option(
    "--output", "DIR", "folder to write: train.jsonl, validation.jsonl, manifest.json"
)


class DataSets(Source, ABC):
    """Data sets of a kind; an item is one."""

    @abstractmethod
    def names(self, config: Config) -> list[str]:
        """The data sets that a run takes."""

    def items(self, config: Config) -> list[str]:
        return self.names(config)

    def listed(self, config: Config) -> Mapping[str, Any]:
        """The section of the sources file."""
        section: Mapping[str, Any] = config.get("sources", {}).get(self.name, {})
        return section

    def entry(self, config: Config, name: str) -> Mapping[str, Any]:
        """The entry of a data set, or one for the file whose path `name` is."""
        entry: Mapping[str, Any] = self.listed(config).get(name, {"url": name})
        return entry

    def download_bytes(self, config: Config, item: str) -> float | None:
        return file_bytes(self.entry(config, item))


class TuningData(DataSets):
    """Data of a stage of tuning: the name of a data set, or the path of a file.

    An item is a folder: it has the data set's name, or one that is made of the path.
    """

    stage: str
    """The section of the configuration that names it."""
    shapes: str
    """The shapes of records that a file may have, for `--help`."""
    megabytes = 1000

    def __init__(self) -> None:
        self.steps = (
            Step(
                rule=f"fetch_{self.name}",
                command=self.name,
                message=f"Fetching and checking the {self.name} {{wildcards.item}}",
                run=self.prepare,
                options=(
                    Option(
                        "--name",
                        None,
                        f"name in the sources file, or the path of a file ({self.shapes})",
                        str,
                    ),
                    SPLIT_FOLDER,
                ),
                values=self.given,
                outputs=self.manifest,
                sections=f"sources.{self.name} and {self.stage}.validation_share",
                reads=(
                    f"{self.stage}.{self.name}",
                    f"{self.stage}.validation_share",
                    f"sources.{self.name}.{{{self.stage}.{self.name}}}",
                ),
                megabytes=self.megabytes,
            ),
        )

    def prepare(self, config: Config, name: str, output: Path) -> None:
        """Write the records of a data set, by the module of corpus of this source's name."""
        share = config.get(self.stage, {}).get("validation_share", VALIDATION_SHARE)
        module = import_module(f"nanoeuler.corpus.{self.name}")
        module.prepare(name, self.listed(config), share, output)

    def names(self, config: Config) -> list[str]:
        settings = config.get(self.stage, {})
        return [settings[self.name]] if settings.get("enabled") else []

    def items(self, config: Config) -> list[str]:
        return [self.item(config)] if self.names(config) else []

    def item(self, config: Config) -> str:
        """The item of this run, tuned or not. A hash of the path parts a-b.json from a/b.json."""
        from nanoeuler.corpus.own_text import slug

        name: str = config[self.stage][self.name]
        if name in self.listed(config):
            return name
        return f"{slug(name)}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"

    def learned(self, config: Config) -> Iterable[Mapping[str, Any]]:
        return [self.entry(config, name) for name in self.names(config)]

    def download_bytes(self, config: Config, item: str) -> float | None:
        return file_bytes(self.entry(config, config[self.stage][self.name]))

    def folder(self, config: Config, item: str) -> str:
        return f"{folder_of(config, self.name)}/{item}"

    def manifest(self, config: Config, item: str) -> Files:
        return {"manifest": f"{self.folder(config, item)}/manifest.json"}

    def given(self, config: Config, item: str) -> dict[str, str]:
        return {"name": config[self.stage][self.name], "output": self.folder(config, item)}

    def check(self, config: Config, place: Place) -> None:
        known = self.listed(config)
        for name in self.names(config):
            if name not in known and not os.path.isfile(name):
                place.refuse(
                    (self.stage, self.name),
                    f"is {brief(name, LONGEST_PATH)}, neither a name in the sources file "
                    f"(there: {', '.join(known) or 'none'}) nor a file; correct it",
                )
