"""The scores of several models, in one table: for reports, model cards, `compare` and `runs`.

nanoeuler compare results/demo/evaluation/pretrain.json results/demo/evaluation/sft.json
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nanoeuler.evaluation.formats import (
    NARROW,
    decimals,
    duration,
    joules,
    markdown_cell,
    percent,
    short_count,
    significant,
)
from nanoeuler.storage.integrity import Origin, read_sealed
from nanoeuler.system.energy import ENERGIES

Json = Mapping[str, Any]
Row = list[str]
EVALUATION = Origin("`nanoeuler evaluate`", "delete it, or let `nanoeuler evaluate` write it again")
CONTROLS = {
    "context_swapped": "another item's context",
    "answers_shuffled": "answers shuffled",
    "without_calculator": "without the calculator",
}
"""Name of a control of a task's score → what reports call it. See `tasks.py`."""


@dataclass(frozen=True)
class Line:
    """One score of several models, by model; None where a model lacks it."""

    name: str
    values: Sequence[float | None]
    show: Callable[[float], str] = percent
    errors: Sequence[float | None] = ()  # standard errors
    remark: str = ""  # what was asked
    baselines: Mapping[str, float] = field(default_factory=dict)  # what it is → its score
    key: str = ""  # in `nanoeuler runs`; none where the score tells how, and not how well
    in_group: bool = False  # a part of another line's score

    @property
    def measured(self) -> Iterator[tuple[float | None, float | None]]:
        """Score and standard error, by model."""
        return zip(self.values, self.errors or [None] * len(self.values), strict=True)

    @property
    def row(self) -> Row:
        """Name, scores, and the first baseline; a dash for what is not there."""
        cells = [
            "–" if value is None else remarked(self.show(value), plus_minus(error))
            for value, error in self.measured
        ]
        baseline = "–"
        for name, value in [*self.baselines.items()][:1]:
            baseline = remarked(self.show(value), name)
        return [remarked(self.name, self.remark), *cells, baseline]


def remarked(text: str, remark: str) -> str:
    """A cell with a remark in small type. Markdown shows its text alone."""
    return Markup("{} <small>{}</small>").format(text, remark) if remark else text


def plus_minus(error: float | None) -> str:
    return "" if error is None else f"± {100 * error:.1f}"


def score_rows(evaluations: Sequence[Json], bigram: Mapping[str, float]) -> list[Row]:
    return [line.row for line in score_lines(evaluations, bigram)]


def score_lines(evaluations: Sequence[Json], bigram: Mapping[str, float]) -> Iterator[Line]:
    """Every score; `bigram` has the bits per byte of a bigram model by source."""
    yield from held_out_lines(evaluations, bigram)
    yield from answer_lines(evaluations)
    yield from task_lines(evaluations)
    yield from chat_lines(evaluations)
    yield from memorised_lines(evaluations)


def held_out_lines(evaluations: Sequence[Json], bigram: Mapping[str, float]) -> Iterator[Line]:
    for source in names_in(evaluations, "held_out"):
        bits = at(evaluations, "held_out", source, "bits_per_byte")
        baseline = {"bigram": bigram[source]} if source in bigram else {}
        key = f"bits_per_byte.{source}"
        yield Line(f"bits per byte, {source}", bits, decimals, baselines=baseline, key=key)


def head_lines(evaluations: Sequence[Json]) -> Iterator[Line]:
    """How often each prediction head ranks the right token first."""
    for source in names_in(evaluations, "held_out"):
        accuracies = [each or [] for each in at(evaluations, "held_out", source, "head_accuracy")]
        for head in range(max(map(len, accuracies))):
            title = "next token" if head == 0 else f"token {head + 1} ahead"
            shares = [each[head] if head < len(each) else None for each in accuracies]
            yield Line(f"{title} right, {source}", shares)


def answer_lines(evaluations: Sequence[Json]) -> Iterator[Line]:
    """Exact answers to held-out questions; the baseline always gives the commonest answer, which
    differs where the questions do."""
    if not any(at(evaluations, "answers")):
        return
    commonest = at(evaluations, "answers", "commonest_answer")
    baselines: dict[str, float] = {}
    if (score := shared(at(commonest, "score"))) is not None:
        answer = next(each["answer"] for each in commonest if each)
        baselines[f"always “{answer}”"] = score
        by_kind = shared(at(evaluations, "answers", "commonest_answer_of_kind", "score"))
        if by_kind is not None:
            baselines["commonest answer to each kind"] = by_kind
    yield Line(
        "exact answers",
        at(evaluations, "answers", "score"),
        errors=at(evaluations, "answers", "standard_error"),
        remark=f"of {asked(at(evaluations, 'answers', 'questions'))}",
        baselines=baselines,
        key="answers",
    )
    yield from reply_lines("replies to questions", at(evaluations, "answers"))


def task_lines(evaluations: Sequence[Json]) -> Iterator[Line]:
    """Every task; the baseline picks at random, or is declared. Groups have their controls."""
    for task in names_in(evaluations, "tasks"):
        scores = at(evaluations, "tasks", task)
        first = next(score for score in scores if score)
        baseline, chance = shared(at(scores, "baseline")), shared(at(scores, "chance"))
        named = {"declared": baseline, "at random": chance}
        if chance is None or chance == baseline:
            named = {"at random": baseline}
        in_group = bool(first.get("group"))
        told = [first["metric"], f"{asked(at(scores, 'items'))} items"]
        if first.get("shots"):
            told.append(f"{first['shots']} shots")
        if any(at(scores, "truncated")):
            told.append(f"{asked(at(scores, 'truncated'))} cut")
        if "tasks" in first:
            told.append(f"{asked([score and len(score['tasks']) for score in scores])} tasks")
        yield Line(
            task,
            at(scores, "score"),
            errors=at(scores, "standard_error"),
            remark=", ".join(told),
            baselines={name: value for name, value in named.items() if value is not None},
            key=f"tasks.{task}",
            in_group=in_group,
        )
        for control, title in CONTROLS.items():
            found = at(scores, "controls", control)
            if any(found) and (control == "without_calculator" or not in_group):
                errors = at(found, "standard_error")
                yield Line(f"{task}, {title}", at(found, "score"), errors=errors)
        # Only some kinds of task have a perplexity, and a task's kind may have changed.
        perplexities = at(scores, "perplexity", "score")
        if any(perplexities):
            yield Line(f"{task}, perplexity", perplexities, perplexity)


def chat_lines(evaluations: Sequence[Json]) -> Iterator[Line]:
    """Replies to held-out instructions, and how many have the style that preferences teach."""
    to = f"to {asked(at(evaluations, 'chat', 'prompts'))} instructions"
    yield from reply_lines(f"replies {to}", at(evaluations, "chat"))
    yield from reply_lines(f"sampled replies {to}", at(evaluations, "chat", "sampled"))
    styles = at(evaluations, "answers", "style", "sampled")
    if any(styles):
        shares, errors = at(styles, "share"), at(styles, "standard_error")
        yield Line("sampled replies in the preferred style", shares, errors=errors)


def memorised_lines(evaluations: Sequence[Json]) -> Iterator[Line]:
    """How much of the replies is copied from the text for training."""
    found = at(evaluations, "memorised")
    if any(found):
        least = asked(at(found, "least_tokens"))
        shares = at(found, "share")
        yield Line(f"replies' tokens in runs of {least} copied from the text", shares)


def reply_lines(title: str, replies: Sequence[Json | None]) -> Iterator[Line]:
    """How replies end and repeat themselves."""
    if any(replies):
        yield Line(f"{title} that stop", at(replies, "stopped"))
        yield Line(f"{title}, tokens", at(replies, "mean_reply_tokens"), lambda one: f"{one:.1f}")
        repetition = at(replies, "repetition")
        yield Line(f"{title}, repeated 4-grams", repetition)


def at(values: Sequence[Any], *path: str) -> list[Any]:
    """The value at `path` of each of the objects; None where it ends before."""
    for key in path:
        values = [value.get(key) if value else None for value in values]
    return list(values)


def without(values: Json, key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def names_in(evaluations: Sequence[Json], section: str) -> list[str]:
    """The keys of a section over all evaluations, in order of appearance."""
    return list(dict.fromkeys(name for each in at(evaluations, section) for name in each or ()))


def shared(values: Sequence[Any]) -> Any:
    """The one value of all that have any; None where they differ."""
    found = {value for value in values if value is not None}
    return found.pop() if len(found) == 1 else None


def asked(numbers: Sequence[int | None]) -> str:
    """The number of things that were asked; where models differ, the number for each."""
    told = ["–" if number is None else f"{number:,}" for number in numbers]
    different = set(told) - {"–"}
    return different.pop() if len(different) == 1 else " / ".join(told)


def perplexity(value: float) -> str:
    """Four digits; that of a model that knows nothing has nine before the point."""
    return significant(value, 4) if value < 1e5 else short_count(value)


def named(paths: Iterable[Path]) -> dict[str, Path]:
    """Evaluations by the names of their files; where two files have one name, by the names of their
    runs, too; and where runs have one name, by their whole paths."""
    files = list(dict.fromkeys(path.absolute() for path in paths))
    for name in (
        lambda file: file.stem,
        lambda file: f"{file.parent.parent.name}/{file.stem}",
        str,
    ):
        if len({name(file) for file in files}) == len(files):
            break
    return {name(file): file for file in files}


def read_evaluations(paths: Mapping[str, Path]) -> dict[str, Json]:
    mend = "give the JSON files that `nanoeuler evaluate` writes"
    return {
        name: read_sealed(path, EVALUATION, "an evaluation", "held_out", mend)
        for name, path in paths.items()
    }


def compare(evaluations: Mapping[str, Json], costs: Mapping[str, Json]) -> str:
    """A Markdown table: a column for each evaluation, in their order, and one for baselines, if
    there are any. `costs`: seconds and energy of training, by evaluation, as far as they are known.
    """
    measured = list(evaluations.values())
    lines = [*score_lines(measured, {}), *head_lines(measured)]
    taken = [costs.get(name) for name in evaluations]
    units = {"seconds": ("time", duration)} | {
        kind: (f"{device} energy", joules) for kind, device in ENERGIES.items()
    }
    for kind, (title, show) in units.items():
        if any(at(taken, kind)):
            lines.append(Line(f"training, {title}", at(taken, kind), show))
    rows = [["", *evaluations, "baseline"], *(list(map(plain, line.row)) for line in lines)]
    if all(baseline == "–" for *_, baseline in rows[1:]):
        rows = [row[:-1] for row in rows]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "|".join(["-" * (first + 2), *("-" * (width + 1) + ":" for width in others)])
    table = []
    for title, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        table.append(f"| {' | '.join([title.ljust(first), *aligned])} |")
    return "\n".join([table[0], f"|{rule}|", *table[1:]])


def plain(cell: str) -> str:
    return markdown_cell(cell).replace(NARROW, " ")


def scores(evaluations: Mapping[str, Json], costs: Mapping[str, Json]) -> dict[str, dict[str, Any]]:
    """The scores of each evaluation, for programs."""
    return {
        name: {
            **{key: each.get(key) for key in ("stage", "parameters", "held_out")},
            "training": costs.get(name, {}),
            **replies_and_tasks(each),
        }
        for name, each in evaluations.items()
    }


def replies_and_tasks(evaluation: Json) -> dict[str, Any]:
    """Scores without single replies and groups of items."""
    answers, tasks = evaluation.get("answers"), evaluation.get("tasks") or {}
    return {
        "tasks": {name: without(score, "groups") for name, score in tasks.items()},
        "chat": evaluation.get("chat"),
        "answers": without(answers, "replies") if answers else None,
    }
