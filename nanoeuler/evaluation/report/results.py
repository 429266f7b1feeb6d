"""What the models can do: scores of every stage side by side, prediction heads, samples, and replies to questions."""

from typing import Any

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.headline import readers, stage_colour, stage_name
from nanoeuler.evaluation.report.markup import Markup, count, element, join, percent, section, table
from nanoeuler.evaluation.report.scores import score_rows

SHOWN_REPLIES = 6
"""Of the right and of the wrong ones each."""


def evaluation_table(run: Run) -> Markup:
    """One column per stage, and one for what a reply or a prediction without a model gets."""
    evaluations = run.evaluations
    if not evaluations:
        return Markup()
    rows = score_rows(list(evaluations.values()), run.bigram)
    windows = {evaluation["window"] for evaluation in evaluations.values()}
    return join(
        [
            table(["", *map(stage_name, evaluations), "baseline"], rows),
            element("p", how_measured(run, windows), class_="note"),
        ]
    )


def how_measured(run: Run, windows: set[int]) -> str:
    """The footnote of the table: how the numbers came about."""
    parts = [
        f"Bits per byte: every held-out token is predicted once, in windows of {' or '.join(map(str, sorted(windows)))} tokens that do not overlap.",
    ]
    sources = [
        (evaluation, scores)
        for evaluation in run.evaluations.values()
        for scores in evaluation.get("held_out", {}).values()
    ]
    if limits := [
        evaluation["settings"]["validation_tokens"]
        for evaluation, scores in sources
        if scores["tokens"] < scores["of_tokens"]
    ]:
        parts.append(
            f"At most {count(max(limits))} tokens of a source are read, spread evenly over it."
        )
    if len(windows) > 1:
        parts.append(
            "A longer window sees more of the text before a token, which favours its stage a little."
        )
    answers = [
        evaluation["answers"]
        for evaluation in run.evaluations.values()
        if evaluation.get("answers")
    ]
    if answers:
        common = answers[-1]["commonest_answer"]
        parts.append(
            "An answer counts when the first line of the greedy reply equals it, apart from capitals and a full stop; ± is one standard error. "
            f"The baseline always gives the commonest answer of {common['from']}."
        )
        if run.evaluations.get("pretrain", {}).get("answers"):
            parts.append(
                "The pretrained model is asked in the same template, which it has never seen."
            )
    if any(evaluation.get("tasks") for evaluation in run.evaluations.values()):
        parts.append(
            "Tasks are scored by the log-likelihood of each choice; acc_norm divides it by the choice's characters. ± is one standard error."
        )
    return " ".join(parts)


def heads(run: Run) -> Markup:
    """How often each prediction head ranks the right token first."""
    rows, most = [], 0
    for name, evaluation in readers(run).items():
        for source, scores in evaluation.get("held_out", {}).items():
            most = max(most, len(scores["head_accuracy"]))
            rows.append(
                [
                    f"{stage_name(name)}, {source}",
                    *(percent(share) for share in scores["head_accuracy"]),
                ]
            )
    if most < 2:
        return Markup()
    rows = [[*row, *["–"] * (most + 1 - len(row))] for row in rows]
    columns = ["", *("next token" if head == 0 else f"{head + 1} ahead" for head in range(most))]
    note = "How often the right token is the likeliest one of each head. Head 0 predicts the next token and is the one that writes."
    return section("Prediction heads", element("p", note, class_="note"), table(columns, rows))


def samples(run: Run) -> Markup:
    """The same prompts, answered by each stage."""
    named = [
        (stage_name(name), stage_colour(name), evaluation)
        for name, evaluation in run.evaluations.items()
    ]
    cards = sample_cards(named)
    if not cards:
        return Markup()
    settings = next(iter(run.evaluations.values())).get("settings", {})
    note = (
        f"Drawn once with a fixed seed, temperature {settings.get('temperature', '–')}, top-p {settings.get('top_p', '–')}, and not chosen. A pretrained model "
        "goes on with the text, a fine-tuned one replies. ▮ marks a text that was cut off at the limit."
    )
    return section(
        "Samples", element("p", note, class_="note"), element("div", join(cards), class_="samples")
    )


def sample_cards(named: list[tuple[str, int, dict[str, Any]]]) -> list[Markup]:
    """A card for each prompt with what each of (name, colour, evaluation) made of it."""
    shown = [
        (name, colour, {sample["prompt"]: sample for sample in evaluation.get("samples") or []})
        for name, colour, evaluation in named
    ]
    cards = []
    for prompt in dict.fromkeys(prompt for _, _, by_prompt in shown for prompt in by_prompt):
        texts = [
            sample_text(name, colour, by_prompt[prompt])
            for name, colour, by_prompt in shown
            if prompt in by_prompt
        ]
        cards.append(
            element("article", element("h3", prompt), element("div", join(texts), class_="texts"))
        )
    return cards


def sample_text(name: str, colour: int, sample: dict[str, Any]) -> Markup:
    start = element("span", sample["prompt"], class_="muted") if sample.get("continues") else ""
    text = element(
        "p",
        start,
        sample["text"].strip() if not start else sample["text"].rstrip("\n"),
        "" if sample["stopped"] else " ▮",
        class_="written",
    )
    return element("div", element("h4", element("i", class_=f"key s{colour}"), name), text)


def questions(run: Run) -> Markup:
    """Scores per kind of question, and some replies, right and wrong."""
    scored = {
        name: evaluation["answers"]
        for name, evaluation in run.evaluations.items()
        if evaluation.get("answers")
    }
    if not scored:
        return Markup()
    names = list(scored)
    kinds = dict.fromkeys(kind for answers in scored.values() for kind in answers["kinds"])
    rows = [
        [
            kind,
            count(
                next(
                    answers["kinds"][kind]["questions"]
                    for answers in scored.values()
                    if kind in answers["kinds"]
                )
            ),
        ]
        + [percent(scored[name]["kinds"].get(kind, {}).get("score"), 0) for name in names]
        for kind in kinds
    ]
    by_kind = table(["kind of question", "questions", *map(stage_name, names)], rows)
    main = next((name for name in ("dpo", "sft") if name in scored), names[-1])
    replies = scored[main]["replies"]
    chosen = [
        [reply for reply in replies if reply["correct"] is right][:SHOWN_REPLIES]
        for right in (True, False)
    ]
    listed = [
        [
            element("span", " ".join(filter(None, [reply["instruction"], reply["input"]]))),
            reply["answer"],
            element(
                "span",
                "✓ " if reply["correct"] else "✗ ",
                first_line(reply["reply"]) or "(nothing)",
                class_="right" if reply["correct"] else "wrong",
            ),
        ]
        for group in chosen
        for reply in group
    ]
    note = f"The first right and the first wrong replies of the {stage_name(main)} model; all of them are in evaluation/{main}.json."
    return section(
        "Questions",
        by_kind,
        element("p", note, class_="note"),
        table(["question", "answer", "reply"], listed, numeric_from=9, class_="replies"),
    )


def first_line(text: str, longest: int = 120) -> str:
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= longest else line[:longest] + "…"
