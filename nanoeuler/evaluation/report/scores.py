"""Rows of a table of scores: one evaluation a column, and last the baseline."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from nanoeuler.evaluation.comparison import asked, names_in
from nanoeuler.evaluation.report.formats import decimals, percent, short_count, significant
from nanoeuler.evaluation.report.gather import Json

Row = list[str]


def score_rows(evaluations: Sequence[Json], bigram: Mapping[str, float]) -> list[Row]:
    """Every score; an evaluation that lacks it has a dash, and so has a score without baseline."""
    return [
        *held_out_rows(evaluations, bigram),
        *answer_rows(evaluations),
        *task_rows(evaluations),
        *chat_rows(evaluations),
    ]


def row(title: str, values: Sequence[Any], show: Callable[[Any], str], baseline: str = "–") -> Row:
    return [title, *(show(value) if value else "–" for value in values), baseline]


def held_out_rows(evaluations: Sequence[Json], bigram: Mapping[str, float]) -> list[Row]:
    rows = []
    for source in names_in(evaluations, "held_out"):
        scores = [(evaluation.get("held_out") or {}).get(source) for evaluation in evaluations]
        baseline = remarked(decimals(bigram[source]), "bigram") if source in bigram else "–"
        title = f"bits per byte, {source}"
        rows.append(row(title, scores, lambda one: decimals(one["bits_per_byte"]), baseline))
    return rows


def answer_rows(evaluations: Sequence[Json]) -> list[Row]:
    """Exact answers to held-out questions; the baseline always gives the commonest answer."""
    answers = [evaluation.get("answers") for evaluation in evaluations]
    commonest = [each["commonest_answer"] for each in answers if each]
    if not commonest:
        return []
    baseline = remarked(percent(commonest[0]["score"]), f"always “{commonest[0]['answer']}”")
    if len({each["score"] for each in commonest}) > 1:
        baseline = "–"  # the questions differ, and with them the commonest answer
    title = f"exact answers of {asked(answers, 'questions')}"
    return [
        row(title, answers, with_error, baseline),
        row("replies to questions that stop", answers, lambda one: percent(one["stopped"])),
        row("tokens per reply", answers, mean_tokens),
    ]


def task_rows(evaluations: Sequence[Json]) -> list[Row]:
    """Every task's score with its standard error; the baseline picks at random."""
    rows = []
    for task in names_in(evaluations, "tasks"):
        scores = [(evaluation.get("tasks") or {}).get(task) for evaluation in evaluations]
        measured = [score for score in scores if score]
        title = remarked(task, f"{measured[0]['metric']}, {asked(scores, 'items')} items")
        baselines = {percent(score["baseline"]) for score in measured}
        baseline = remarked(baselines.pop(), "at random") if len(baselines) == 1 else "–"
        rows.append(row(title, scores, with_error, baseline))
        # Only some kinds of task have a perplexity, and a task's kind may have changed.
        perplexities = [(score or {}).get("perplexity") for score in scores]
        if any(perplexities):
            rows.append(row(f"{task}, perplexity", perplexities, perplexity))
    return rows


def chat_rows(evaluations: Sequence[Json]) -> list[Row]:
    """How replies to held-out instructions end and repeat themselves, and how many have the style
    that the preferences teach."""
    rows = []
    greedy = [evaluation.get("chat") for evaluation in evaluations]
    sampled = [chat and chat["sampled"] for chat in greedy]
    for kind, chats in (("replies", greedy), ("sampled replies", sampled)):
        if any(chats):
            title = f"{kind} to {asked(greedy, 'prompts')} instructions"
            rows += [
                row(f"{title} that stop", chats, lambda one: percent(one["stopped"])),
                row(f"{title}, tokens", chats, mean_tokens),
                row(
                    f"{title}, repeated runs of four words",
                    chats,
                    lambda one: percent(one["repetition"]),
                ),
            ]
    styles = [(evaluation.get("answers") or {}).get("style") for evaluation in evaluations]
    if any(styles):
        shares = [
            style and {"score": style["sampled"]["share"]} | style["sampled"] for style in styles
        ]
        rows.append(row("sampled replies in the preferred style", shares, with_error))
    return rows


def mean_tokens(replies: Json) -> str:
    return f"{replies['mean_reply_tokens']:.1f}"


def perplexity(score: Json) -> str:
    """Four digits; that of a model that knows nothing has nine before the point."""
    value = score["score"]
    return significant(value, 4) if value < 1e5 else short_count(value)


def with_error(score: Json) -> str:
    error = score.get("standard_error")
    return remarked(percent(score["score"]), "" if error is None else f"± {100 * error:.1f}")


def remarked(value: str, remark: str) -> str:
    """A cell with a remark in small type. A model card shows its text alone."""
    return Markup("{} <small>{}</small>").format(value, remark) if remark else value
