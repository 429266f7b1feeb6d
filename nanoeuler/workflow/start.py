"""The start of a workflow: reading the configuration, and planning the run before its first job.

When one of them fails, the workflow stops with one sentence: `SystemExit` with a text ends
Snakemake without a report of its own.
"""

import ast
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from nanoeuler.config import RESOLVED, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.config.rules import leaves
from nanoeuler.config.stages import BY_NAME
from nanoeuler.config.validation import show
from nanoeuler.corpus.addresses import without_secrets
from nanoeuler.corpus.sources.registry import FETCHING
from nanoeuler.errors import UserError
from nanoeuler.model.files import keep_model
from nanoeuler.planning.remaining import JOBS
from nanoeuler.storage.files import read_json, write_json
from nanoeuler.storage.folders import mark_outputs
from nanoeuler.storage.integrity import Origin, check_seal, seal
from nanoeuler.storage.stores import open_store
from nanoeuler.workflow.cluster import Node, ask_accounts, obstacles
from nanoeuler.workflow.snakemake_internals import RunningSnakemake, SnakemakeJob


@contextlib.contextmanager
def end_with_mistakes() -> Iterator[None]:
    """End the workflow with a user's mistake as its last sentence."""
    try:
        yield
    except UserError as error:
        raise SystemExit(f"error  {error}") from error


def changed_settings(before: Iterable[str], now: Iterable[str]) -> str:
    """The settings that differ, as "pretrain.tokens 1500000 → 2000000".

    `before` and `now` have the `repr` of params that are in one of them alone: JSON of settings, or
    a hash of code.
    """
    old, new = (
        {key: value for text in params for key, value in settings_in(text)}
        for params in (before, now)
    )
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {show(old.get(key))} → {show(new.get(key))}" for key in changed)


def settings_in(param: str) -> Iterator[tuple[str, Any]]:
    """The settings in the `repr` of a param, by their dotted names."""
    value = str(ast.literal_eval(param))
    if value.startswith("{"):
        yield from leaves(json.loads(value))
    else:
        yield "code", value[:12]


@end_with_mistakes()
def begin(
    running: RunningSnakemake,
    config: Mapping[str, Any],
    config_files: Collection[str | Path],
    paths: Paths,
    cluster: Sequence[Node] | None,
    gpus: int,
) -> None:
    """Plan the run before its first job, and keep what its jobs or its report will need.

    `gpus` are those of a training job here. Ends the workflow when the run would not do.
    """
    gc.enable()
    jobs, here = running.jobs_to_run(), running.jobs_run_here
    if here:
        running.end_with_last_job()
    else:
        require_cluster(cluster or [], [job.resources for job in jobs if not job.is_local])
    rules = {job.rule.name for job in jobs}
    require_plan(config, plan_options(config, rules, config_files, gpus, here))
    if (mirror := config["checkpoint_mirror"]) and rules & BY_NAME.keys():
        open_store(mirror, "")  # a missing package is said now, and not hours later
    for stage in rules & BY_NAME.keys():  # a model stays usable until its successor is whole
        keep_model(paths.model_folder(stage))
    mark(paths, jobs)
    write_resolved(paths.configuration, config)
    keep_jobs(paths.results, jobs)
    write_pipeline(paths.pipeline, config, running.needed_jobs())


def plan_options(
    config: Mapping[str, Any],
    rules: Collection[str],
    files: Collection[str | Path],
    gpus: int,
    local: bool,
) -> list[str]:
    """The options of `nanoeuler plan` for a run of `rules`.

    There are none when they neither train nor fetch, and when the jobs run on other machines. Only
    the stages that will run count, so that a cluster's login node may fetch the data for its GPUs.
    """
    if not local or not any(rule in rules for rule in (*BY_NAME, *FETCHING)):
        return []
    paths = Paths(config)
    stages = ",".join(stage for stage in BY_NAME if stage in rules)
    name = " ".join(os.path.relpath(file) for file in files)
    return [
        *("--unless-short", "--save", paths.plan),
        *(f"--name={name}", "--stages", stages),
        *("--gpus", str(gpus)),
    ]


def require_plan(config: Mapping[str, Any], options: list[str]) -> None:
    """Run the plan, which prints its own findings, and end the workflow when it fails."""
    if not options:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, RESOLVED)
        write_resolved(path, config)
        command = [sys.executable, "-m", "nanoeuler", "plan", "--config", str(path), *options]
        planned = subprocess.run(command)
    if planned.returncode:
        raise SystemExit(
            "error  this run cannot be made as it is, see above; nothing was downloaded or started"
        )


def require_cluster(cluster: Sequence[Node], jobs: Iterable[Mapping[str, Any]]) -> None:
    """End the workflow when `jobs`, the resources of each, would never run on the cluster."""
    if found := obstacles(cluster, ask_accounts(), jobs):
        raise SystemExit(
            "\n".join(f"error  {sentence}" for sentence in found) + "\nnothing was submitted"
        )


def mark(paths: Paths, jobs: Iterable[SnakemakeJob]) -> None:
    """Mark what the jobs will fill, so that no run takes it for a text of one's own."""
    mark_outputs(paths.data, paths.results, (file for job in jobs for file in job.output))


def keep_jobs(folder: str | Path, jobs: Iterable[SnakemakeJob]) -> None:
    """Note the jobs that a workflow will run, by their log files, in the run's folder."""
    noted = {
        log: {"rule": job.rule.name, "output": output}
        for job in jobs
        for log, output in zip(job.log, job.output, strict=False)
    }
    write_json(Path(folder, JOBS), {"version": 1, "jobs": noted})


def write_pipeline(
    path: str | Path,
    config: Mapping[str, Any],
    needs: Mapping[SnakemakeJob, Collection[SnakemakeJob]],
) -> None:
    """Keep the configuration, for comparisons, and the order of the rules, for the report.

    `needs` has every job of the DAG, and the jobs whose files it reads. The file holds {"config",
    "rules": {name: {"jobs", "needs"}}}, with every rule behind the rules that it needs. A workflow
    that trains but makes no report keeps the rules of an earlier one that did; one that does
    neither leaves the file alone.
    """
    jobs: dict[str, int] = {}
    needed: dict[str, set[str]] = {}
    for job, others in needs.items():
        name = job.rule.name
        jobs[name] = jobs.get(name, 0) + 1
        needed.setdefault(name, set()).update(other.rule.name for other in others)
    if jobs.keys().isdisjoint(["write_report", *BY_NAME]):
        return
    ordered = TopologicalSorter({name: needed[name] for name in sorted(jobs)}).static_order()
    rules = {name: {"jobs": jobs[name], "needs": sorted(needed[name])} for name in ordered}
    if "write_report" not in rules:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UserError):
            kept = read_json(path)
            check_seal(Path(path), kept, Origin("the workflow", ""))
            rules = kept["rules"]
    write_json(path, seal({"version": 1, "config": without_secrets(config), "rules": rules}))
