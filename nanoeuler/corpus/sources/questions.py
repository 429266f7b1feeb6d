"""Held-out questions with exact answers."""

from pathlib import Path

from nanoeuler.corpus.sources.data_sets import NAME, DataSets
from nanoeuler.corpus.sources.source import (
    Config,
    File,
    Option,
    Place,
    Step,
    find_section,
    folder_of,
)
from nanoeuler.errors import brief
from nanoeuler.storage.section import key, section


@section
class Entry(File):
    """Held-out questions with exact answers."""

    licence: str = key("licence of the questions", optional=True)


def prepare_questions(config: Config, name: str, output: Path) -> None:
    from nanoeuler.corpus.questions import prepare

    prepare(name, find_section(config, "sources.questions"), output)


class Questions(DataSets):
    """Questions of `evaluate.questions`."""

    name = title = "questions"
    entries = dict[str, Entry]
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


SOURCE = Questions()
