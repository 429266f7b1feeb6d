"""The part of the configuration that each rule reads, and the part that makes it run again."""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler.config.data_settings import Sources
from nanoeuler.config.settings import Configuration
from nanoeuler.config.stages import BY_SECTION, RECORD_STAGES
from nanoeuler.corpus.sources.registry import NAMED, STEPS
from nanoeuler.storage.files import canonical_json
from nanoeuler.storage.integrity import kept_sha256
from nanoeuler.storage.section import Reruns, Section, section_type

Config = Mapping[str, Any]


class Rule(NamedTuple):
    """A rule of the workflow.

    `reads` are the keys that it reads, where {…} stands for the value of another key. `revision` is
    raised when its code changes what it writes.
    """

    reads: tuple[str, ...]
    revision: int = 1


WHOLE_RUN = (
    *("run", "seed", "device", "gpus", "max_hours", "data_dir", "results_dir", "sample"),
    *("corpus", "tokenizer", "model", *BY_SECTION, "evaluate", "sources"),
)
CHECKED_CODE = ("model", "backend", "training", "system/compiling.py")
"""Parts of the package that decide what a stage computes, for `code_fingerprint`."""

CHECKED_SETTINGS = (
    *("precision", "residual_precision", "recompute", "optimizer", "muon_momentum"),
    *("embedding_rate", "weight_decay", "beta1", "beta2", "epsilon", "clip_norm"),
)
"""Keys of `pretrain` that decide what a training step computes on one batch."""

FIT_SETTINGS = ("enabled", "init_from", "template", "context", "minimum_fit_share")
"""Keys of a stage that decide how much of its records the context holds."""

RULES = {
    "write_sample": Rule(("sample",)),
    **{step.rule: Rule(tuple(step.reads), step.revision) for step in STEPS.values()},
    "build_corpus": Rule(
        (
            *("corpus.name", "corpus.sources", "corpus.validation_share", "corpus.deduplicate"),
            *("corpus.decontaminate", "corpus.join_lines"),
            *(f"sources.{source.name}.licence" for source in NAMED),
        ),
    ),
    "learn_bpe": Rule(("tokenizer",), revision=2),
    "tokenize": Rule(("tokenizer.vocab_size",)),
    "index": Rule(()),
    "check_fit": Rule(
        (
            "model.context",
            *(f"{stage.section}.{key}" for stage in RECORD_STAGES.values() for key in FIT_SETTINGS),
        ),
    ),
    "check_gradients": Rule(("model", *(f"pretrain.{key}" for key in CHECKED_SETTINGS))),
    **{name: Rule(("seed", "model", name), stage.revision) for name, stage in BY_SECTION.items()},
    "evaluate_model": Rule(("seed", "model.context", "pretrain.document_mask", "evaluate")),
    "write_report": Rule(WHOLE_RUN),
}


def rule_identity(config: Config, rule: str) -> str:
    """Canonical JSON of what a rule reads and can change its result, with its revision.

    When it differs from last time, the rule runs again. The content of files of your own is part of
    it. Device, folders, intervals, logging, addresses of the same files and whatever else cannot
    change a result are left out. So is the preset's name, so that a preset and the same fields
    written out are one model.
    """
    selected = select(config, RULES[rule].reads)
    files = own_files(selected)
    sources = lasting(selected.pop("sources", {}), Sources)
    return canonical_json(
        lasting(selected, Configuration)
        | {"sources": sources, "revision": RULES[rule].revision}
        | ({"files": files} if files else {})
    )


def own_files(settings: Mapping[str, Any]) -> list[str]:
    """The hashes of the files that keys with `names_files` name, by themselves, by the folder of a
    model, or in a reward (0.5 * FILE.py:FUNCTION)."""
    inside = ("", "model.safetensors", "model/model.safetensors", "tokenizer.json")
    files = {
        Path(part.strip(), name): None  # once, in this order
        for value in values_that_name_files(settings, Configuration)
        for part in (value, *re.split("[:*]", value))
        for name in inside
    }
    return [kept_sha256(file) for file in files if file.is_file() and os.access(file, os.R_OK)]


def values_that_name_files(values: Mapping[str, Any], section: type[Section]) -> Iterator[str]:
    for item in fields(section):
        value, inner = values.get(item.name), section_type(item)
        if inner and isinstance(value, Mapping):
            yield from values_that_name_files(value, inner)
        elif value and item.metadata.get("names_files"):
            yield from [value] if isinstance(value, str) else value


def select(config: Config, reads: Iterable[str]) -> dict[str, Any]:
    """The keys `reads` of `config` in their sections, without those that are missing or null."""
    selected: dict[str, Any] = {}
    for name in reads:
        key = resolve_key(name, config)
        value: Any = config
        for part in key:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            continue
        if isinstance(value, Mapping):
            left_out = "preset" if key == ("model",) else None
            value = {name: item for name, item in value.items() if name != left_out}
        inner = selected
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1]] = value
    return selected


def resolve_key(name: str, config: Config) -> tuple[str, ...]:
    """Split "sources.questions.{evaluate.questions}" at its dots.

    Braces hold a key of the configuration, whose value takes their place.
    """
    head, brace, inner = name.partition("{")
    if not brace:
        return tuple(name.split("."))
    section, key = inner.rstrip("}").split(".")
    return (*head.rstrip(".").split("."), config[section][key])


def lasting(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """The values of a section that can change a result."""
    known = {item.name: item for item in fields(section)}
    decisive = values.get("keep") == "best" or values.get("patience") is not None
    kept = {}
    for key, value in values.items():
        if key not in known:
            kept[key] = value
            continue
        field, inner = known[key], section_type(known[key])
        match field.metadata["reruns"]:
            case Reruns.NEVER:
                pass
            case Reruns.IF_DECISIVE if not decisive:
                pass
            case _:
                kept[key] = lasting(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """("sft.learning_rate", 0.0003), … of a configuration or a part of it."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


@functools.cache
def code_fingerprint(*parts: str) -> str:
    """SHA-256 of the source files of some of nanoeuler's packages and modules.

    A rule whose result is a statement about code runs again when that code changes. A process keeps
    the hash of what it found first, which is the code that it runs.
    """
    root = Path(__file__).parents[1]
    files = [
        path
        for part in parts
        for path in (root / part, *(root / part).rglob("*"))
        if path.suffix in (".py", ".cu", ".cuh")
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


# ---- params: Snakemake compares one with that of the last run, unless it is a function of output,
# input, threads or resources, from which Snakemake can derive it


def compared(value: Any) -> Callable[[Any], Any]:
    """A param whose change makes its rule run again: a value, or a function of the wildcards."""
    return lambda wildcards: value(wildcards) if callable(value) else value


def not_compared(value: Any) -> Callable[[Any, Any], Any]:
    """A param that may change freely, such as a device: a value, or a function of the wildcards."""
    return lambda wildcards, output: value(wildcards) if callable(value) else value


def option(flag: str, files: Iterable[str]) -> list[str]:
    """The arguments that give `files` to a subcommand; none when there are no files."""
    return [flag, *files] if list(files) else []


def options(files: Mapping[str, str]) -> list[str]:
    """The arguments that give each of `files` to a subcommand, by the option of its name."""
    return [f"--{name}={file}" for name, file in files.items()]
