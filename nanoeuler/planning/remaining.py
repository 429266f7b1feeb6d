"""The time until a whole run ends, seen from one of its jobs.

The workflow notes which jobs it will run. A job that shows its progress adds the time of those that
are not done yet: what their rule took in this run before, or else an estimate by the figures of the
plan. Where one of them can't be estimated, such as a download, nothing is said of the whole run.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler.config import RESOLVED, load
from nanoeuler.config.stages import BY_NAME, SFT
from nanoeuler.corpus.sources.data_sets import TASKS, describe
from nanoeuler.corpus.task_layouts import REPLIES
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json
from nanoeuler.storage.timing import read_times

JOBS = "jobs.json"
UP_TO_DATE = 60.0
"""Seconds for which the list of the jobs that are not done yet holds."""
START = 4.0
"""Seconds that a job takes to start, and to find its machine code."""
CHECK = 25.0
"""Seconds of the check of gradients, compiling included."""
TEXT_RATE = 60e6
"""Bytes of text per second of building the corpus, learning BPE and encoding: half of what two
cores reach (docs/benchmarks), for others may be at work."""
INDEX_RATE = 1.5e6
"""Tokens per second of the index, on two cores."""
WRITTEN_TOKEN = 4
"""Work of writing a token of the longest reply, in tokens of training. Measured for the demo: each
costs ten, and most replies end before."""
TASK_ITEMS, ITEM_TOKENS = 3000, 300
"""Items of a task without a limit, and tokens of one with all of its choices."""


class Work(NamedTuple):
    """Work of a job: tokens of training that take as long, and seconds beside them."""

    tokens: float
    seconds: float


class WholeRun:
    """The run of which the job with this log file is one."""

    def __init__(self, log: str | Path):
        self.log = str(log)
        self.began = time.monotonic()
        self.looked = -UP_TO_DATE
        self.own: Work | None = None
        self.later: Work | None = None
        self.rate: float | None = None  # of training, in tokens/s; of a training job, its own

    def seconds(self, tag: str, rate: float, left: float) -> float | None:
        """The time until the last job ends, or None where it is unknown or this is the last job.

        `tag`, `rate` (amounts/s) and `left` (seconds) are those of the progress at work.
        """
        now = time.monotonic()
        if now - self.looked >= UP_TO_DATE:
            self.looked = now
            self.own = self.later = None
            with contextlib.suppress(UserError, OSError, LookupError, TypeError, ValueError):
                self.look()  # a damaged file costs the estimate only
        if self.later is None:
            return None
        trains = tag in BY_NAME  # then its rate counts tokens of training
        training_rate = rate if trains else self.rate
        if self.later.tokens and not training_rate:
            return None
        after = self.later.seconds + self.later.tokens / (training_rate or 1.0)
        if self.own and not trains:  # other pieces of work may follow in this job
            own = self.own.seconds + self.own.tokens / (training_rate or 1.0)
            left = max(left, own - (now - self.began))
        return left + after

    def look(self) -> None:
        """Read which jobs are not done yet, and estimate them."""
        paths = (parent / JOBS for parent in Path(self.log).parents[:3])
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            return
        noted, since = read_json(path), path.stat().st_mtime
        jobs = noted["jobs"]
        rest = [job for log, job in jobs.items() if log != self.log and not done(job, since)]
        estimates = Estimates(load(path.with_name(RESOLVED)), path.parent)
        own = jobs[self.log]["rule"]
        if own not in BY_NAME:
            self.rate = estimates.training_rate()
            self.own = estimates.of(own)
        found = [estimates.of(job["rule"]) for job in rest]
        known = [work for work in found if work]
        if found and len(known) == len(found):
            self.later = Work(sum(w.tokens for w in known), sum(w.seconds for w in known))


def done(job: Mapping[str, str], since: float) -> bool:
    """Whether a job has written its output since the workflow began."""
    try:
        return os.stat(job["output"]).st_mtime >= since
    except FileNotFoundError:
        return False


class Estimates:
    """The work of each rule of a run."""

    def __init__(self, config: Mapping[str, Any], folder: Path):
        from nanoeuler.config.paths import Paths
        from nanoeuler.model.config import ModelConfig
        from nanoeuler.planning import plan as planning
        from nanoeuler.planning.data import estimate_text

        self.config, self.folder = config, folder
        text = vars(estimate_text(config, Paths(config), reads=False))
        self.plan = planning.Plan(0, "", **text)
        model = ModelConfig.from_dict(config["model"])
        costs = planning.stage_costs(self.plan, config)
        self.training = {rule: cost.work(model) for rule, cost in costs.items()}
        self.times = read_times(folder)

    def of(self, rule: str) -> Work | None:
        """The work of a job of this rule; None where nothing tells."""
        if rule in self.training:
            return Work(self.training[rule], START)
        took = [each["seconds"] for each in self.times.get(rule, ()) if each.get("status") == 0]
        if took:
            return Work(0, sum(took) / len(took))
        text = self.plan.text_bytes + self.plan.held_out_bytes
        if rule == "learn_bpe":
            return Work(0, START + min(text, self.config["tokenizer"]["sample_bytes"]) / TEXT_RATE)
        if rule in ("build_corpus", "tokenize"):
            return Work(0, START + text / TEXT_RATE)
        if rule == "index":
            return Work(0, START + self.plan.text_tokens / INDEX_RATE)
        if rule == "evaluate_model":
            return Work(self.evaluated_tokens(), START)
        fixed = {"check_gradients": CHECK, "check_fit": START}
        fixed |= {"write_report": START, "write_sample": START}
        return Work(0, fixed[rule]) if rule in fixed else None

    def evaluated_tokens(self) -> float:
        """The work of evaluating a model, in tokens of training."""
        from nanoeuler.planning.data import bytes_per_token
        from nanoeuler.planning.plan import FORWARD_SHARE

        evaluate, sources = self.config["evaluate"], len(self.config["corpus"]["sources"])
        vocab_size = self.config["tokenizer"]["vocab_size"]
        held_out = self.plan.held_out_bytes / bytes_per_token(vocab_size)
        read = min(held_out, evaluate["validation_tokens"] * sources)
        replied = 0
        for name, task in TASKS.chosen(self.config).items():
            described = describe(self.config, name)
            items = (task.get("limit") or TASK_ITEMS) * (1 + evaluate["controls"])
            if described["kind"] in REPLIES:
                replied += items
            else:
                read += items * (1 + (described.get("shots") or 0)) * ITEM_TOKENS
        replies = replied + 2 * evaluate["chat_prompts"] * SFT.is_part_of(self.config)
        written = (replies + len(evaluate["prompts"])) * evaluate["max_new_tokens"]
        return FORWARD_SHARE * read + WRITTEN_TOKEN * written

    def training_rate(self) -> float | None:
        """Tokens/s of training: of the newest stage, or as planned."""
        from nanoeuler.evaluation.report.gather import read_stage

        rates = [read_stage(self.folder, stage).tokens_per_second for stage in reversed(BY_NAME)]
        measured = next(filter(None, rates), None)
        if measured is None and (self.folder / "plan.json").is_file():
            return read_json(self.folder / "plan.json").get("tokens_per_second")
        return measured
