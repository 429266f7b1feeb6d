"""The paths of all files of a run, and the files that each stage reads."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config import RESOLVED
from nanoeuler.config.stages import Stage, parent_of, result_of, stages_of
from nanoeuler.corpus.sources.data_sets import QUESTIONS, TASKS
from nanoeuler.corpus.sources.fineweb import SOURCE as FINEWEB
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.sources.registry import NAMED, RECORDS, SOURCES
from nanoeuler.corpus.sources.source import Source, Step
from nanoeuler.storage.files import MOST_JSON, atomic_write, read_bounded

ONE_JOB = 16e9
"""Bytes of web pages that one job cleans and encodes. More is shared out in groups of shards."""
GROUP = 4e9
"""Bytes of a group: a minute of work for two cores, and more than it takes to start a job."""
MOST_GROUPS = 100
"""Groups of a corpus: enough for dozens of nodes, and few enough to plan quickly."""


class Paths:
    """Every path of a resolved configuration, as text.

    Paths are relative to the working folder, or absolute where data_dir or results_dir is. An
    argument of a method may be a wildcard such as "{id}".
    """

    def __init__(self, config: Mapping[str, Any]):
        self.config = config
        self.data = config["data_dir"].rstrip("/") or "/"
        self.results = f"{config['results_dir'].rstrip('/')}/{config['run']}"
        corpus = config["corpus"]
        self.corpus = f"{self.data}/corpora/{corpus['name']}"
        self.corpus_manifest = f"{self.corpus}/manifest.json"
        self.own_list = f"{self.corpus}/own-text.json"
        self.group_files = self.find_groups()
        groups = len(FINEWEB.items(config)[:: self.group_files]) if self.group_files else 0
        self.groups = [f"{number:03d}" for number in range(groups)]  # as in names of files
        self.held_out = f"{self.corpus}/groups/held-out"
        self.chosen = f"{self.corpus}/groups/chosen"
        vocab_size = config["tokenizer"]["vocab_size"]
        self.tokenizer = f"{self.corpus}/tokenizer-{vocab_size}/tokenizer.json"
        self.tokens = f"{self.corpus}/tokens-{vocab_size}/manifest.json"
        self.index = f"{self.corpus}/index-{vocab_size}/manifest.json"
        self.sample = f"{self.data}/sample"
        self.gradients = f"{self.results}/gradients.json"
        self.fit = f"{self.results}/fit.json"
        self.report = f"{self.results}/report.html"
        self.metrics = f"{self.results}/metrics.json"
        self.comparison = f"{self.results}/evaluation.md"
        self.card = f"{self.results}/README.md"
        self.pipeline = f"{self.results}/pipeline.json"
        self.plan = f"{self.results}/plan.json"
        self.configuration = f"{self.results}/{RESOLVED}"

    # ---- downloads

    @property
    def before_download(self) -> list[str]:
        """Files that must exist before a download: the invented world, if this run learns it."""
        return [f"{self.sample}/manifest.json"] if "sample" in self.config else []

    def before(self, step: Step) -> list[str]:
        """Files that must exist before a step of a source: they stand for an address."""
        return [] if step.inputs(self.config, "{item}") else self.before_download

    def fetched(self, source: Source) -> list[str]:
        """The files that show that a source's items were fetched."""
        return [source.fetched(self.config, item) for item in source.items(self.config)]

    def records_manifest(self, kind: str) -> str:
        """The manifest of the records of a kind, such as "instructions"."""
        return RECORDS[kind].fetched(self.config, RECORDS[kind].item(self.config))

    @property
    def wanted_index(self) -> list[str]:
        """The index of the tokens, if the run is to have one."""
        return [self.index] if self.config.get("index") else []

    @property
    def learned_records(self) -> dict[str, str]:
        """The manifests of the records that the stages of this run learn from, by their kinds."""
        return {
            kind: self.records_manifest(kind)
            for kind, source in RECORDS.items()
            if source.items(self.config)
        }

    @property
    def questions(self) -> list[str]:
        """The held-out questions, when the run has some."""
        return self.fetched(QUESTIONS)

    @property
    def tasks(self) -> list[str]:
        """The manifests of the tasks that are scored."""
        return self.fetched(TASKS)

    # ---- the corpus

    @property
    def kept_out(self) -> list[str]:
        """Evaluation sets that the corpus must not quote: questions, and manifests of tasks."""
        return [*self.questions, *self.tasks] if self.config["corpus"]["decontaminate"] else []

    @property
    def own_inputs(self) -> list[str]:
        """Inputs of the corpus beside books and pages: the list of your own text, if any.

        It stands for its files, of which there may be many, with braces or line ends in their
        names, which have a meaning to Snakemake.
        """
        return [self.own_list] if OWN_TEXT.is_taken(self.config) else []

    def list_own_text(self) -> None:
        """Write the list where it has changed."""
        if self.own_inputs and self.listed() != (found := self.own_files()):
            with atomic_write(Path(self.own_list)) as opened:
                opened.write(found)

    def own_files(self) -> str:
        """The list of your own text as it is: its files, with their sizes and times."""
        found = {}
        for file, _ in OWN_TEXT.paths(self.config):
            status = os.stat(file)
            found[str(file)] = [status.st_size, status.st_mtime_ns]
        return json.dumps(found, indent=0) + "\n"  # ASCII: a name need not be UTF-8

    def listed(self) -> str | None:
        """The list as it was written, None if it was not."""
        path = Path(self.own_list)
        return read_bounded(path, MOST_JSON).decode("ascii", "replace") if path.is_file() else None

    def own_text_changed(self) -> bool:
        """Whether your own text is another than that of the corpus and tokens that are there."""
        listed, tokens = self.listed() if self.own_inputs else None, Path(self.tokens)
        if listed is None or not tokens.is_file():
            return False
        newer = os.stat(self.own_list).st_mtime_ns > tokens.stat().st_mtime_ns
        return newer or listed != self.own_files()

    @property
    def downloads(self) -> list[str]:
        """Everything that needs the network."""
        return [
            *self.before_download,
            *(file for source in SOURCES for file in self.fetched(source)),
        ]

    def find_groups(self) -> int | None:
        """Number of web shards in a group; None where one job builds the corpus."""
        shards = len(FINEWEB.items(self.config))
        if not shards:
            return None
        size = FINEWEB.most_bytes(self.config)
        if shards * size <= ONE_JOB:
            return None
        return max(math.ceil(GROUP / size), math.ceil(shards / MOST_GROUPS))

    def group_pages(self, group: str) -> list[str]:
        """The web shards of a group."""
        files, number = self.group_files or 0, int(group)
        shards = FINEWEB.items(self.config)[number * files : (number + 1) * files]
        return [FINEWEB.text(self.config, shard) for shard in shards]

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts of the sources, behind the options with which they are given."""
        return {
            source.option.flag: [
                source.text(self.config, item) for item in source.items(self.config)
            ]
            for source in NAMED
        }

    @property
    def text_records(self) -> list[str]:
        """The files that say what the texts were made of."""
        return [
            source.record(self.config, item)
            for source in NAMED
            for item in source.items(self.config)
        ]

    @property
    def text_files(self) -> list[str]:
        return [file for files in self.texts.values() for file in files]

    @property
    def text_options(self) -> list[str]:
        """The arguments that give the texts to `assemble`."""
        return [each for flag, files in self.texts.items() if files for each in (flag, *files)]

    def in_one_job(self, files: list[str]) -> list[str]:
        """Files that building the corpus reads if one job does it, and else its steps read."""
        return [] if self.groups else files

    def compared(self, group: str) -> str:
        return f"{self.corpus}/groups/compared-{group}.npz"

    def written(self, group: str) -> str:
        return f"{self.corpus}/groups/written-{group}"

    @property
    def last_steps(self) -> list[str]:
        """The steps that a corpus in groups is put together from."""
        return [self.chosen, *map(self.written, self.groups)] if self.groups else []

    @property
    def finishing(self) -> list[str]:
        """The arguments with which `assemble` puts the steps together, where there are some."""
        return ["--step", "finish"] if self.groups else []

    def group_tokens(self, group: str) -> str:
        return f"{os.path.dirname(self.tokens)}-groups/{group}"

    # ---- results

    @property
    def stages(self) -> list[str]:
        """The training stages of this run, whose models are evaluated."""
        return [stage.name for stage in stages_of(self.config)]

    @property
    def last_stage(self) -> str:
        """The stage whose model one chats with."""
        return result_of(self.stages)

    def stage(self, stage: str) -> str:
        return f"{self.results}/{stage}"

    def model_folder(self, stage: str) -> str:
        return f"{self.results}/{stage}/model"

    def model(self, stage: str) -> dict[str, str]:
        """The files of a stage's model, which the stage writes last."""
        folder = self.model_folder(stage)
        return {
            "weights": f"{folder}/model.safetensors",
            "config": f"{folder}/config.json",
            "tokenizer": f"{folder}/tokenizer.json",
        }

    def parent(self, stage: Stage) -> dict[str, str]:
        """The option with the model that `stage` starts from: init_from, or that of a stage before.

        It is empty where the weights are random.
        """
        before = parent_of(stage, self.config)
        if before is None:
            return {}
        given = self.config[stage.section]["init_from"]
        return {"parent": given or self.model_folder(before.name)}

    def parent_weights(self, stage: Stage) -> list[str]:
        """The weights that `stage` waits for, unless init_from gives them."""
        before = parent_of(stage, self.config)
        if before is None or self.config[stage.section]["init_from"]:
            return []
        return [self.model(before.name)["weights"]]

    def material(self, stage: Stage) -> dict[str, str]:
        """The manifests that `stage` reads, by the options of its command.

        First what it learns from, then other records of the run, whose held-out prompts it must not
        learn.
        """
        if stage.records is None:
            return {"tokens": self.tokens}
        kind = stage.records.kind
        return {kind: self.records_manifest(kind)} | self.learned_records

    def evaluation(self, stage: str) -> str:
        return f"{self.results}/evaluation/{stage}.json"

    def evaluated_items(self, stage: str) -> str:
        """The answers of a stage's model, item by item."""
        return f"{self.results}/evaluation/{stage}.items.jsonl"

    def log(self, rule: str) -> str:
        return f"{self.results}/logs/{rule}.log"
