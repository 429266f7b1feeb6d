"""What a workflow does before its first job: it reads the configuration, has the run planned, and stops in one sentence when either won't do.

`SystemExit` with a text is how a Snakefile stops without Snakemake's account of where in it that happened.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from nanoeuler.config.loading import load_files
from nanoeuler.config.stages import stage_config
from nanoeuler.errors import UserError
from nanoeuler.files import write_json

TRAINING = ("pretrain", "sft", "sft_scratch", "dpo")
FETCHING = (
    "fetch_book",
    "extract_fineweb",
    "fetch_instructions",
    "fetch_preferences",
    "fetch_questions",
)


def read_configuration(files: Sequence[str | Path], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration of a workflow, or the end of it with the mistake named."""
    try:
        return load_files(files, overrides)
    except UserError as error:
        raise SystemExit(f"error  {error}") from error


def plan_command(
    config: Mapping[str, Any],
    rules: Collection[str],
    files: Collection[str | Path],
    gpus: int,
    local: bool,
) -> list[str]:
    """The command that plans a run of `rules`; empty when they neither train nor fetch, or when the jobs go to other machines.

    Only the stages that will run count, so that a cluster's login node may fetch what its GPUs will learn from.
    """
    if not local or not any(rule in rules for rule in TRAINING + FETCHING):
        return []
    stages = ",".join(stage for stage in TRAINING if stage in rules)
    name = " ".join(os.path.relpath(file) for file in files)
    handed = ["--config", stage_config(config, "plan"), "--name", name, "--stages", stages]
    return [
        sys.executable,
        "-m",
        "nanoeuler",
        "plan",
        "--unless-short",
        *handed,
        "--gpus",
        str(gpus),
    ]


def require_plan(command: list[str]) -> None:
    """Run the plan, which prints its own findings, and end the workflow when it says no."""
    if command and subprocess.run(command).returncode:
        raise SystemExit(
            "error  this machine won't do for this run, see above; nothing was downloaded or started"
        )


def write_pipeline(
    path: str | Path, config: Mapping[str, Any], needs: Mapping[Any, Collection[Any]]
) -> None:
    """Keep for the report the configuration and which rules need which: {"config", "rules": {name: {"jobs", "needs"}}}, every rule behind what it needs.

    `needs` has every job of the DAG, and the jobs whose files it takes in. A workflow that doesn't make the report leaves the file alone.
    """
    rules: dict[str, dict[str, Any]] = {}
    for job, needed in needs.items():
        rule = rules.setdefault(job.rule.name, {"jobs": 0, "needs": set()})
        rule["jobs"] += 1
        rule["needs"] |= {other.rule.name for other in needed}
    if "write_report" in rules:
        ordered = TopologicalSorter(
            {name: rule["needs"] for name, rule in sorted(rules.items())}
        ).static_order()
        write_json(
            path,
            {
                "version": 1,
                "config": config,
                "rules": {
                    name: rules[name] | {"needs": sorted(rules[name]["needs"])} for name in ordered
                },
            },
        )
