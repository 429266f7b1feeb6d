"""Data sets that a run names: by a name in the sources file, or by the path of a file.

Instructions and preferences are tuned on; models are measured on questions and tasks.
"""

import contextlib
import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from nanoeuler.corpus.addresses import file_bytes, resolve
from nanoeuler.corpus.sources.source import (
    Config,
    DataSet,
    File,
    Files,
    Option,
    Place,
    Source,
    Step,
    find_section,
    folder_of,
    without_address,
)
from nanoeuler.corpus.task_layouts import ASKED, LAYOUTS, Kind
from nanoeuler.errors import LONGEST_PATH, UserError, brief
from nanoeuler.storage.integrity import kept_sha256
from nanoeuler.storage.section import Section, key, optional, section

VALIDATION_SHARE = 0.02
"""Share of the records that is held out, unless the configuration says otherwise."""
NAME = Option("--name", None, "name in the sources file", str)
SPLIT_FOLDER = Option(
    "--output", "DIR", "folder to write: train.jsonl, validation.jsonl, manifest.json"
)


class DataSets(Source):
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

    def content(self, config: Config, name: str) -> dict[str, Any]:
        """The hashes of the files of a data set that lie on this machine: one of your own is read
        again when you have changed it. Those of a sample are written by the run itself."""
        if config.get("sample") and name in self.listed(config):
            return {}
        entry = self.entry(config, name)
        found = []
        for each in entry.get("mixture") or [entry]:
            with contextlib.suppress(UserError):  # an address that fetching will refuse
                place = resolve(each.get("url", ""))
                if isinstance(place, Path) and place.is_file() and os.access(place, os.R_OK):
                    found.append(kept_sha256(place))
        return {"content": found} if found else {}

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
                entry=lambda config, item: self.content(config, config[self.stage][self.name]),
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


@section
class Member(DataSet):
    """One of the files that a mixture of instructions is made of."""

    weight: float = key(
        "how often each training record is seen in an epoch; 0.5 takes half of them, 2 each twice",
        default=1,
        gt=0,
    )


@section
class InstructionsEntry(DataSet):
    """Instructions: a file of them, or a mixture of several."""

    url: str = optional(
        "https://, http://, hf://datasets/OWNER/NAME/PATH, file:// or a local path", min_length=1
    )
    mixture: list[Member] = optional("the files that are mixed", min_length=1)
    format: Literal["alpaca"] = key("shape of the records", default="alpaca")


class Instructions(TuningData):
    """Data of `sft`."""

    name = title = "instructions"
    entries = dict[str, InstructionsEntry]
    meaning = "instruction data sets by name; each has a url, or is a mixture of several"
    stage = "sft"
    shapes = "Alpaca's, Dolly's or GSM8K's shape, or messages"


class Preferences(TuningData):
    """Data of `dpo`."""

    name = title = "preferences"
    entries = dict[str, DataSet]
    meaning = "data sets of preference pairs by name"
    stage = "dpo"
    shapes = "JSON, JSON lines or parquet, with two replies to each prompt"
    megabytes = 2000


class Problems(TuningData):
    """Data of `rl`."""

    name = title = "problems"
    entries = dict[str, DataSet]
    meaning = "data sets of problems with checkable answers by name"
    stage = "rl"
    shapes = "JSON, JSON lines or parquet, with a question and its answer"

    def check(self, config: Config, place: Place) -> None:
        super().check(config, place)
        held_out = [QUESTIONS.entry(config, name)["url"] for name in QUESTIONS.names(config)]
        if any(self.entry(config, name)["url"] in held_out for name in self.names(config)):
            place.refuse(
                (self.stage, self.name),
                "is the file of evaluate.questions, which are held out; take another, or set "
                "evaluate.questions: null",
            )


@section
class QuestionsEntry(File):
    """Held-out questions with exact answers."""

    licence: str = optional("licence of the questions")


def prepare_questions(config: Config, name: str, output: Path) -> None:
    from nanoeuler.corpus.tasks import prepare_questions as prepare

    prepare(name, find_section(config, "sources.questions"), output)


class Questions(DataSets):
    """Questions of `evaluate.questions`."""

    name = title = "questions"
    entries = dict[str, QuestionsEntry]
    meaning = "held-out questions with exact answers by name"
    steps = (
        Step(
            rule="fetch_questions",
            command="questions",
            message="Fetching the held-out questions {wildcards.item}",
            run=prepare_questions,
            options=(NAME, Option("--output", "FILE", "file of JSON lines to write")),
            values=lambda config, item: {"name": item},
            outputs=lambda config, item: {
                "output": f"{folder_of(config, 'questions')}/{item}.jsonl"
            },
            sections="sources.questions",
            reads=("evaluate.questions", "sources.questions.{evaluate.questions}"),
            entry=lambda config, item: QUESTIONS.content(config, item),
            megabytes=250,
        ),
    )

    def names(self, config: Config) -> list[str]:
        name = config.get("evaluate", {}).get("questions")
        return [name] if name else []

    def check(self, config: Config, place: Place) -> None:
        known = self.listed(config)
        for name in self.names(config):
            if name not in known:
                place.refuse(
                    ("evaluate", "questions"),
                    f"is {brief(name)}, which the sources file does not have "
                    f"(there: {', '.join(known) or 'none'}); correct it or set null",
                )


@section
class Asked(Section):
    """How the items of a task are asked."""

    kind: Kind | None = key(
        "layout and scoring of the file; null takes the sources file's, or the name", default=None
    )
    shots: int | None = key(
        "other items of the task that stand, answered, before each; null takes the sources file's, "
        "or 0",
        default=None,
        ge=0,
    )
    delimiter: str | None = key(
        'what is put behind each context, before the space and the choice, such as "\\nAnswer:"; '
        "null takes the sources file's, or nothing",
        default=None,
    )
    baseline: float | None = key(
        "score of guessing; null takes the sources file's, or the mean of 1 / choices",
        default=None,
        ge=0,
        lt=1,
    )


@section
class TaskEntry(DataSet, Asked):
    """The items of a task."""

    group: str | None = key(
        "name that stands for all tasks with this group; the mean of their scores, centred by "
        "their baselines, is the group's",
        default=None,
        min_length=1,
    )
    members: str | None = key(
        "pattern of the files in a zip archive that are read; null takes every .jsonl file",
        default=None,
    )


def describe(config: Config, name: str) -> dict[str, Any]:
    """Return the entry of the task `name` in evaluate.tasks, completed from the sources file.

    Raises `UserError` for a task that neither describes.
    """
    own, listed = TASKS.chosen(config).get(name, {}), TASKS.listed(config)
    kind = own.get("kind") or listed.get(name, {}).get("kind") or name
    given = {key: own[key] for key in ASKED if own.get(key) is not None}
    if own.get("url"):
        entry = {"url": own["url"], "kind": kind, "licence": "your own file", **given}
    elif name in listed:
        entry = {**listed[name], "kind": kind, **given}
    else:
        there = dict.fromkeys(entry.get("group") or task for task, entry in listed.items())
        raise UserError(
            f"{name}: no name under tasks in the sources file (there: "
            f"{', '.join(there) or 'none'}); correct it, or give it a url"
        )
    if entry["kind"] not in LAYOUTS:
        raise UserError(
            f"{name}: {entry['kind']} is no kind of task; give kind as one of {', '.join(LAYOUTS)}"
        )
    if entry["kind"].startswith("chat") and entry.get("shots"):
        raise UserError(
            f"{name}: has shots, but {entry['kind']} is asked through the model's template, as it "
            "was tuned; take them out"
        )
    if entry.get("group") and entry.get("baseline") is None:
        raise UserError(
            f"{name}: has no baseline, by which the scores of the group {entry['group']} are "
            "centred; give the score of guessing"
        )
    return {"name": name, **entry}


def prepare_task(config: Config, name: str, output: Path) -> None:
    from nanoeuler.corpus.tasks import prepare  # loads an HTTP client

    tasks = TASKS.members(config, name)
    for task in tasks:
        prepare(describe(config, task), output if tasks == [name] else output / task)


class Tasks(DataSets):
    """Tasks of `evaluate.tasks`."""

    name = title = "tasks"
    entries = dict[str, TaskEntry]
    meaning = "tasks by name"
    steps = (
        Step(
            rule="fetch_task",
            command="task",
            message="Fetching and checking the task {wildcards.item}",
            run=prepare_task,
            options=(
                Option(
                    "--name",
                    None,
                    "name in evaluate.tasks or in the sources file, such as hellaswag, or of a "
                    "group, such as core",
                    str,
                ),
                Option(
                    "--output",
                    "DIR",
                    "folder to write: items.jsonl, manifest.json; of a group, a folder for each",
                ),
            ),
            values=lambda config, item: {
                "name": item,
                "output": f"{folder_of(config, 'tasks')}/{item}",
            },
            outputs=lambda config, item: {
                "manifest": f"{folder_of(config, 'tasks')}/{item}/manifest.json"
            },
            sections="evaluate.tasks or sources.tasks",
            entry=lambda config, item: {
                **without_address(describe(config, item)),
                **TASKS.content(config, item),
            },
        ),
    )

    def names(self, config: Config) -> list[str]:
        return list(self.chosen(config))

    def chosen(self, config: Config) -> dict[str, dict[str, Any]]:
        """The tasks of evaluate.tasks, each with its entry there; a group's entry is that of
        all."""
        entries = config.get("evaluate", {}).get("tasks", [])
        return {task: entry for entry in entries for task in self.members(config, entry["name"])}

    def members(self, config: Config, name: str) -> list[str]:
        """The tasks that a name stands for: those of a group, or the one."""
        listed = self.listed(config).items()
        return [task for task, entry in listed if entry.get("group") == name] or [name]

    def entry(self, config: Config, name: str) -> dict[str, Any]:
        return describe(config, name)

    def check(self, config: Config, place: Place) -> None:
        names = set()
        for number, entry in enumerate(config["evaluate"]["tasks"]):
            key = ("evaluate", "tasks", number)
            alone = {"evaluate": {"tasks": [entry]}, "sources": config["sources"]}
            for name in self.names(alone):
                if name in names:
                    place.refuse(
                        key, f"is the second one named {name}; give it another name, and its kind"
                    )
                names.add(name)
                try:
                    describe(alone, name)
                except UserError as error:
                    raise UserError(f"{place.where(key)}: evaluate.tasks: {error}") from error


QUESTIONS: Questions = Questions()
TASKS: Tasks = Tasks()
DECLARED = (Instructions(), Preferences(), Problems(), QUESTIONS, TASKS)
