"""A run in one JSON object, for machines: what every stage was trained on, what came out, and against which baselines."""

from typing import Any

from nanoeuler.evaluation.report.gather import Run, Stage


def summarise(run: Run) -> dict[str, Any]:
    """The content of results/<run>/metrics.json."""
    return {
        "version": 1,
        "run": run.name,
        "bigram_bits_per_byte": run.bigram,
        "stages": {name: summarise_stage(stage) for name, stage in run.stages.items()},
        "rule_seconds": {
            rule: sum(attempt["seconds"] for attempt in attempts)
            for rule, attempts in run.times.items()
        },
        "gradients": summarise_gradients(run.gradients),
        "corpus_fingerprint": (run.corpus or {}).get("fingerprint"),
        "tokens_fingerprint": (run.tokens or {}).get("fingerprint"),
        "tokenizer_fingerprint": (run.tokens or {}).get("tokenizer"),
    }


def summarise_stage(stage: Stage) -> dict[str, Any]:
    last_step = stage.steps[-1] if stage.steps else {}
    evaluation = stage.evaluation or {}
    answers = evaluation.get("answers")
    return {
        "parameters": stage.header.get("parameters", evaluation.get("parameters")),
        "finished": stage.finished is not None,
        "steps": stage.last.get("step"),
        "tokens": stage.last.get("tokens"),
        "seconds": stage.last.get("seconds"),
        "loss": last_step.get("loss"),
        "tokens_per_second": stage.tokens_per_second,
        "mfu": stage.mfu,
        "validation": stage.handed_on,
        "bits_per_byte": {
            source: scores["bits_per_byte"]
            for source, scores in evaluation.get("held_out", {}).items()
        },
        "head_accuracy": {
            source: scores["head_accuracy"]
            for source, scores in evaluation.get("held_out", {}).items()
        },
        "tasks": {
            name: {key: value for key, value in scores.items() if key != "groups"}
            for name, scores in evaluation.get("tasks", {}).items()
        },
        "chat": evaluation.get("chat"),
        "answers": {key: value for key, value in answers.items() if key != "replies"}
        if answers
        else None,
        "trajectory": evaluation.get("trajectory"),
        "fingerprint": stage.header.get("fingerprint"),
        "provenance": evaluation.get("provenance", stage.header.get("provenance")),
    }


def summarise_gradients(gradients: dict[str, Any] | None) -> dict[str, Any] | None:
    if gradients is None:
        return None
    return {"tensors": len(gradients["rows"])} | {
        key: gradients[key] for key in ("passed", "tolerance", "largest_error", "quick")
    }
