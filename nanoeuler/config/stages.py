"""What each stage reads of the configuration: what it is handed, and the part of it that makes it run again."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import nanoeuler
from nanoeuler.config.section import Section, section_type
from nanoeuler.config.settings import Configuration
from nanoeuler.config.sources import Sources
from nanoeuler.config.yaml_file import Key
from nanoeuler.files import canonical_json

Config = Mapping[str, Any]


class Stage(NamedTuple):
    """`revision` is raised when a stage's code changes what it writes; `reads` are the keys, {…} standing for another key's value."""

    revision: int
    reads: tuple[str, ...]


WHOLE_RUN = ("run", "seed", "device", "max_hours", "data_dir", "results_dir")
WHOLE_RUN += (
    "sample",
    "corpus",
    "tokenizer",
    "model",
    "pretrain",
    "sft",
    "dpo",
    "evaluate",
    "sources",
)

BUILD_CORPUS = (
    "corpus.name",
    "corpus.sources",
    "corpus.validation_share",
    "corpus.deduplicate",
    "corpus.decontaminate",
)
BUILD_CORPUS += ("sources.gutenberg.licence", "sources.fineweb.licence")

STAGES = {
    "plan": Stage(1, WHOLE_RUN),
    "write_sample": Stage(2, ("sample",)),
    "fetch_book": Stage(
        1,
        (
            "sources.gutenberg.collection",
            "sources.gutenberg.mirror",
            "sources.gutenberg.delay_seconds",
        ),
    ),
    "clean_book": Stage(1, ()),
    "extract_fineweb": Stage(
        2,
        (
            "corpus.fineweb",
            "sources.fineweb.collection",
            "sources.fineweb.revision",
            "sources.fineweb.shards",
        ),
    ),
    "fetch_instructions": Stage(
        1, ("sft.instructions", "sft.validation_share", "sources.instructions.{sft.instructions}")
    ),
    "fetch_preferences": Stage(
        1, ("dpo.preferences", "dpo.validation_share", "sources.preferences.{dpo.preferences}")
    ),
    "fetch_questions": Stage(2, ("evaluate.questions", "sources.questions.{evaluate.questions}")),
    "fetch_task": Stage(1, ("evaluate.tasks", "sources.tasks")),
    "build_corpus": Stage(4, BUILD_CORPUS),
    "learn_bpe": Stage(1, ("tokenizer",)),
    "tokenize": Stage(1, ("tokenizer.vocab_size",)),
    "check_gradients": Stage(1, ()),
    "pretrain": Stage(1, ("seed", "model", "pretrain")),
    "sft": Stage(2, ("seed", "model", "sft")),
    "dpo": Stage(1, ("seed", "model", "dpo")),
    "evaluate_model": Stage(4, ("seed", "model.context", "pretrain.document_mask", "evaluate")),
    "write_report": Stage(2, WHOLE_RUN),
}


def stage_config(config: Config, stage: str) -> str:
    """What the rule of `stage` passes as `--config`: canonical JSON of the keys that it reads, and its revision.

    The preset's name is left out, so that a preset and the same fields written out are one model.
    """
    return canonical_json(
        select(config, STAGES[stage].reads) | {"revision": STAGES[stage].revision}
    )


def stage_identity(config: Config, stage: str) -> str:
    """The part of `stage_config` that can change the stage's result: when it differs from last time, the stage runs again.

    Left out are device, folders, intervals, logging, addresses of the same files, and whatever else the schema marks `x-reruns`.
    """
    selected = select(config, STAGES[stage].reads)
    sources = lasting(selected.pop("sources", {}), Sources)
    revision = STAGES[stage].revision
    return canonical_json(
        lasting(selected, Configuration) | {"sources": sources, "revision": revision}
    )


def select(config: Config, reads: Iterable[str]) -> dict[str, Any]:
    """The keys `reads` of `config`, in the nesting that they have there; those that it does not have are left out."""
    selected: dict[str, Any] = {}
    for name in reads:
        key = resolve_key(name, config)
        value: Any = config
        for part in key:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            continue
        inner = selected
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1]] = (
            {name: item for name, item in value.items() if key != ("model",) or name != "preset"}
            if isinstance(value, Mapping)
            else value
        )
    return selected


def resolve_key(name: str, config: Config) -> Key:
    """ "sources.questions.{evaluate.questions}" as a key: the braces hold the key whose value is that part's name."""
    head, brace, inner = name.partition("{")
    if not brace:
        return tuple(name.split("."))
    section, key = inner.rstrip("}").split(".")
    return (*head.rstrip(".").split("."), config[section][key])


def lasting(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """The values of a section without those that cannot change a result."""
    known = {field.name: field for field in fields(section)}
    kept = {}
    for key, value in values.items():
        reruns = known[key].metadata["reruns"] if key in known else True
        if reruns is False or (reruns == "best" and values.get("keep") != "best"):
            continue
        inner = section_type(known[key]) if key in known else None
        kept[key] = lasting(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def code_fingerprint(*packages: str) -> str:
    """SHA-256 over the source files of some of nanoeuler's packages, for the rule whose result is a statement about code."""
    root = Path(nanoeuler.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(
        path
        for package in packages
        for path in (root / package).rglob("*")
        if path.suffix in (".py", ".cu", ".cuh")
    ):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
