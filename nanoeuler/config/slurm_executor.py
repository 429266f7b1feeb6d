"""What Snakemake's Slurm executor does otherwise than a run needs. It has no setting for either."""

import sys
from collections.abc import Iterator
from typing import Any


def adapt_slurm_executor() -> None:
    """Submit to the user's default account without a guess, and don't retry a cancelled job.

    The guess asks `sacct` in a way that it always refuses, and warns of that in every log.
    Without the executor there is nothing to do.
    """
    plugin = sys.modules.get("snakemake_executor_plugin_slurm")
    if plugin is None:
        return
    executor = plugin.Executor
    account_of, report_error = executor.get_account_arg, executor.report_job_error

    def get_account_arg(self: Any, job: Any) -> Iterator[str]:
        return account_of(self, job) if job.resources.get("slurm_account") else iter([""])

    def report_job_error(self: Any, info: Any, msg: str | None = None, **details: Any) -> None:
        if "status is: 'CANCELLED" in (msg or ""):
            info.job.rule.restart_times = 0
        report_error(self, info, msg=msg, **details)

    executor.get_account_arg = get_account_arg
    executor.report_job_error = report_job_error
