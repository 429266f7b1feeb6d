"""A run in one JSON object, for machines: results/<run>/metrics.json."""

from nanoeuler.evaluation.report.gather import Json, Run, Stage
from nanoeuler.evaluation.scores import without


def summarise(run: Run) -> Json:
    """Every stage with its scores, the baselines, and the fingerprints of the data."""
    tokens = run.tokens or {}
    return {
        "version": 1,
        "run": run.name,
        "bigram_bits_per_byte": run.bigram,
        "stages": {name: summarise_stage(stage) for name, stage in run.stages.items()},
        "rule_seconds": run.rule_seconds,
        "gradients": summarise_gradients(run.gradients),
        "corpus_fingerprint": (run.corpus or {}).get("fingerprint"),
        "tokens_fingerprint": tokens.get("fingerprint"),
        "tokenizer_fingerprint": tokens.get("tokenizer"),
    }


def summarise_stage(stage: Stage) -> Json:
    evaluation = stage.evaluation or {}
    held_out = evaluation.get("held_out") or {}
    answers = evaluation.get("answers")
    return {
        "parameters": stage.parameters,
        "finished": stage.finished is not None,
        "steps": stage.last.get("step"),
        "tokens": stage.last.get("tokens"),
        "seconds": stage.last.get("seconds"),
        "loss": stage.steps[-1].get("loss") if stage.steps else None,
        "tokens_per_second": stage.tokens_per_second,
        "mfu": stage.mfu,
        "validation": stage.handed_on,
        "bits_per_byte": {source: each["bits_per_byte"] for source, each in held_out.items()},
        "head_accuracy": {source: each["head_accuracy"] for source, each in held_out.items()},
        "tasks": {
            name: without(scores, "groups")
            for name, scores in (evaluation.get("tasks") or {}).items()
        },
        "chat": evaluation.get("chat"),
        "answers": without(answers, "replies") if answers else None,
        "trajectory": evaluation.get("trajectory"),
        "fingerprint": stage.header.get("fingerprint"),
        "provenance": evaluation.get("provenance", stage.header.get("provenance")),
    }


def summarise_gradients(gradients: Json | None) -> Json | None:
    """The check without its tables."""
    if gradients is None:
        return None
    kept = ("passed", "tolerance", "largest_error", "quick")
    return {
        "tensors": len(gradients["rows"]),
        "derivatives_passed": all(row["ok"] for row in gradients["rows"]),
        "engine": without(gradients["engine"], "rows"),
    } | {key: gradients[key] for key in kept}
