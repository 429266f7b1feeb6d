"""All that this project uses of Snakemake and its Slurm executor without a public interface.

Nothing else reads or replaces their insides, except through this module. It holds for the versions
in `TRIED`.
"""

import atexit
import base64
import contextlib
import fcntl
import importlib
import json
import logging
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

from nanoeuler.log import ATTEMPT
from nanoeuler.storage.files import MOST_JSON

TRIED = {"snakemake": ("9.27.1",), "snakemake-executor-plugin-slurm": ("2.8.0",)}
"""Versions with which the tests of tests/workflow have passed."""
FOLDER = Path(".snakemake")
"""Snakemake's own folder of state."""
LOCKS = "locks/*.lock"
"""Lock files in that folder."""
DEFAULT_RATE = 100, 1
"""Most jobs that it starts in so many seconds, unless `--max-jobs-per-timespan` says otherwise."""
RUN_HEX = (
    "import os,sys;shell,c,command,*more=sys.argv[1:];"
    "os.execv(shell,[shell,c,bytes.fromhex(command).decode(),shell,*more])"
)
"""Python that becomes the shell of its arguments: `/bin/sh -c <a command in hex> <its own>…`."""


class Rule(Protocol):
    """A rule of Snakemake."""

    name: str


class SnakemakeJob(Protocol):
    """A job of Snakemake's DAG."""

    rule: Rule
    output: Iterable[str]
    log: Iterable[str]
    resources: Mapping[str, Any]
    is_local: bool


class RunningSnakemake:
    """The Snakemake that reads our Snakefile, by itself or as a module of another."""

    def __init__(self, workflow: Any):
        self.workflow = workflow

    @property
    def is_main(self) -> bool:
        """False in the Snakemakes that the main one starts for its jobs."""
        return self.workflow.is_main_process

    @property
    def jobs_run_here(self) -> bool:
        """False when another executor has them, such as Slurm's."""
        return self.workflow.local_exec

    @property
    def on_cluster(self) -> bool:
        """Whether another executor has the jobs, or this is one of its jobs; known with the DAG."""
        return self.workflow.remote_exec or not self.jobs_run_here

    @property
    def config_files(self) -> list[str]:
        """Those of the command line."""
        return [str(file) for file in self.workflow.overwrite_configfiles or []]

    @property
    def config_overrides(self) -> Mapping[str, Any]:
        """Settings of `--config`."""
        return self.workflow.config_settings.config

    @property
    def limits(self) -> Mapping[str, Any]:
        """Known limits of each resource for all jobs together."""
        return self.workflow.global_resources

    def set_limit(self, resource: str, limit: int) -> None:
        self.workflow.register_resource(resource, limit)

    def jobs_to_run(self) -> list[SnakemakeJob]:
        return list(self.workflow.dag.needrun_jobs())

    def needed_jobs(self) -> dict[SnakemakeJob, Collection[SnakemakeJob]]:
        """Every job of the DAG, with those whose files it reads."""
        dag = self.workflow.dag
        return {job: dag.dependencies[job] for job in dag.jobs}

    def before_first_job(self, function: Callable[[], None]) -> None:
        """Call `function` then. Snakemake ignores the directive `onstart` of a module."""
        self.workflow._onstart = lambda log: function()

    def end_with_last_job(self) -> None:
        """Let Snakemake end as soon as its last job, and not a second after it started that.

        It waits for the timers of its default rate, which one machine never reaches. To be called
        before the first job.
        """
        rate = self.workflow.scheduler.job_rate_limiter
        if rate and (rate.max_jobs, rate.timespan) == DEFAULT_RATE:
            self.workflow.scheduler.job_rate_limiter = None


def explain_changes(worded: Callable[[Iterable[str], Iterable[str]], str]) -> None:
    """Let `worded` say how params changed, from the `repr` of those before and of those now."""
    from snakemake.persistence import ParamsChange

    ParamsChange.__str__ = lambda change: worded(change.only_old, change.only_new)


def filter_messages(messages: logging.Filter) -> None:
    """Let `messages` see and change all records of Snakemake's logger."""
    from snakemake.logging import logger

    logger.addFilter(messages)


def refuse_by(refuse: Callable[[str], NoReturn]) -> None:
    """Let `refuse` end this process where Snakemake's command line cannot be read."""
    from snakemake.common.argparse import ArgumentParser

    ArgumentParser.error = lambda self, message: refuse(message)


def keep_logs() -> None:
    """Let jobs append to the logs of earlier attempts, and show a failed job's last attempt alone.

    Snakemake deletes a job's logs before it starts, even those of a running trainer, which then
    refuses the job.
    """
    from snakemake import logging
    from snakemake.jobs import Job

    remove, show = Job.remove_existing_output, logging.show_logs

    async def remove_existing_output(self: Any) -> None:
        logs, self._log = self.log, []
        try:
            await remove(self)
        finally:
            self._log = logs

    def show_logs(files: Iterable[str]) -> Iterator[str]:
        for file in files:
            lines = list(show([file]))
            attempts = (i for i, line in enumerate(lines) if line.startswith(ATTEMPT))
            yield from lines[:2] + lines[max(attempts, default=2) :]

    Job.remove_existing_output, logging.show_logs = remove_existing_output, show_logs


def is_incomplete(path: str) -> bool:
    """Whether a Snakemake that was killed, or is at work, has not finished the output `path`."""
    return (FOLDER / "incomplete" / base64.urlsafe_b64encode(path.encode()).decode()).exists()


def once_whole(paths: Mapping[str, str]) -> dict[str, Callable[[Any], Any]]:
    """Inputs, by their names, whose times do not count. Paths may have wildcards."""

    def find(wildcards: Any, path: str) -> Any:
        return ancient_if_whole([path.format(**wildcards)])

    return {name: partial(find, path=path) for name, path in paths.items()}


def ancient_if_whole(paths: Iterable[str]) -> list[Any]:
    """Inputs whose times do not count.

    A half-made file must not be `ancient`: Snakemake would end after the job that repeats it.
    """
    from snakemake.io import ancient

    return [path if is_incomplete(path) else ancient(path) for path in paths]


def quote_arguments() -> None:
    """Let Snakemake quote what it passes to its jobs as a shell reads it, and not as Python does.

    `repr` puts double quotes around what has a single one, and a shell runs `$(…)` in them.
    """
    utils: Any = importlib.import_module("snakemake_interface_executor_plugins.utils")

    def quote(value: object) -> str:
        return shlex.quote(value) if isinstance(value, str) else repr(value)

    utils.repr = quote


def adapt_slurm_executor() -> None:
    """Submit to the user's default account without a guess, don't retry a cancelled job, and pass
    commands so that no name in them is run.

    A job's command is put between the double quotes of `--wrap`, where the login node's shell would
    run `$(…)` in the path of a configuration; that of an array, whose double quotes are not
    escaped, ends at one. So a command with such characters is passed in hex. The guess asks `sacct`
    in a way that it always refuses, and warns of that in every log. Without an answer to `CANCELLED
    by 1000`, as `sacct` says it, the executor would wait for ever. Without the executor there is
    nothing to do.
    """
    plugin: Any = sys.modules.get("snakemake_executor_plugin_slurm")
    if plugin is None:
        return
    executor = plugin.Executor
    account_of, report_error = executor.get_account_arg, executor.report_job_error

    def get_account_arg(self: Any, job: Any) -> Iterator[str]:
        return account_of(self, job) if job.resources.get("slurm_account") else iter([""])

    def report_job_error(self: Any, info: Any, msg: str | None = None, **details: Any) -> None:
        if "status is: 'CANCELLED'" in (msg or ""):
            info.job.attempt = info.job.restart_times + 1  # none is left, to this job alone
        report_error(self, info, msg=msg, **details)

    ask = plugin.query_job_status

    async def query_job_status(*given: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await ask(*given)
        return states and {job: state.split()[0] for job, state in states.items()}, seconds

    plugin.query_job_status = query_job_status
    command_of, run_array = executor.format_job_exec, executor.run_array_jobs

    def format_job_exec(self: Any, job: Any) -> str:
        command = command_of(self, job)
        if not re.search(r'[\\$`"]', command):
            return command
        coded = (command + ' "$@"').encode().hex()
        return f"{shlex.quote(self.get_python_executable())} -c '{RUN_HEX}' /bin/sh -c {coded}"

    def run_array_jobs(self: Any, jobs: list[Any]) -> None:
        if not self.workflow.executor_settings.pass_command_as_script:
            return run_array(self, jobs)
        for job in jobs:  # an array's script is broken: each task is the first, and then fails
            self.run_job(job)

    executor.format_job_exec = format_job_exec
    executor.run_array_jobs = run_array_jobs
    executor.get_account_arg = get_account_arg
    executor.report_job_error = report_job_error


class WorkflowLock:
    """Deletes the lock files of killed Snakemakes, and holds its own lock while it exists.

    Snakemake writes lock files to .snakemake/locks and deletes them in the end. After `kill -9` or
    a power cut they stay, and stop every later run. So each Snakemake that reads our Snakefile
    first notes that it begins, and holds a lock of the system, which ends with its process. When
    nobody holds that lock, the lock files that were written since then belong to the dead.

    On a file system without locks nothing is deleted, and nothing while another machine may be at
    work; Snakemake then asks for `--unlock`.
    """

    def __init__(self, folder: Path = FOLDER):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            path = folder / "nanoeuler-locks.jsonl"
            self.notes = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open while it is held
            with contextlib.suppress(BlockingIOError):  # another Snakemake is at work
                fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_locks_of_the_dead(self.notes, folder)
            fcntl.flock(self.notes, fcntl.LOCK_SH)
            self.notes.write(json.dumps([socket.gethostname(), time.time_ns()]) + "\n")
            self.notes.flush()
            atexit.register(self.end)

    def end(self) -> None:
        """Forget the notes, unless another Snakemake is at work."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.notes.truncate(0)


def delete_locks_of_the_dead(notes: TextIO, folder: Path) -> None:
    """Delete the lock files that were written since the first of the dead began, and the notes."""
    notes.seek(0)
    lines = notes.read(MOST_JSON).splitlines()
    notes.truncate(0)
    try:
        hosts, moments = zip(*map(json.loads, lines), strict=True)
        first = min(moments)
    except (ValueError, TypeError):  # no notes, or damaged ones
        return
    if {*hosts} != {socket.gethostname()}:
        return
    dead = [file for file in folder.glob(LOCKS) if file.stat().st_mtime_ns >= first]
    for file in dead:
        file.unlink()
    if dead:
        print(
            "lock  the last Snakemake in this folder was killed; its lock is deleted, and "
            "stages resume where they stopped",
            file=sys.stderr,
        )
