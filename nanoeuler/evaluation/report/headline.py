"""The top of the page: what was trained, and the few numbers that say how it went."""

from typing import Any

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.markup import (
    Bar,
    Markup,
    bars,
    count,
    decimals,
    duration,
    element,
    enumeration,
    join,
    percent,
    scientific,
    short_count,
    size,
)
from nanoeuler.evaluation.report.summary import summarise_gradients
from nanoeuler.log import counted

STAGE_NAMES = {
    "pretrain": "pretrained",
    "sft": "fine-tuned",
    "dpo": "aligned",
    "sft_scratch": "tuned from scratch",
}
STAGE_COLOURS = {"pretrain": 0, "sft": 1, "dpo": 2, "sft_scratch": 3}


def stage_name(name: str) -> str:
    return STAGE_NAMES.get(name, name)


def stage_colour(name: str) -> int:
    return STAGE_COLOURS.get(name, 4)


def readers(run: Run) -> dict[str, dict[str, Any]]:
    """Evaluations of the models that have read running text: for one tuned from scratch, scores on it say nothing."""
    return {
        name: evaluation for name, evaluation in run.evaluations.items() if name != "sft_scratch"
    }


def header(run: Run) -> Markup:
    first = next(iter(run.stages.values()))
    provenance = first.header.get("provenance") or (first.evaluation or {}).get("provenance") or {}
    where = (
        f"{counted(provenance['cores'], 'core')}, {provenance['device']}"
        if "device" in provenance
        else ""
    )
    lead = join(
        [
            element("p", sentence(run), class_="lead"),
            element(
                "p",
                " · ".join(filter(None, [provenance.get("date", "")[:10], where])),
                class_="muted",
            ),
        ]
    )
    return element(
        "header",
        element("p", "nanoeuler · report of a run", class_="muted"),
        element("h1", run.name),
        lead,
    )


def sentence(run: Run) -> str:
    """What this is, in a sentence."""
    parameters = next(
        (
            stage.header.get("parameters") or (stage.evaluation or {}).get("parameters")
            for stage in run.stages.values()
        ),
        None,
    )
    text = (
        f"A language model of {short_count(parameters)} parameters"
        if parameters
        else "A language model"
    )
    pretrain = run.stages.get("pretrain")
    if pretrain and pretrain.last:
        sources = f" of {enumeration(list(run.corpus['sources']))}" if run.corpus else ""
        total = (
            sum(source["train"]["bytes"] for source in run.corpus["sources"].values())
            if run.corpus
            else None
        )
        amount = f"{size(total)} of text{sources}" if total else "text"
        start = (
            "the weights of another run" if pretrain.settings.get("init_from") else "random weights"
        )
        text += f", trained from {start} on {amount} ({short_count(pretrain.last['tokens'])} tokens read in {duration(pretrain.last['seconds'])})"
    sft = run.stages.get("sft")
    if sft and sft.last:
        records = sft.header.get("records")
        text += f", then fine-tuned on {count(records) + ' ' if records else ''}instructions in {duration(sft.last['seconds'])}"
    dpo = run.stages.get("dpo")
    if dpo and dpo.last:
        pairs = dpo.header.get("pairs")
        text += f", then aligned with {count(pairs) + ' ' if pairs else ''}preference pairs in {duration(dpo.last['seconds'])}"
    unfinished = [
        stage_name(name) for name, stage in run.stages.items() if stage.steps and not stage.finished
    ]
    return (
        text
        + "."
        + (f" Training is not finished yet: {', '.join(unfinished)}." if unfinished else "")
    )


def tiles(run: Run) -> Markup:
    """The numbers that one looks for first."""
    shown: list[tuple[str, str, str]] = []
    base = run.evaluations.get("pretrain") or next(iter(run.evaluations.values()), None)
    for source, scores in (base or {}).get("held_out", {}).items():
        floor = f"a bigram model: {decimals(run.bigram[source], 2)}" if source in run.bigram else ""
        shown.append(
            (decimals(scores["bits_per_byte"], 2), f"bits per byte, held-out {source}", floor)
        )
    tuned = run.evaluations.get("dpo") or run.evaluations.get("sft") or {}
    if answers := tuned.get("answers"):
        baseline = answers["commonest_answer"]["score"]
        shown.append(
            (
                percent(answers["score"], 0),
                f"of {count(answers['questions'])} held-out questions right",
                f"commonest answer: {percent(baseline, 0)}",
            )
        )
        shown.append(
            (
                percent(answers["stopped"], 0),
                "of replies end by themselves",
                f"{answers['mean_reply_tokens']:.0f} tokens on average",
            )
        )
    if (dpo := run.stages.get("dpo")) and "accuracy" in (dpo.handed_on or {}):
        pairs = dpo.header.get("held_out_pairs")
        label = (
            f"of {count(pairs)} held-out pairs ranked right"
            if pairs
            else "of held-out pairs ranked right"
        )
        shown.append((percent(dpo.handed_on["accuracy"], 0), label, "a coin: 50 %"))
    seconds = {name: stage.last["seconds"] for name, stage in run.stages.items() if stage.last}
    if seconds:
        each = ", ".join(
            f"{name.replace('_', ' ')} {duration(value)}" for name, value in seconds.items()
        )
        shown.append(
            (duration(sum(seconds.values())), "of training", each if len(seconds) > 1 else "")
        )
    if checked := summarise_gradients(run.gradients):
        verdict = "passed" if checked["passed"] else "FAILED"
        label = f"worst of {checked['tensors']} gradients against finite differences"
        shown.append(
            (
                scientific(checked["largest_error"]),
                label,
                f"{verdict}; limit {scientific(checked['tolerance'])}",
            )
        )
    boxes = (
        element(
            "div",
            element("b", value),
            element("span", label),
            element("small", note) if note else "",
            class_="tile",
        )
        for value, label, note in shown
    )
    return element("div", join(boxes), class_="tiles") if shown else Markup()


def comparisons(run: Run) -> Markup:
    """Each result beside what it has to beat."""
    figures = [
        bits_figure(run, source)
        for source in dict.fromkeys(
            source for scores in run.evaluations.values() for source in scores.get("held_out", {})
        )
    ]
    figures = [figure for figure in (*figures, answers_figure(run), *tasks_figures(run)) if figure]
    return element("div", join(figures), class_="grid") if figures else Markup()


def bits_figure(run: Run, source: str) -> Markup:
    entries = (
        [Bar("bigram model", run.bigram[source], decimals(run.bigram[source]))]
        if source in run.bigram
        else []
    )
    for name, evaluation in readers(run).items():
        if source in evaluation.get("held_out", {}):
            value = evaluation["held_out"][source]["bits_per_byte"]
            entries.append(Bar(stage_name(name), value, decimals(value), stage_colour(name)))
    return bars(f"Held-out text: {source}", "bits per byte, less is better", entries)


def tasks_figures(run: Run) -> list[Markup]:
    """Each task's score by stage, beside what picking at random gets."""
    figures = []
    for task in dict.fromkeys(
        task for evaluation in run.evaluations.values() for task in evaluation.get("tasks") or {}
    ):
        scored = {
            name: evaluation["tasks"][task]
            for name, evaluation in readers(run).items()
            if task in (evaluation.get("tasks") or {})
        }
        if not scored:
            continue
        first = next(iter(scored.values()))
        entries = [Bar("at random", first["baseline"], percent(first["baseline"]))]
        for name, score in scored.items():
            entries.append(
                Bar(
                    stage_name(name),
                    score["score"],
                    plus_minus(score),
                    stage_colour(name),
                    score["standard_error"],
                )
            )
        figures.append(
            bars(
                task,
                f"{first['metric']} of {count(first['items'])}, more is better",
                entries,
                maximum=1.0,
            )
        )
    return figures


def plus_minus(score: dict[str, Any]) -> str:
    """A share in percent, with its standard error where it has one."""
    error = score.get("standard_error")
    return percent(score["score"]) + ("" if error is None else f" ± {100 * error:.1f}")


def answers_figure(run: Run) -> Markup:
    scored = {
        name: evaluation["answers"]
        for name, evaluation in run.evaluations.items()
        if evaluation.get("answers")
    }
    if not scored:
        return Markup()
    last = list(scored.values())[-1]
    entries = [
        Bar(
            "always the commonest answer",
            last["commonest_answer"]["score"],
            percent(last["commonest_answer"]["score"]),
        )
    ]
    if of_kind := last.get("commonest_answer_of_kind"):
        entries.append(
            Bar("commonest answer to each kind", of_kind["score"], percent(of_kind["score"]))
        )
    for name, answers in scored.items():
        entries.append(
            Bar(
                stage_name(name),
                answers["score"],
                plus_minus(answers),
                stage_colour(name),
                answers["standard_error"],
            )
        )
    return bars(
        "Held-out questions",
        f"share of {count(last['questions'])} answered exactly, more is better",
        entries,
        maximum=1.0,
    )
