"""What a run takes on a Slurm cluster: jobs, memory, hours, and bytes of disks and network.

What a job asks for is what its rule asks for (jobs.py). What it takes follows from `LAWS`, which
were measured, and from the rates assumed below. The same is computed for all of FineWeb-Edu, with
the settings of the run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler.config.paths import Paths
from nanoeuler.corpus.addresses import file_bytes
from nanoeuler.corpus.sources.fineweb import SHARD_BYTES, WHOLE_SHARD, shard
from nanoeuler.corpus.sources.fineweb import SOURCE as FINEWEB
from nanoeuler.corpus.sources.registry import NAMED
from nanoeuler.log import counted, format_seconds, size
from nanoeuler.planning.data import bytes_per_token, estimate_text
from nanoeuler.tokenizer.shards import token_dtype
from nanoeuler.workflow.cluster import (
    Node,
    ask_accounts,
    ask_cluster,
    describe_job,
    nodes_of,
    obstacles,
)
from nanoeuler.workflow.jobs import asked, is_local

Config = Mapping[str, Any]


class Law(NamedTuple):
    """What a rule takes: seconds of one core, and bytes on the shared disk."""

    gigabyte: float = 0.0  # seconds for each GB of text
    page: float = 0.0  # µs for each page
    job: float = 0.0  # seconds for each job
    reads: float = 0.0  # times the text
    writes: float = 0.0
    page_reads: float = 0.0  # bytes for each page
    page_writes: float = 0.0
    page_spills: float = 0.0  # bytes for each page that are there for a while, and read again


LAWS = {
    "extract_fineweb": Law(gigabyte=11, job=0.3, writes=1, page_writes=42),
    "build_corpus": Law(17, 8.4, 4, reads=2, writes=1, page_reads=40, page_spills=581),
    "learn_bpe": Law(gigabyte=15, job=5, reads=1),  # of its sample
    "tokenize": Law(gigabyte=13, job=1, reads=1),
}
"""Processor time of 1 GB of text (234,532 pages, 1 % held out) on two cores of an AMD EPYC, but for
what compares all pages: from 24 M and 60 M made-up ones (docs/cluster.md). `tokenize` took 25 s
there; since then it takes about half of the time, measured on an Intel Xeon."""
GROUPED = {
    "hold_out": Law(page=1.2, job=4, page_reads=40, page_writes=18, page_spills=58),
    "compare_group": Law(gigabyte=13, job=1, reads=1, page_writes=128),
    "choose_documents": Law(page=7.2, job=2, page_reads=146, page_writes=1, page_spills=523),
    "write_group": Law(gigabyte=3, job=1, reads=1, writes=1),
    "build_corpus": Law(job=1),  # links to what the groups have written
    "tokenize_group": Law(gigabyte=13, job=1, reads=1),
    "tokenize": Law(job=1),
}
"""The laws where groups share the work."""
MEASURED_CORES = 6
"""The most cores on which a job has been measured: more are taken to bring nothing."""
JOBS, LOGIN_CORES = 50, 4
"""Jobs that are submitted at one time, and cores of the login node: profiles/slurm/config.yaml."""
DOWNLOAD, SHARED_DISK = 100e6, 1e9
"""Bytes/s of the network, and of the shared disk, that all jobs are assumed to have together."""
PAGE_BYTES, SHARD_PAGES = 4_540, 730_000
"""Text of a page, and pages of a shard: of FineWeb-Edu's sample/10BT, which is 9.67 M pages in
13.25 shards of 2.15 GB that hold 3.3 GB of text each."""
WHOLE_PAGES, WHOLE_SHARD_BYTES = 1.26e9, 2_152_000_000
"""All of FineWeb-Edu: 1.3 T tokens, 131 times that sample."""


@dataclass
class RuleCost:
    """All jobs of a rule. Bytes are those of all; None: not known."""

    jobs: int
    at_once: int
    asks: dict[str, Any]  # each, of the cluster
    core_hours: float | None = None
    hours: float | None = None  # of the longest
    downloads: float = 0.0
    reads: float = 0.0  # from the shared disk
    writes: float = 0.0  # to it
    spills: float = 0.0  # of the writes, and of the reads: there for a while

    @property
    def megabytes(self) -> int:
        return self.asks["mem_mb"]

    @property
    def rounds(self) -> int:
        """How often as many jobs run as can at one time."""
        return math.ceil(self.jobs / self.at_once)


def rule_costs(
    config: Config, cluster: Sequence[Node], training: Mapping[str, float | None]
) -> dict[str, RuleCost]:
    """The jobs that are left of a run, by their rules in the order of their work.

    `training` has the stages, and the seconds that each takes, where they are known.
    """
    paths = Paths(config)
    text = estimate_text(config, paths, reads=False)
    text_bytes = text.text_bytes + text.held_out_bytes
    web_bytes = sum(FINEWEB.text_bytes(config, item) for item in FINEWEB.items(config))
    pages = web_bytes / PAGE_BYTES
    tokens = text_bytes / bytes_per_token(config["tokenizer"]["vocab_size"])
    tokens_bytes = tokens * token_dtype(config["tokenizer"]["vocab_size"]).itemsize
    fetched = FINEWEB.missing(config)
    groups, laws = len(paths.groups), LAWS | (GROUPED if paths.groups else {})
    numbers: dict[str, int] = {"extract_fineweb": len(fetched)}
    if not Path(paths.corpus_manifest).exists():
        if groups:
            numbers |= {"hold_out": 1, "compare_group": groups}
            numbers |= {"choose_documents": 1, "write_group": groups}
        numbers["build_corpus"] = 1
    if not Path(paths.tokenizer).exists():
        numbers["learn_bpe"] = 1
    if not Path(paths.tokens).exists():
        numbers |= {"tokenize_group": groups, "tokenize": 1}
    numbers["index"] = sum(not Path(path).exists() for path in paths.wanted_index)
    numbers |= {"check_gradients": 1, **dict.fromkeys(training, 1)} if training else {}
    numbers |= {"evaluate_model": len(training), "write_report": 1} if training else {}
    costs = {}
    for rule, jobs in numbers.items():
        if not jobs:
            continue
        wanted = asked(config, cluster, rule)
        most = LOGIN_CORES if is_local(config, rule) else room(cluster, wanted)
        cost = RuleCost(jobs, min(jobs, most), wanted)
        cores = min(wanted["cpus_per_task"], MEASURED_CORES)
        if rule == "extract_fineweb":
            cost.downloads = sum(FINEWEB.download_bytes(config, item) for item in fetched)
        if rule in training:
            seconds, cost.reads = training[rule], tokens_bytes
            cost.hours = None if seconds is None else seconds / 3600
        elif rule in laws:
            law = laws[rule]
            share = jobs / len(FINEWEB.items(config)) if rule == "extract_fineweb" else 1.0
            of_rule = share * web_bytes if rule == "extract_fineweb" else text_bytes
            if rule == "learn_bpe":
                of_rule = min(of_rule, config["tokenizer"]["sample_bytes"])
            seconds = law.gigabyte * of_rule / 1e9 + law.page * pages / 1e6 + law.job * jobs
            cost.spills = law.page_spills * pages
            cost.reads = law.reads * of_rule + law.page_reads * pages + cost.spills
            cost.writes = law.writes * of_rule + share * law.page_writes * pages + cost.spills
            if rule == ("tokenize_group" if groups else "tokenize"):
                cost.writes += tokens_bytes
            moved = max(cost.downloads / DOWNLOAD, (cost.reads + cost.writes) / SHARED_DISK)
            cost.core_hours = seconds / 3600
            cost.hours = max(seconds / jobs / cores, moved / cost.rounds) / 3600
        costs[rule] = cost
    return costs


def room(cluster: Sequence[Node], job: Mapping[str, Any]) -> int:
    """How many such jobs run at one time: as many as are submitted, or as the nodes have room for.

    Of a job that no node could run, which is said elsewhere, there is one.
    """
    able = nodes_of(cluster, job["slurm_partition"])
    fitting = sum(
        min(node.cpus // job["cpus_per_task"], node.megabytes // job["mem_mb"]) for node in able
    )
    return min(JOBS, max(1, fitting)) if able else JOBS


def whole_fineweb_edu(config: Config) -> Config | None:
    """The configuration with all of FineWeb-Edu, of which as many bytes are held out; else None."""
    if "sample" in config or not FINEWEB.is_taken(config):
        return None
    shards = round(WHOLE_PAGES / SHARD_PAGES)
    taken = sum(
        source.text_bytes(config, item) for source in NAMED for item in source.items(config)
    )
    corpus, sources = config["corpus"], config["sources"]
    part = {"shards": shards, "max_bytes_per_shard": int(WHOLE_SHARD)}
    share = corpus["validation_share"] * taken / (WHOLE_PAGES * PAGE_BYTES)
    files = [{"url": "hf://", "bytes": WHOLE_SHARD_BYTES}] * shards
    return {
        **config,
        "corpus": {
            **corpus,
            "name": "all-of-fineweb-edu",
            "fineweb": corpus["fineweb"] | part,
            "validation_share": float(f"{share:.2g}"),
        },
        "sources": {**sources, "fineweb": sources["fineweb"] | {"shards": files}},
    }


def totals(costs: Mapping[str, RuleCost]) -> dict[str, float]:
    """What a run takes: jobs at one time, hours, MB of the largest job, and bytes."""
    found = {
        "jobs_at_once": max((cost.at_once for cost in costs.values()), default=0),
        "hours": sum((cost.hours or 0.0) * cost.rounds for cost in costs.values()),
        "megabytes": max((cost.megabytes for cost in costs.values()), default=0),
    }
    for key in ("downloads", "reads", "writes", "spills"):
        found[key] = sum(getattr(cost, key) for cost in costs.values())
    return found


def too_long(config: Config, costs: Mapping[str, RuleCost]) -> list[str]:
    """Say which jobs would not end within their wall time; those that train are resumed."""
    most, found = config["slurm"]["hours"], []
    for rule, cost in costs.items():
        hours = cost.hours or 0.0
        if rule in LAWS | GROUPED and not is_local(config, rule) and hours > most:
            found.append(
                f"slurm.hours: a job of {rule} takes about {hours:.1f} hours, more than {most:g}, "
                f"and is not resumed; set at least {math.ceil(1.5 * hours)}"
            )
    return found


def describe(costs: Mapping[str, RuleCost]) -> list[str]:
    """Lines for a terminal: a table of the jobs, and what they take together."""
    lines = [
        f"  {'jobs':17} {'number':>6} {'at once':>8} {'MB of each':>11} {'core-hours':>11}  each"
    ]
    for rule, cost in costs.items():
        core_hours = "" if cost.core_hours is None else f"{cost.core_hours:,.2f}"
        each = "not known" if cost.hours is None else format_seconds(3600 * cost.hours)
        numbers = f"{cost.jobs:6,} {cost.at_once:8,} {cost.megabytes:11,} {core_hours:>11}"
        lines.append(f"  {rule:17} {numbers}  {each}")
    total = totals(costs)
    lines.append(
        f"  {'together':17} {counted(total['jobs_at_once'], 'job')} at once, "
        f"{format_seconds(3600 * total['hours'])}, {total['megabytes']:,} MB for the largest job"
    )
    lines.append(f"  {'download':17} {size(total['downloads'])}")
    lines.append(
        f"  {'shared disk':17} {size(total['reads'])} read, {size(total['writes'])} written, "
        f"{size(total['spills'])} of it for a while"
    )
    return lines


def describe_cluster(
    config: Config, training: Mapping[str, float | None]
) -> tuple[list[str], dict[str, Any], list[str]]:
    """The plan for the cluster as lines for a terminal and as JSON, and why it would not do.

    `training` is that of `rule_costs`.
    """
    cluster = ask_cluster()
    costs = rule_costs(config, cluster, training)
    submitted = {rule: each.asks for rule, each in costs.items() if not is_local(config, rule)}
    problems = [*obstacles(cluster, ask_accounts(), submitted.values()), *too_long(config, costs)]
    if not cluster:
        problems.append("sinfo: no Slurm cluster answers here; run this on a login node")
    models = {
        rule for rule in submitted if rule in (*training, "check_gradients", "evaluate_model")
    }
    lines = []
    for kind, rules in (("models", models), ("text", submitted.keys() - models)):
        if rules:
            largest = max(
                (submitted[rule] for rule in rules), key=lambda job: (job["gpu"], job["mem_mb"])
            )
            lines.append(describe_job(kind, cluster, largest))
    lines += describe(costs)
    told = {"jobs": jobs_of(costs), **totals(costs), "fineweb_edu": None}
    if any(file_bytes(shard(config, item)) is None for item in FINEWEB.missing(config)):
        lines.append(
            f"  {'assumed':17} {size(SHARD_BYTES)} for a web shard whose size the sources file "
            "does not state"
        )
    whole = whole_fineweb_edu(config)
    if whole is None:
        lines.append(
            f"  {'FineWeb-Edu':17} nothing is said of all of it: corpus.sources names no web pages "
            "of a sources file"
        )
    else:
        of_whole = rule_costs(whole, cluster, {})
        share = whole["corpus"]["validation_share"]
        text = size(WHOLE_PAGES * PAGE_BYTES)
        lines.append(
            f"all of FineWeb-Edu: {text}, {WHOLE_PAGES:,.0f} pages, as much held out "
            f"(validation_share: {share:g})"
        )
        lines += describe(of_whole)
        told["fineweb_edu"] = {"jobs": jobs_of(of_whole), **totals(of_whole)}
    lines.append(
        f"  {'assumed':17} {size(DOWNLOAD)}/s of network, {size(SHARED_DISK)}/s of shared disk, "
        f"{MEASURED_CORES} cores of use to a job"
    )
    return lines, told, problems


def jobs_of(costs: Mapping[str, RuleCost]) -> dict[str, Any]:
    return {rule: asdict(cost) for rule, cost in costs.items()}
