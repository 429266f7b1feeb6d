"""What a workflow does before its first job: it has the run planned, and stops when this machine won't do."""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config.stages import stage_config
from nanoeuler.errors import UserError

TRAINING = {"pretrain", "sft", "sft_scratch"}
FETCHING = {"fetch_book", "extract_fineweb", "fetch_instructions", "fetch_questions"}


def plan_command(config: Mapping[str, Any], rules: Collection[str], files: Collection[str | Path], gpus: int, local: bool) -> list[str]:
    """The command that plans a run of `rules`; empty when they neither train nor fetch, or when the jobs go to other machines.

    When nothing will be trained the hours don't count, so that a cluster's login node may fetch what its GPUs will learn from.
    """
    if not (local and (TRAINING | FETCHING) & set(rules)):
        return []
    limited = config if TRAINING & set(rules) else {**config, "max_hours": None}
    name = " ".join(os.path.relpath(file) for file in files)
    return [sys.executable, "-m", "nanoeuler", "plan", "--config", stage_config(limited, "plan"), "--name", name, "--gpus", str(gpus)]


def require_plan(command: list[str]) -> None:
    """Run the plan, which prints its own findings. Raises `UserError` when it says no."""
    if command and subprocess.run(command).returncode:
        raise UserError("this machine won't do for this run, see above; nothing was downloaded or started")
