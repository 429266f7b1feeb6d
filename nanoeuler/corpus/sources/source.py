"""A source of data is declared once, and everything else iterates over the declarations.

A declaration is an object of a class in a module of this room; `registry` lists them. Paths, the
configuration, the command line, the rules of the workflow, plans, licences, the model card and the
report read what it says. A module imports what does the work when it is done, not before.

A source has items: books, shards, data sets. Each item goes through the source's steps, of which a
step is a subcommand of nanoeuler and a rule of the workflow that calls it. A method that is given
an item may also be given a wildcard, such as "{item}".
"""

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nanoeuler.corpus.addresses import resolve
from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json
from nanoeuler.storage.section import Section, key, optional, section

if TYPE_CHECKING:
    from nanoeuler.corpus.document_sources import Reader

Config = Mapping[str, Any]
"""A resolved configuration."""
Files = dict[str, str]
"""Paths by their names."""


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
    licence: str = optional("licence of the records")


@dataclass(frozen=True)
class Option:
    """An option of a subcommand. `kind` reads its value; without a default it must be given."""

    flag: str
    metavar: str | None
    meaning: str
    kind: Callable[[str], Any] = Path
    default: Any = None

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--")


@dataclass(frozen=True)
class Step:
    """A step that an item goes through: a subcommand, and the rule that calls it.

    `outputs`, `inputs` and `values` give the files and texts of an item by their names. Those that
    `options` names are given to the subcommand, and come to `run` as arguments behind the
    configuration, which only a step with `sections` has. The rule runs again when a key in `reads`
    changes that can change a result, or what `entry` returns of an item, or the `revision`, which
    is raised when the code writes something else.
    """

    rule: str
    command: str
    message: str
    run: Callable[..., object]
    options: Sequence[Option]
    outputs: Callable[[Config, str], Files]
    inputs: Callable[[Config, str], Files] = lambda config, item: {}
    values: Callable[[Config, str], Mapping[str, str]] = lambda config, item: {}
    help: str = ""  # of a command inside another, as in `gutenberg fetch`
    sections: str = ""  # those of the configuration that it needs, in words
    reads: Sequence[str] = ()
    entry: Callable[[Config, str], Mapping[str, Any]] = lambda config, item: {}
    revision: int = 1
    pattern: str = r"[^/]+"  # of its items
    megabytes: int = 1000
    connections: int = 0  # to the mirror
    heavy: bool = False  # a job of a cluster whose nodes have network

    def arguments(self, config: Config, item: str, file: str) -> list[str]:
        """The words of the subcommand for an item; `file` holds the configuration."""
        given = {
            **self.values(config, item),
            **self.inputs(config, item),
            **self.outputs(config, item),
        }
        options = [f"{option.flag}={given[option.name]}" for option in self.options]
        return [*self.command.split(), *([f"--config={file}"] if self.sections else []), *options]


class Place(ABC):
    """Names the place of a key in a configuration, and refuses its value; see `Consistency`."""

    @abstractmethod
    def where(self, key: tuple[str | int, ...]) -> str:
        """The file and line of a key."""

    def refuse(self, key: tuple[str | int, ...], problem: str) -> NoReturn:
        """Raise `UserError` for the value of a key."""
        raise UserError(f"{self.where(key)}: {'.'.join(map(str, key))} {problem}")


class Source(ABC):
    """A source of data that is fetched."""

    name: str
    """Its key in the sources file, and its folder in data_dir."""
    title: str
    """Name of its items in plans."""
    entries: Any
    """The type of its section in the sources file."""
    meaning: str
    """Meaning of that section, for the schema."""
    steps: Sequence[Step]

    @abstractmethod
    def items(self, config: Config) -> list[str]:
        """The items that a run takes and the steps prepare."""

    def fetched(self, config: Config, item: str) -> str:
        """The file that shows that an item was fetched."""
        return next(iter(self.steps[0].outputs(config, item).values()))

    def missing(self, config: Config) -> list[str]:
        """The items that are not fetched yet."""
        return [
            item for item in self.items(config) if not Path(self.fetched(config, item)).exists()
        ]

    @abstractmethod
    def download_bytes(self, config: Config, item: str) -> float | None:
        """About how much is downloaded for an item; None where nobody says."""

    def learned(self, config: Config) -> Iterable[Mapping[str, Any]]:
        """The entries of files that the models of a run learn from."""
        return []

    @abstractmethod
    def check(self, config: Config, place: Place) -> None:
        """Raise `UserError` where the configuration contradicts the sources file."""


class Text:
    """What the corpus asks of its texts, fetched or one's own."""

    name: str
    title: str
    kind: str
    """Its key in corpus.deduplicate."""
    repetitions: tuple[str, str]
    """The meaning of that key, and its default."""
    option: Option
    """The option with which its texts are given to `assemble`."""

    def language(self, config: Config) -> str | None:
        """The language of the texts, as in "en"; None where it is unknown."""
        return None


class TextSource(Text, Source):
    """A source of documents for the corpus, which `corpus.sources` names."""

    settings: type[Section] | None = None
    """Its section in `corpus`, if it has one."""
    settings_meaning: str = ""

    def is_taken(self, config: Config) -> bool:
        return self.name in config["corpus"].get("sources", ())

    def text(self, config: Config, item: str) -> str:
        """The file of an item's text."""
        return self.steps[-1].outputs(config, item)["output"]

    def record(self, config: Config, item: str) -> str:
        """The file that says what the text was made of."""
        return self.steps[-1].outputs(config, item)["record"]

    @abstractmethod
    def text_bytes(self, config: Config, item: str) -> float:
        """About the bytes of an item's text."""

    def most_bytes(self, config: Config) -> float:
        """The most bytes of an item whose near-duplicates are sought; else none."""
        return 0

    def disk_bytes(self, config: Config, item: str) -> float:
        """About the bytes that an item takes before the corpus is made."""
        return self.text_bytes(config, item)

    def documents(self, config: Config) -> int | None:
        """The documents of a run, where they are few."""
        return None

    @abstractmethod
    def reader(
        self, paths: Sequence[Path], licence: str, settings: Config, group: int | None
    ) -> "Reader":
        """The reader of the documents in files of this source.

        `settings` is the section corpus; of sources that are written in groups, each has `group`
        files.
        """


def find_section(config: Any, name: str) -> Any:
    """The part `name` ("sources.gutenberg") of the configuration.

    Raises `UserError` when there is none.
    """
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    if config is None:
        raise UserError(f"--config: {name} is missing; this stage needs it")
    return config


def folder_of(config: Config, source: str) -> str:
    """The folder of a source in data_dir."""
    data_dir = config["data_dir"].rstrip("/") or "/"
    return f"{data_dir}/{source}"


def collection(config: Config, source: str) -> str:
    """The folder of the collection that the sources file names."""
    name = config["sources"].get(source, {}).get("collection", "none")
    return f"{folder_of(config, source)}/{name}"


def filtered(config: Config, source: str, number: str, stem: str, origins: str) -> Files:
    """Texts that pass filters, and what lies beside them: index, origins and record.

    The folder's name is a hash of the filters, the section of the source in corpus but for its key
    `number`, so that texts of other filters stay apart.
    """
    section = config["corpus"].get(source, {})  # of a run made by hand, there may be none
    filters = {name: value for name, value in section.items() if name != number}
    short_hash = hashlib.sha256(canonical_json(filters).encode()).hexdigest()[:8]
    path = f"{collection(config, source)}/{short_hash}/{stem}"
    suffixes = {"output": ".txt", "index": ".index", "origins": origins, "record": ".json"}
    return {name: path + suffix for name, suffix in suffixes.items()}


def without_address(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without its address if its hash is known: any file of that hash is the same file."""
    known = entry.get("sha256")
    return {key: value for key, value in entry.items() if key != "url" or not known}


def with_file(config: Config, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry `without_address`, and with size and time of a local file of unknown hash, which may
    change: hashing terabytes would take hours.

    Those of a sample are written by the run itself.
    """
    kept = without_address(entry)
    if "url" in kept and not config.get("sample"):
        with contextlib.suppress(UserError, OSError):  # an address that reading will refuse
            place = resolve(kept["url"])
            if isinstance(place, Path):
                status = place.stat()
                kept["file"] = [status.st_size, status.st_mtime_ns]
    return kept
