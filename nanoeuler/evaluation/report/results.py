"""Scores of every stage, samples, replies to questions, and the accuracy of the heads."""

import math
import statistics
from collections.abc import Mapping

from markupsafe import Markup

from nanoeuler.config.stages import PRETRAIN, is_baseline, result_of
from nanoeuler.evaluation.formats import percent, stage_colour, stage_name, with_commas
from nanoeuler.evaluation.report.charts import Bar, bars
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.evaluation.scores import head_lines, names_in, plus_minus, score_lines, score_rows

SHOWN_REPLIES = 6
"""The number of right replies that are shown, and that of wrong ones."""


def scores(run: Run) -> Markup:
    """Bars and a table with one column per stage."""
    evaluations = list(run.evaluations.values())
    if not evaluations:
        return Markup()
    held_out = [
        (evaluation["settings"]["validation_tokens"], scores["tokens"] < scores["of_tokens"])
        for evaluation in evaluations
        for scores in (evaluation.get("held_out") or {}).values()
    ]
    answers = list(run.evaluated("answers").values())
    return render(
        "scores.html",
        figures=comparisons(run),
        columns=["", *map(stage_name, run.evaluations), "baseline"],
        rows=score_rows(evaluations, run.bigram),
        windows=sorted({evaluation["window"] for evaluation in evaluations}),
        limit=max((limit for limit, reached in held_out if reached), default=None),
        commonest=answers[-1]["commonest_answer"] if answers else None,
        untuned=PRETRAIN.name in run.evaluated("answers"),
        tasks=bool(run.evaluated("tasks")),
    )


def comparisons(run: Run) -> list[Markup]:
    """Bars: each result beside what it has to beat. A model that has read no running text is shown
    only among the answers."""
    figures = []
    for line in score_lines(list(run.evaluations.values()), run.bigram):
        if not line.key or line.in_group:
            continue
        entries = [Bar(name, value, line.show(value)) for name, value in line.baselines.items()]
        for stage, (value, error) in zip(run.evaluations, line.measured, strict=True):
            if value is not None and (not is_baseline(stage) or line.key == "answers"):
                shown = f"{line.show(value)} {plus_minus(error)}".strip()
                entries.append(Bar(stage_name(stage), value, shown, stage_colour(stage), error))
        if line.key.startswith("bits_per_byte"):
            figures.append(bars(line.name, "less is better", entries))
        else:
            figures.append(bars(line.name, f"{line.remark}, more is better", entries, maximum=1.0))
    return figures


def samples(run: Run) -> Markup:
    """Replies of each stage to the same prompts."""
    named = {
        stage_name(name): (stage_colour(name), evaluation)
        for name, evaluation in run.evaluations.items()
    }
    cards = sample_cards(named)
    if not cards:
        return Markup()
    settings = next(iter(run.evaluations.values())).get("settings", {})
    return render("samples.html", cards=cards, settings=settings)


def sample_cards(named: Mapping[str, tuple[int, Json]]) -> dict[str, dict[str, tuple[int, Json]]]:
    """Prompt → model → (colour, sample), given the colour and the evaluation of each model."""
    cards: dict[str, dict[str, tuple[int, Json]]] = {}
    for name, (colour, evaluation) in named.items():
        for sample in evaluation.get("samples") or []:
            cards.setdefault(sample["prompt"], {})[name] = (colour, sample)
    return cards


def reading(run: Run) -> Markup:
    """Some held-out text, coloured by what each token cost each stage that has read text."""
    texts: dict[str, dict[str, Json]] = {}
    for name, evaluation in run.readers.items():
        for source, read in ((evaluation.get("reading") or {}).get("texts") or {}).items():
            costs = list(zip(read["tokens"], read["bits"], strict=False))
            if costs:
                texts.setdefault(source, {})[stage_name(name)] = {
                    "colour": stage_colour(name),
                    "mean": statistics.fmean(bits for _, bits in costs),
                    "tokens": [(token, bits, cost_level(bits)) for token, bits in costs],
                }
    if not texts:
        return Markup()
    size = run.config.get("tokenizer", {}).get("vocab_size")
    return render("reading.html", texts=texts, start=math.log2(size) if size else None)


def cost_level(bits: float) -> int:
    """The shade of a token: its bits from 0 to 8. What is no number is dear."""
    return min(8, max(0, round(bits))) if math.isfinite(bits) else 8


def questions(run: Run) -> Markup:
    """Scores per kind of question, and some replies, right and wrong."""
    answers = run.evaluated("answers")
    if not answers:
        return Markup()
    by_kind = []
    for kind in names_in(list(answers.values()), "kinds"):
        scores = [each["kinds"].get(kind, {}) for each in answers.values()]
        asked = next(score["questions"] for score in scores if score)
        shares = [percent(score.get("score"), 0) for score in scores]
        by_kind.append([kind, with_commas(asked), *shares])
    main = result_of(answers)
    replies = answers[main]["replies"]
    right = [reply for reply in replies if reply["correct"]]
    wrong = [reply for reply in replies if not reply["correct"]]
    return render(
        "questions.html",
        columns=["kind of question", "questions", *map(stage_name, answers)],
        by_kind=by_kind,
        main=main,
        replies=right[:SHOWN_REPLIES] + wrong[:SHOWN_REPLIES],
        first_line=first_line,
    )


def first_line(text: str, longest: int = 120) -> str:
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= longest else line[:longest] + "…"


def heads(run: Run) -> Markup:
    """How often each prediction head ranks the right token first; nothing with one head."""
    lines = list(head_lines(list(run.readers.values())))
    sources = names_in(list(run.readers.values()), "held_out")
    if len(lines) <= len(sources):
        return Markup()
    columns = ["", *map(stage_name, run.readers)]
    return render("heads.html", columns=columns, rows=[line.row[:-1] for line in lines])
