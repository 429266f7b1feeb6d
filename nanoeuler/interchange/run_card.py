"""Front matter for the card of an export, from the run of the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoeuler.evaluation.card import front_matter
from nanoeuler.evaluation.report.gather import gather, kept_configuration

LATER = {"pretrain": ("sft", "sft_scratch", "dpo"), "sft": ("dpo",), "sft_scratch": ("dpo",)}
"""Stage → those that its model has learned nothing from."""


def run_matter(model: Path) -> dict[str, Any]:
    """Language, licence, data sets and metrics of a model folder results/<run>/<stage>/model.

    Nothing where it lies in no run of the workflow. Raises `UserError` for damaged results.
    """
    stage, folder = model.resolve().parent.name, model.resolve().parent.parent
    config = kept_configuration(folder)
    if not config or not (folder / stage / "metrics.jsonl").is_file():
        return {}
    run = gather(config, folder)
    later = LATER.get(stage, ())
    unused = {name: {**run.config.get(name, {}), "enabled": False} for name in later}
    stages = {name: each for name, each in run.stages.items() if name not in later}
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
