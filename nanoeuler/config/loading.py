"""Reading a configuration from YAML files, resolved until nothing is left to guess."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.config.settings import Configuration
from nanoeuler.config.sources import Sources
from nanoeuler.config.validation import check, place
from nanoeuler.config.yaml_file import Key, read_yaml
from nanoeuler.corpus.own_text import find_files
from nanoeuler.corpus.tasks import describe_task
from nanoeuler.errors import UserError
from nanoeuler.model.spec import ModelConfig

Config = dict[str, Any]


def load_files(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Resolve the configuration in several YAML files, a later one adding to and replacing what earlier ones say, then `overrides`."""
    merged: Config = {}
    places: dict[Key, str] = {}
    for file in files:
        content, found = read_yaml(file)
        if not isinstance(content, dict | None):
            raise UserError(
                f"{file}: holds {type(content).__name__} instead of keys with values; begin with a line such as `run: my-run`"
            )
        merge(merged, content or {})
        places |= found
    merge(merged, overrides or {})
    for key in keys_in(overrides or {}):
        places[key] = "the command line"
    source = ", ".join(map(str, files))
    config = check(merged, Configuration, places, source)
    config["sources"] = read_sources(
        config["sources"], config["data_dir"], place(("sources",), places, source)
    )
    resolve_model(config, places, source)
    check_sources(config, places, source)
    return config


def parse_overrides(overrides: Iterable[str]) -> Config:
    """Turn "sft.learning_rate=3e-4" into {"sft": {"learning_rate": "3e-4"}}; the schema makes it a number."""
    parsed: Config = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise UserError(
                f"{text!r} is no override; write section.key=value, for example sft.learning_rate=3e-4"
            )
        *sections, last = name.strip().split(".")
        inner = parsed
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = json.loads(value) if value.startswith(("[", "{")) else value
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


def read_sources(file: str, data_dir: str, where: str) -> Config:
    """Read and check the sources file, which `where` names; `{data_dir}` in its addresses is where this configuration keeps its data."""
    if not Path(file).is_file():
        raise UserError(
            f"{where}: sources is {file}, and there is no such file (from {Path.cwd()}); correct the path, config/sources.yaml for example"
        )
    content, places = read_yaml(file)
    sources = check(content or {}, Sources, places, file)
    return {name: expand(section, data_dir) for name, section in sources.items()}


def expand(value: Any, data_dir: str) -> Any:
    if isinstance(value, Mapping):
        return {key: expand(item, data_dir) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, data_dir) for item in value]
    return value.replace("{data_dir}", data_dir) if isinstance(value, str) else value


def resolve_model(config: Config, places: Mapping[Key, str], source: str) -> None:
    """Expand the preset, let tokenizer and model agree on the vocabulary, and check that the model can be built."""
    model, tokenizer = config["model"], config["tokenizer"]
    if tokenizer["vocab_size"] is not None:
        if model.get("vocab_size", tokenizer["vocab_size"]) != tokenizer["vocab_size"]:
            where = place(("model", "vocab_size"), places, source)
            raise UserError(
                f"{where}: model.vocab_size is {model['vocab_size']} and tokenizer.vocab_size {tokenizer['vocab_size']}; leave out model.vocab_size"
            )
        model["vocab_size"] = tokenizer["vocab_size"]
    try:
        config["model"] = {"preset": model.get("preset")} | ModelConfig.from_dict(model).to_dict()
    except UserError as error:
        raise UserError(f"{place(('model',), places, source)}: {error}") from error
    tokenizer["vocab_size"] = config["model"]["vocab_size"]
    if config["sft"]["context"] is None:
        config["sft"]["context"] = config["model"]["context"]
    if config["dpo"]["context"] is None:
        config["dpo"]["context"] = (
            config["sft"]["context"] if config["sft"]["enabled"] else config["model"]["context"]
        )


def check_sources(config: Config, places: Mapping[Key, str], source: str) -> None:
    """Refuse a configuration that names what its sources file does not have."""
    corpus, sources = config["corpus"], config["sources"]
    corpus["name"] = corpus["name"] or config["run"]

    def refuse(key: Key, problem: str) -> None:
        raise UserError(f"{place(key, places, source)}: {'.'.join(map(str, key))} {problem}")

    for name in {"gutenberg", "fineweb"} & set(corpus["sources"]):
        if name not in sources:
            refuse(
                ("corpus", "sources"),
                f"takes {name}, which the sources file does not describe; add a {name} section there or take it out here",
            )
    for own in set(corpus["sources"]) - {"gutenberg", "fineweb"}:
        try:
            find_files(own)
        except UserError as error:
            raise UserError(
                f"{place(('corpus', 'sources', corpus['sources'].index(own)), places, source)}: {error}"
            ) from error
    if corpus["books"] != "all" and "gutenberg" in corpus["sources"]:
        listed = {book["id"] for book in sources["gutenberg"]["books"]}
        if unknown := [book for book in corpus["books"] if book not in listed]:
            refuse(
                ("corpus", "books"),
                f"names book {unknown[0]}, which the sources file does not list; add it there under gutenberg.books",
            )
    if "fineweb" in corpus["sources"] and corpus["fineweb"]["shards"] > len(
        sources["fineweb"]["shards"]
    ):
        refuse(
            ("corpus", "fineweb", "shards"),
            f"is {corpus['fineweb']['shards']}, but the sources file lists {len(sources['fineweb']['shards'])}; add shards there",
        )
    if corpus["fineweb"]["min_characters"] > corpus["fineweb"]["max_characters"]:
        refuse(
            ("corpus", "fineweb", "min_characters"),
            "is above max_characters, so that no page would be left; exchange them",
        )
    for stage, data in (("sft", "instructions"), ("dpo", "preferences")):
        name = config[stage][data]
        if (
            config[stage]["enabled"]
            and name not in sources.get(data, {})
            and not Path(name).is_file()
        ):
            known = ", ".join(sources.get(data, {})) or "none"
            refuse(
                (stage, data),
                f"is {name!r}, neither a name in the sources file (there: {known}) nor a file; correct it",
            )
    questions = config["evaluate"]["questions"]
    if questions is not None and questions not in sources.get("questions", {}):
        known = ", ".join(sources.get("questions", {})) or "none"
        refuse(
            ("evaluate", "questions"),
            f"is {questions!r}, which the sources file does not have (there: {known}); correct it or set null",
        )
    names = [task["name"] for task in config["evaluate"]["tasks"]]
    for number, name in enumerate(names):
        if name in names[:number]:
            refuse(
                ("evaluate", "tasks", number),
                f"is the second one named {name}; give it another name, and its kind",
            )
        try:
            describe_task(name, config)
        except UserError as error:
            raise UserError(
                f"{place(('evaluate', 'tasks', number), places, source)}: evaluate.tasks: {error}"
            ) from error
    for section, row in (
        ("pretrain", config["model"]["context"]),
        ("sft", config["sft"]["context"]),
        ("dpo", 2 * config["dpo"]["context"]),
    ):
        if config[section].get("batch_tokens", row) < row:
            refuse(
                (section, "batch_tokens"),
                f"is {config[section]['batch_tokens']}, less than one row of {row} tokens; give a multiple of {row}",
            )
