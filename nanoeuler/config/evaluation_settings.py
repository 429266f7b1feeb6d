"""The keys of the section evaluate: see settings.py."""

from typing import Annotated, Literal

from annotated_types import MinLen

from nanoeuler.storage.section import Name, Section, key, section

TaskKind = Literal[
    "hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "blimp", "lambada", None
]


@section
class Task(Section):
    """An entry of evaluate.tasks."""

    name: Name = key("a name under tasks in the sources file, or one of your own beside a url")
    url: str | None = key(
        "address or path of the task's file, folder or zip archive; null takes the sources file's",
        default=None,
        min_length=1,
    )
    kind: TaskKind = key(
        "layout and scoring of the file; null takes the sources file's, or the name", default=None
    )
    limit: int | None = key(
        "items that are asked, chosen by the seed and the same for every model; null asks all",
        default=None,
        ge=1,
    )


@section
class Evaluate(Section):
    """Measurements of every stage's model."""

    prompts: list[Annotated[str, MinLen(1)]] = key(
        "prompts whose replies are printed in the report; without any, it has the first words of "
        "held-out documents, and held-out instructions",
        default=[],
    )
    questions: str | None = key(
        "a name under questions in the sources file: held-out questions that are scored exactly; "
        "null asks none",
        default=None,
    )
    tasks: list[Task] = key(
        "multiple-choice and last-word tasks that are scored; an entry gives name, and url, kind "
        "and limit where they differ from the sources file",
        default=[],
    )
    chat_prompts: int = key(
        "held-out instructions that are answered, once greedily and once by sampling, to see how "
        "many replies stop, how long they are and how much they repeat",
        default=100,
        ge=0,
    )
    validation_tokens: int = key(
        "held-out tokens per source that bits per byte is measured on", default=1_000_000, ge=1
    )
    max_new_tokens: int = key("longest reply, in tokens", default=128, ge=1)
    temperature: float = key(
        "temperature of the samples in the report; 0 is greedy. Questions are always answered "
        "greedily",
        default=0.8,
        ge=0,
    )
    top_k: int = key("sample from the k likeliest tokens only; 0 means all", default=0, ge=0)
    top_p: float = key(
        "sample from the likeliest tokens only that together have this probability",
        default=0.95,
        gt=0,
        le=1,
    )
