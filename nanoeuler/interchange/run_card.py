"""Front matter for the card of an export, from the run of the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoeuler.config.stages import BY_NAME, STAGES
from nanoeuler.evaluation.card import front_matter
from nanoeuler.evaluation.report.gather import gather, kept_configuration


def run_matter(model: Path) -> dict[str, Any]:
    """Language, licence, data sets and metrics of a model folder results/<run>/<stage>/model.

    Nothing where it lies in no run of the workflow. Raises `UserError` for damaged results.
    """
    stage, folder = model.resolve().parent.name, model.resolve().parent.parent
    config = kept_configuration(folder)
    if not config or not (folder / stage / "metrics.jsonl").is_file():
        return {}
    run = gather(config, folder)
    names = [*BY_NAME]
    learned = names[: names.index(stage) + 1] if stage in names else names
    sections = {BY_NAME[name].section for name in learned}
    later = [each for each in STAGES if each.section not in sections]
    unused = {
        each.section: {**run.config.get(each.section, {}), "enabled": False} for each in later
    }
    stages = {name: one for name, one in run.stages.items() if BY_NAME.get(name) not in later}
    run = replace(run, config={**run.config, **unused}, stages=stages)
    known = ("language", "license", "datasets")
    found = {key: json.loads(value) for key, value in front_matter(run).items() if key in known}
    held_out = (run.evaluations.get(stage) or {}).get("held_out") or {}
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": f"{source}, held out", "type": source},
            "metrics": [{"type": "bits_per_byte", "value": score["bits_per_byte"]}],
        }
        for source, score in held_out.items()
    ]
    if results:
        found["model-index"] = [{"name": f"{run.name} {stage}", "results": results}]
    return found
