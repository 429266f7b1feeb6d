"""Reading YAML, also a stranger's: bounded, without tags, with file and line of each key.

Plain words are numbers, truth values and null by the core schema of YAML 1.2. The others are texts
as they are written: `on`, `010`, `1_000`, `12:30`, `2026-11-05`. A number stays known as it is
written, for keys whose value is a text.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_text

Key = tuple[str | int, ...]
"""The way to a value, such as ("sft", "epochs")."""
MOST = 1_000_000
"""Bytes of the largest file that is read."""
MOST_NODES = 100_000  # keys and values, in all places that aliases put them
DEEPEST = 100  # lists and sections within each other
MOST_WORDED = 100_000  # characters: PyYAML words mistakes better than libyaml, in 50 times the time

CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,4000}")
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
TEMPLATE = "__use_yte__"
"""A key at which Snakemake, which reads configurations too, would run the code in a file."""


class Written(float):
    """A number that is known as it is written, too: 3.10."""

    text: str

    def __new__(cls, text: str) -> "Written":
        digits = text.replace(".", "", 1) if text[-1] in "fFnN" else text  # .inf and .nan
        number = super().__new__(cls, digits)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)

    def __str__(self) -> str:
        return self.text


class Dumper(yaml.SafeDumper):
    """Puts texts in quotes that would be read as numbers."""


Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def write_yaml(value: Any, file: IO[str]) -> None:
    """Write `value` so that it is read as it is."""
    yaml.dump(value, file, Dumper, sort_keys=False, allow_unicode=True, width=90)


def read_yaml(path: str | Path, exact: bool = False) -> tuple[Any, dict[Key, str]]:
    """Return the content of a YAML file, and for each key where it is: "file, line 7".

    Raises `UserError` when the file is missing or `parse_yaml` refuses it.
    """
    path = Path(path)
    try:
        text = read_text(path, MOST)
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; give the path of a YAML file, config/config.yaml for example"
        ) from error
    except IsADirectoryError as error:
        raise UserError(
            f"{path}: a folder, not a YAML file; give the path of a file in it"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the path of a YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from error
    return parse_yaml(text, str(path), exact=exact)


def parse_yaml(
    text: str, name: str, line: int = 1, exact: bool = False
) -> tuple[Any, dict[Key, str]]:
    """Return the value of a YAML document, and for each key where it is: "name, line 7".

    `line` is that of its first in the file `name`. Raises `UserError` where it is not YAML, and for
    explicit tags, a key that is given twice, and too many or too deep values; with `exact` for a
    question mark in a list in brackets, too, as Snakemake does.
    """
    worded = len(text) <= MOST_WORDED
    # libyaml forgives some tabs, and question marks
    quick = worded and "\t" not in text and not (exact and "?" in text)
    try:
        try:
            return Document(name, line).read(parse(text, quick or not worded))
        except yaml.YAMLError:
            if not worded:
                raise
            return Document(name, line).read(parse(text, False))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}, line {line + mark.line}" if mark else name
        raise UserError(
            f"{where}: not valid YAML: {error.problem}; "
            "check the indentation (spaces, no tabs) and the quotes there"
        ) from error
    except yaml.YAMLError as error:  # of the characters
        found = yaml.reader.Reader.NON_PRINTABLE.search(text)
        above = text.count("\n", 0, found.start()) if found else 0
        raise UserError(
            f"{name}, line {line + above}: not valid YAML: it has a control character; delete it"
        ) from error


def parse(text: str, quick: bool) -> Iterator[yaml.Event]:
    """The events of a document: libyaml's, which takes a fifth of the time, or PyYAML's."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.parse(text, Loader=fast if quick else yaml.SafeLoader)


def read_keys(path: str | Path) -> tuple[dict[Any, Any], dict[Key, str]]:
    """`read_yaml` of a file that holds keys with values; raises `UserError` for any other."""
    content, locations = read_yaml(path, exact=True)
    if not isinstance(content, dict | None):
        raise UserError(
            f"{path}: holds {type(content).__name__} instead of keys with values; "
            "begin with a line such as `run: my-run`"
        )
    if content and TEMPLATE in content:
        raise UserError(
            f"{locations[(TEMPLATE,)]}: {TEMPLATE} makes a template of the file, whose code "
            "Snakemake would run; take it out, and write out what the template makes"
        )
    return content or {}, locations


def front_matter(path: Path) -> Mapping[str, Any]:
    """The keys between the lines --- at the top of a Markdown file, such as a model card.

    They are none without such lines. Raises `UserError` as `parse_yaml` does, and for more than
    `MOST` characters of them.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        if file.readline(MOST).rstrip() != "---":
            return {}
        lines: list[str] = []
        size = 0
        while (line := file.readline(MOST)) and line.rstrip() != "---":
            size += len(line)
            if size > MOST:
                raise UserError(
                    f"{path}: more than {MOST / 1e6:.0f} MB of front matter; shorten it"
                )
            lines.append(line)
    value = parse_yaml("".join(lines), str(path), line=2)[0]
    return value if isinstance(value, dict) else {}


def plain(text: str) -> Any:
    """The value of a word that is not in quotes."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return Written(text) if FLOAT.fullmatch(text) else text


class Document:
    """Builds the value of a document from its events."""

    def __init__(self, name: str, line: int):
        self.name, self.first_line = name, line
        self.locations: dict[Key, str] = {(): name}
        self.anchors: dict[str, tuple[Any, int]] = {}  # the value and its number of nodes
        self.nodes = 0

    def place(self, line: int) -> str:
        return f"{self.name}, line {self.first_line + line}"

    def refuse(self, event: Any, problem: str) -> UserError:
        return UserError(f"{self.place(event.start_mark.line)}: {problem}")

    def read(self, events: Iterator[Any]) -> tuple[Any, dict[Key, str]]:
        """Build the value of a document with one or none, and say where its keys are."""
        self.events = events
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return None, self.locations
        value = self.node(next(events), ())
        next(events)  # the end of the document
        another: Any = next(events)
        if not isinstance(another, yaml.StreamEndEvent):
            raise self.refuse(another, "not valid YAML: a second document begins; keep one of them")
        return value, self.locations

    def node(self, event: Any, key: Key) -> Any:
        """Build the value that begins with `event`."""
        before = self.nodes
        self.count(event, 1)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.refuse(
                    event,
                    f"the alias *{str(event.anchor)[:60]} stands for no value that ends before it; "
                    "write the value out",
                )
            value, size = self.anchors[event.anchor]
            self.count(event, size)
            return copy.deepcopy(value)  # what is put over one place must not change another
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self.refuse(event, f"the tag {tag[:60]} is not read; write the value alone")
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else plain(event.value)
        elif len(key) >= DEEPEST:
            raise self.refuse(event, "nested too deeply; close the brackets")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.items(key)
        else:
            value = self.section(key)
        if event.anchor is not None:
            self.anchors[event.anchor] = value, self.nodes - before
        return value

    def count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            raise self.refuse(
                event,
                f"more than {MOST_NODES:,} values, counting what aliases stand for; "
                "no such file needs so many: shorten it",
            )

    def items(self, key: Key) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            inner = (*key, len(values))
            self.locations[inner] = self.place(event.start_mark.line)
            values.append(self.node(event, inner))
        return values

    def section(self, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[Mapping[str, Any]] = []
        event: Any
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise self.refuse(event, "not valid YAML: a key that is no plain word; correct it")
            self.count(event, 1)
            name = event.value
            inner = (*key, name)
            if event.anchor is not None:
                self.anchors[event.anchor] = name, 1
            if name == "<<" and not event.style:
                merged += self.merged(next(self.events), inner)
                continue
            if name in values:
                raise self.refuse(
                    event, f"{'.'.join(map(str, inner))[-60:]} is given twice; keep one of them"
                )
            self.locations[inner] = self.place(line)
            values[name] = self.node(next(self.events), inner)
        for section in merged:
            for name, value in section.items():
                values.setdefault(name, value)
        return values

    def merged(self, event: Any, key: Key) -> list[Mapping[str, Any]]:
        """The sections whose keys `<<` adds; the first of several goes before the others."""
        value = self.node(event, key)
        sections = value if isinstance(value, list) else [value]
        if not all(isinstance(section, dict) for section in sections):
            raise self.refuse(event, "<< adds the keys of sections; give it one, or a list of some")
        return sections
