"""Reading a configuration from YAML files and resolving it until nothing is left to guess."""

import glob
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from nanoeuler import shipped
from nanoeuler.config.data_settings import Sources
from nanoeuler.config.settings import Configuration
from nanoeuler.config.stages import BY_SECTION, RECORD_STAGES, parent_of
from nanoeuler.config.validation import (
    MISSING_KEY,
    UNKNOWN_KEY,
    check,
    explain,
    huge_numbers,
    locate,
    mistakes,
    read_schema,
)
from nanoeuler.config.yaml_file import Key, parse_yaml, read_keys, read_yaml
from nanoeuler.corpus.sources import DATA_SETS, TEXTS, is_named
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.sources.registry import SOURCES
from nanoeuler.corpus.sources.source import Place
from nanoeuler.errors import LONGEST_PATH, UserError, brief
from nanoeuler.model.adapters import adapted
from nanoeuler.model.config import ModelConfig, check_growth, is_whole_number
from nanoeuler.storage.files import parse_json
from nanoeuler.storage.names import FORM_OF_NAME, is_name
from nanoeuler.storage.shape import describe
from nanoeuler.storage.stores import has_secret

Config = dict[str, Any]


def load_files(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Resolve the configuration in several YAML files.

    A later file adds to earlier ones and replaces what they say, and so do `overrides`.
    """
    merged: Config = {}
    locations: dict[Key, str] = {}
    for file in files:
        content, found = read_keys(file)
        merge(merged, content)
        locations |= found
    merge(merged, overrides or {})
    for key in keys_in(overrides or {}):
        locations[key] = "the command line"
    source = ", ".join(map(str, files))
    config = check(merged, Configuration, locations, source)
    find = finder(files)
    where = locate(("sources",), locations, source)
    config["sources"] = read_sources(find(config["sources"]), config["data_dir"], where)
    find_inputs(config, find)
    resolve_model(config, locations, source)
    Consistency(config, locations, source).check()
    return config


def parse_overrides(overrides: Iterable[str]) -> Config:
    """Turn "sft.epochs=2" into {"sft": {"epochs": "2"}}; `check` makes the text a number."""
    parsed: Config = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise UserError(
                f"{brief(text)} is no override; "
                "write section.key=value, for example sft.learning_rate=3e-4"
            )
        *sections, last = name.strip().split(".")
        inner = parsed
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise UserError(
                    f"{brief(text)}: {section} was given as a value before; write one of the two"
                )
        quoted = value.startswith(("[", "{"))
        inner[last] = parse_yaml(value, brief(text))[0] if quoted else value
    return parsed


def merge(base: Config, other: Mapping[str, Any]) -> None:
    """Put `other` over `base`, section by section; lists and scalars are replaced."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


def keys_in(value: Mapping[str, Any], prefix: Key = ()) -> Iterable[Key]:
    for key, item in value.items():
        yield (*prefix, key)
        if isinstance(item, Mapping):
            yield from keys_in(item, (*prefix, key))


def finder(files: Iterable[str | Path]) -> Callable[[str | None], str | None]:
    """A function that says where the file is that a configuration names.

    A path counts from the working folder. Where nothing is there, it counts from the folder of the
    configuration, or if that is called `config`, from the folder around it; at last it is one of
    what is shipped, such as config/sources.yaml.
    """
    places: list[Path] = []
    for folder in (Path(file).parent for file in files):
        named = os.path.basename(os.path.realpath(folder))
        places += [folder, folder / ".."] if named == "config" else [folder]

    def find(path: str | None) -> str | None:
        if path is None or os.path.isabs(path) or exists(path):
            return path
        here = (os.path.normpath(place / path) for place in places)
        return next(filter(exists, here), None) or str(shipped.find(path))

    return find


def find_inputs(config: Config, find: Callable[[str | None], str | None]) -> None:
    """Put in where the files and folders are that the sections name."""
    corpus, sources = config["corpus"], config["sources"]
    corpus["sources"] = [
        entry if is_named(entry) else find_text(entry, find) for entry in corpus["sources"]
    ]
    for kind, stage in RECORD_STAGES.items():
        if config[stage.section][kind] not in sources.get(kind, {}):
            config[stage.section][kind] = find(config[stage.section][kind])
    config["tokenizer"]["path"] = find(config["tokenizer"]["path"])
    config["pretrain"]["old_tokens"] = find(config["pretrain"]["old_tokens"])
    for section in BY_SECTION:
        config[section]["init_from"] = find(config[section]["init_from"])


def find_text(entry: Any, find: Callable[[str | None], str | None]) -> Any:
    """Put in where the text is that an entry of `corpus.sources` names."""
    return find(entry) if isinstance(entry, str) else entry | {"path": find(entry["path"])}


def exists(path: str) -> bool:
    """Whether there is something at `path`, which may be a glob."""
    path = os.path.expanduser(path)
    return os.path.exists(path) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))


def read_sources(file: str | None, data_dir: str, where: str) -> Config:
    """Read and check the sources file, which the configuration names at `where`, if at all.

    `{data_dir}` in its addresses is replaced by the configuration's.
    """
    if file is None:
        return {}
    if not os.path.isfile(file):
        raise UserError(
            f"{where}: sources is {brief(file, LONGEST_PATH)}, and there is no such file from here "
            f"({Path.cwd()}) or from the configuration; correct the path, config/sources.yaml for "
            "example"
        )
    content, locations = read_yaml(file)
    sources = check(content or {}, Sources, locations, file)
    for kind in DATA_SETS:
        for name in sources.get(kind) or {}:
            if not is_name(name):
                raise UserError(
                    f"{locate((kind, name), locations, file)}: {kind} has the name {brief(name)}, "
                    f"and a folder is named after it; give {FORM_OF_NAME}"
                )
    return {name: expand(section, data_dir) for name, section in sources.items()}


def expand(value: Any, data_dir: str) -> Any:
    if isinstance(value, Mapping):
        return {key: expand(item, data_dir) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, data_dir) for item in value]
    return value.replace("{data_dir}", data_dir) if isinstance(value, str) else value


def resolve_model(config: Config, locations: Mapping[Key, str], source: str) -> None:
    """Expand the preset, settle vocabulary and contexts, and check that the model can be built."""
    model, tokenizer = config["model"], config["tokenizer"]
    if tokenizer["vocab_size"] is not None:
        rows = model.get("vocab_size", tokenizer["vocab_size"])
        started = any(config[section]["init_from"] for section in BY_SECTION)
        spare = started and is_whole_number(rows) and rows > tokenizer["vocab_size"]
        if rows != tokenizer["vocab_size"] and not spare:
            where = locate(("model", "vocab_size"), locations, source)
            raise UserError(
                f"{where}: model.vocab_size is {model['vocab_size']} and tokenizer.vocab_size "
                f"{tokenizer['vocab_size']}; leave out model.vocab_size"
            )
        model["vocab_size"] = rows
    try:
        resolved = ModelConfig.from_dict(model)
    except UserError as error:
        raise UserError(f"{locate(('model',), locations, source)}: {error}") from error
    config["model"] = {"preset": model.get("preset")} | resolved.to_dict()
    tokenizer["vocab_size"] = tokenizer["vocab_size"] or resolved.vocab_size
    for section, stage in BY_SECTION.items():
        if "context" not in config[section]:
            continue
        if config[section]["context"] is None:
            parent = parent_of(stage, config)
            of_parent = config[parent.section].get("context") if parent else None
            config[section]["context"] = of_parent or resolved.context
        if resolved.family == "gpt2" and config[section]["context"] != resolved.context:
            raise UserError(
                f"{locate((section, 'context'), locations, source)}: {section}.context is "
                f"{config[section]['context']}, but model.family gpt2 has learned "
                f"{resolved.context} positions; leave it out, or change model.context"
            )


class Consistency(Place):
    """Checks that the sections of a configuration fit each other and the sources file."""

    def __init__(self, config: Config, locations: Mapping[Key, str], source: str):
        self.config, self.corpus, self.sources = config, config["corpus"], config["sources"]
        self.locations, self.source = locations, source

    def check(self) -> None:
        """Raise `UserError` for the first contradiction."""
        self.corpus["name"] = self.corpus["name"] or self.config["run"]
        self.check_folders()
        self.check_corpus_sources()
        OWN_TEXT.check(self.config, self)
        for source in SOURCES:
            source.check(self.config, self)
        self.check_batches()
        self.check_steps()
        self.check_adapters()

    def where(self, key: Key) -> str:
        return locate(key, self.locations, self.source)

    def check_folders(self) -> None:
        """To Snakemake, braces in an output are a wildcard; to a command, a dash is an option."""
        for key in ("data_dir", "results_dir"):
            folder = self.config[key]
            if folder.startswith("-") or not folder.isprintable() or set(folder) & set("{}"):
                self.refuse(
                    (key,),
                    f"is {brief(folder, LONGEST_PATH)}; give a folder without braces and line ends "
                    "in its name, and without a dash in front of it",
                )
        mirror = self.config["checkpoint_mirror"]
        if mirror is not None and (has_secret(mirror) or not mirror.isprintable()):
            self.refuse(  # which does not say what it is
                ("checkpoint_mirror",),
                "holds a password, a token or a line end, and logs would keep it; give the address "
                "alone, and a credential by the environment or a file of your own",
            )

    def check_corpus_sources(self) -> None:
        entries = self.corpus["sources"]
        for name in TEXTS:
            if name in entries and name not in self.sources:
                there = f"which the sources file does not describe; add a {name} section there"
                if not self.sources:
                    there = "but no sources file is named; write `sources: config/sources.yaml`"
                self.refuse(("corpus", "sources"), f"takes {name}, {there} or take it out here")

    def check_batches(self) -> None:
        """A batch must hold a row."""
        for section, stage in BY_SECTION.items():
            context = self.config[section].get("context", self.config["model"]["context"])
            row, tokens = stage.contexts_in_row * context, self.config[section].get("batch_tokens")
            if tokens is not None and tokens < row:
                self.refuse(
                    (section, "batch_tokens"),
                    f"is {tokens}, less than one row of {row} tokens; give a multiple of {row}",
                )

    def check_steps(self) -> None:
        """Growth and short rows must end before the last step."""
        pretrain, model = self.config["pretrain"], ModelConfig.from_dict(self.config["model"])
        rows = pretrain["batch_tokens"] // model.context
        try:
            steps = math.ceil(pretrain["tokens"] / (rows * model.context))
            check_growth(model, pretrain["grow_at"], steps)
        except UserError as error:
            raise UserError(f"{self.where(('pretrain', 'grow_at'))}: {error}") from error
        if (pretrain["short_rows_until"] or 0) >= steps:
            self.refuse(
                ("pretrain", "short_rows_until"),
                f"is {pretrain['short_rows_until']}, but training has {steps} steps; give less, so "
                "that the last ones see whole rows",
            )

    def check_adapters(self) -> None:
        model = ModelConfig.from_dict(self.config["model"])
        for section, stage in BY_SECTION.items():
            if self.config[section].get("lora") is not None:
                settings = stage.settings.read(self.config[section])
                try:
                    adapted(model, settings.lora)  # type: ignore[attr-defined]
                except UserError as error:
                    where = self.where((section, "lora"))
                    raise UserError(f"{where}: {section}.{error}") from error


# ---- a configuration on a command line: JSON of the sections that the command reads, resolved


WHOLE = make_dataclass(
    "Resolved",
    [("sources", Sources), ("model", dict[str, Any])],
    bases=(Configuration,),
    frozen=True,
    kw_only=True,
)
"""A configuration whose sources file is read and whose model's preset is expanded; ModelConfig
checks the fields of that section itself."""
LIMITS = (
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    *("too_short", "string_pattern_mismatch", "value_error"),
)
"""pydantic's words for values of the right type that are out of bounds, which the command that
reads them refuses."""


class InlineSection(dict[str, Any]):
    """A part of an inline configuration; reading a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML "
            "file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    """Parse the configuration, of which sections and keys may be missing. Raises `UserError` unless
    it is JSON whose values have the types that the sections declare."""
    try:
        values = parse_json(text, object_hook=InlineSection)
    except ValueError as error:
        raise UserError(
            "--config is inline JSON (it starts with a brace) but is not valid: "
            f"{error}; quote it for the shell, or give the path of a YAML file"
        ) from error
    found = mistakes(values, WHOLE)
    wrong = [place for kind, place in found if kind not in (MISSING_KEY, UNKNOWN_KEY, *LIMITS)]
    wrong += huge_numbers({name: value for name, value in values.items() if name != "model"})
    if wrong:
        raise UserError(
            f"--config is inline JSON whose {describe(values, wrong[0])}; correct it, or give the "
            "path of a YAML file"
        )
    for kind, place in found:
        if kind == UNKNOWN_KEY:
            in_sources = place[0] == "sources" and len(place) > 1
            schema = read_schema(Sources if in_sources else Configuration)
            raise UserError(explain(kind, place[in_sources:], values, schema, {}, "--config"))
    return values
