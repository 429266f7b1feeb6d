"""How a workflow ends that fails or is interrupted: in one sentence, the last that is printed.

Snakemake has no setting for that. It prints the command of a failed job twice, and a traceback for
Ctrl-C before the first job.
"""

import functools
import logging
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from nanoeuler.log import tell
from nanoeuler.system.processes import end_with_starter
from nanoeuler.workflow.snakemake_internals import filter_messages, refuse_by

AGAIN = "run the same command again: what is finished stays, and training resumes"
INTERRUPTED = f"interrupted  to go on, {AGAIN}"
LOCKED = (
    "error  another run is at work in this folder; wait for it, or stop it, and run the same "
    "command again (if no run is at work: nanoeuler run -- --unlock)"
)
LAST_RECORD = "At least one job did not complete successfully"


class Endings(logging.Filter):
    """A filter of Snakemake's logger, which sees all records, also those that are not shown."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet`: nothing of Snakemake's is shown, so that its errors are shown here."""
        super().__init__()
        self.quiet, self.interrupted = quiet, False
        self.failed: dict[str, list[str]] = {}  # rule → its log files

    def filter(self, record: logging.LogRecord) -> bool:
        event, text = getattr(record, "event", None), str(record.msg)
        kind = getattr(event, "value", None)
        if kind == "job_error":
            if self.interrupted:  # its log is no news
                return False
            self.failed[record.__dict__["rule_name"]] = list(record.__dict__["log"] or [])
            said = record.__dict__["rule_msg"] or ""  # by a cluster: how its job ended
            vars(record).update(msg=said, input=[], output=[], shellcmd=None)
        elif "on user request" in text:
            self.interrupted = True
            return False  # the stages say themselves that they stop
        elif "CalledProcessError" in text and kind == "error":
            return False
        elif LAST_RECORD in text:
            tell(self.sentence(), sys.stderr)
            return False
        elif "Directory cannot be locked" in text:
            tell(LOCKED, sys.stderr)
            return False
        elif kind == "error":
            tell(f"error  {sentence_of(text)}", sys.stderr)
            return False
        elif self.quiet and record.levelno >= logging.ERROR and "Look above" not in text:
            tell(f"error  {' '.join(text.split())}", sys.stderr)
        return True

    def sentence(self) -> str:
        if self.interrupted:
            return INTERRUPTED
        rules = [f"{rule}{where(logs)}" for rule, logs in self.failed.items()]
        noun = "rule" if len(rules) == 1 else "rules"
        named = f"{noun} {', '.join(rules)} failed" if rules else "a job failed, see above"
        return f"error  {named}; mend the cause and {AGAIN}"


def sentence_of(error: str) -> str:
    """What Snakemake says of an exception, without its class. The traceback of one is left out that
    no code of ours is to blame for: an error of the system, or an option that Snakemake did not
    understand."""
    last = error.rstrip(" .\n").rpartition("\n")[2]
    is_fault = "[Errno " in last or "in execute_workflow" not in error
    if "Traceback (most recent call last)" in error and is_fault:
        problem = last.partition(": ")[2] or last
        return f"Snakemake: {problem}; mend this or its options (--verbose shows where it met this)"
    return re.sub(r"^(\w+:\n|Error: )| \(if you use input functions.*\)", "", error)


def where(logs: list[str]) -> str:
    """The log to look into."""
    found = [log for log in logs if Path(log).is_file() and Path(log).stat().st_size]
    return f" (log: {', '.join(found)})" if found else " (without a log, see above)"


@functools.cache  # once
def end_in_sentences() -> None:
    """Adapt the messages of this process's Snakemake; a closed terminal ends it as Ctrl-C does."""
    logging.raiseExceptions = False  # on a full disk, a log file of Snakemake's lacks lines
    filter_messages(Endings(quiet="--quiet all" in " ".join(sys.argv)))
    sys.excepthook = sentence_for_ctrl_c
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # ignored under `nohup`
        signal.signal(signal.SIGHUP, hang_up)


def hang_up(number: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C. A terminal that is closed tells its first process alone, not the jobs."""
    signal.signal(number, signal.SIG_IGN)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, number)
    raise KeyboardInterrupt


def sentence_for_ctrl_c(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        tell_interrupted()
    else:
        sys.__excepthook__(kind, error, trace)


def tell_interrupted() -> None:
    fresh_line = "\n" if sys.stderr.isatty() else ""  # behind the ^C that it shows
    tell(f"{fresh_line}{INTERRUPTED}", sys.stderr)


def refuse(problem: str) -> NoReturn:
    """End where an option of Snakemake's cannot be read. It would print a page of its options."""
    tell(f"error  Snakemake: {problem}; `snakemake --help` lists its options", sys.stderr)
    sys.exit(2)


def main() -> None:
    """`python -m nanoeuler.workflow.endings …`: Snakemake, in which Ctrl-C always has an effect.

    `nanoeuler run` has blocked it, so that it waits for the end of the imports, of which some would
    swallow it.
    """
    # a shell that runs us in the background has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # `nanoeuler run`, whose signals reach this group, may have been killed
    end_with_starter(lambda: os.killpg(os.getpgid(0), signal.SIGINT))
    # Snakemake's, where it is interrupted
    warnings.filterwarnings("ignore", "coroutine 'JobScheduler", RuntimeWarning)
    from snakemake.cli import main as snakemake

    # of the module that the Snakefile imports, which this is not; it does so for `snakemake`, too
    from nanoeuler.workflow import endings

    endings.end_in_sentences()
    refuse_by(refuse)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        snakemake()
    except KeyboardInterrupt:
        tell_interrupted()
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
