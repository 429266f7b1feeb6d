"""Multiple-choice and last-word tasks."""

from pathlib import Path
from typing import Any, Literal

from nanoeuler.corpus.sources.data_sets import DataSets
from nanoeuler.corpus.sources.source import (
    Config,
    DataSet,
    Option,
    Place,
    Step,
    folder_of,
    without_address,
)
from nanoeuler.errors import UserError
from nanoeuler.storage.section import key, section


@section
class Entry(DataSet):
    """The items of a task."""

    kind: Literal[
        "hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "blimp", "lambada", None
    ] = key("layout and scoring of the file; null takes the name", default=None)
    members: str | None = key(
        "pattern of the files in a zip archive that are read; null takes every .jsonl file",
        default=None,
    )


def describe(config: Config, name: str) -> dict[str, Any]:
    from nanoeuler.corpus.tasks import describe_task  # loads an HTTP client

    return describe_task(name, config)


def prepare_task(config: Config, name: str, output: Path) -> None:
    from nanoeuler.corpus.tasks import prepare

    prepare(describe(config, name), output)


class Tasks(DataSets):
    """Tasks of `evaluate.tasks`."""

    name = title = "tasks"
    entries = dict[str, Entry]
    meaning = "multiple-choice and last-word tasks by name"
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
                    "name in evaluate.tasks or in the sources file, such as hellaswag",
                    str,
                ),
                Option("--output", "DIR", "folder to write: items.jsonl, manifest.json"),
            ),
            values=lambda config, item: {
                "name": item,
                "output": f"{folder_of(config, 'tasks')}/{item}",
            },
            outputs=lambda config, item: {
                "manifest": f"{folder_of(config, 'tasks')}/{item}/manifest.json"
            },
            sections="evaluate.tasks or sources.tasks",
            entry=lambda config, item: without_address(describe(config, item)),
        ),
    )

    def names(self, config: Config) -> list[str]:
        return [task["name"] for task in config.get("evaluate", {}).get("tasks", [])]

    def entry(self, config: Config, name: str) -> dict[str, Any]:
        return describe(config, name)

    def check(self, config: Config, place: Place) -> None:
        tasks, names = config["evaluate"]["tasks"], set()
        for number, task in enumerate(tasks):
            key = ("evaluate", "tasks", number)
            if task["name"] in names:
                place.refuse(
                    key,
                    f"is the second one named {task['name']}; give it another name, and its kind",
                )
            names.add(task["name"])
            try:
                describe(
                    {"evaluate": {"tasks": [task]}, "sources": config["sources"]}, task["name"]
                )
            except UserError as error:
                raise UserError(f"{place.where(key)}: evaluate.tasks: {error}") from error


SOURCE = Tasks()
