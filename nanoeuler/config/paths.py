"""The paths of all files of a run, and the files that each stage reads."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config.resolved import RESOLVED
from nanoeuler.config.stages import RECORD_STAGES, parent_of, result_of, stages_of
from nanoeuler.config.stages.stage import Stage
from nanoeuler.corpus.own_text import TextSource, find_files, slug
from nanoeuler.corpus.text_files import Reading
from nanoeuler.storage.files import MOST_JSON, atomic_write, canonical_json, read_bounded

ONE_JOB = 16e9
"""Bytes of web pages that one job cleans and encodes. More is shared out in groups of shards."""
GROUP = 4e9
"""Bytes of a group: a minute of work for two cores, and more than it takes to start a job."""
MOST_GROUPS = 100
"""Groups of a corpus: enough for dozens of nodes, and few enough to plan quickly."""
WHOLE_SHARD = 4e9
"""Bytes of text in a shard of which everything is taken."""


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
        pages = corpus.get("fineweb", {})  # of a run that was made by hand, there may be none
        filters = {key: value for key, value in pages.items() if key != "shards"}
        short_hash = hashlib.sha256(canonical_json(filters).encode()).hexdigest()[:8]
        self.group_files = self.find_groups()
        groups = len(self.web_shards[:: self.group_files]) if self.group_files else 0
        self.groups = [f"{number:03d}" for number in range(groups)]  # as in names of files
        self.held_out = f"{self.corpus}/groups/held-out"
        self.chosen = f"{self.corpus}/groups/chosen"
        self.web = f"{self.collection('fineweb')}/{short_hash}"
        vocab_size = config["tokenizer"]["vocab_size"]
        self.tokenizer = f"{self.corpus}/tokenizer-{vocab_size}/tokenizer.json"
        self.tokens = f"{self.corpus}/tokens-{vocab_size}/manifest.json"
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

    def collection(self, kind: str) -> str:
        """Folder of the books ("gutenberg") or web pages ("fineweb") of the sources file."""
        name = self.config["sources"].get(kind, {}).get("collection", "none")
        return f"{self.data}/{kind}/{name}"

    def raw_book(self, book: int | str) -> str:
        return f"{self.collection('gutenberg')}/raw/pg{book}.txt"

    def book(self, book: int | str) -> dict[str, str]:
        """Title and author of a book, empty where the sources file does not give them."""
        books = self.config["sources"]["gutenberg"]["books"]
        entry: dict[str, Any] = next((entry for entry in books if entry["id"] == int(book)), {})
        return {"title": entry.get("title", ""), "author": entry.get("author", "")}

    def clean_book(self, book: int | str) -> str:
        return f"{self.collection('gutenberg')}/clean/pg{book}.txt"

    def book_record(self, book: int | str) -> str:
        return self.clean_book(book).removesuffix(".txt") + ".json"

    def web_shard(self, shard: int | str) -> str:
        """Texts of the pages extracted from `shard`, a number or three digits.

        The folder's name is a hash of the filters, so that pages of other filters stay apart.
        """
        number = shard if isinstance(shard, str) else f"{shard:03d}"
        return f"{self.web}/shard-{number}.txt"

    def web_index(self, shard: int | str) -> str:
        return self.web_shard(shard).removesuffix(".txt") + ".index"

    def web_origins(self, shard: int | str) -> str:
        return self.web_shard(shard).removesuffix(".txt") + ".parquet"

    def web_record(self, shard: int | str) -> str:
        return self.web_shard(shard).removesuffix(".txt") + ".json"

    def web_source(self, shard: int | str) -> dict[str, Any]:
        """The entry of a web shard in the sources file, without an address that does not matter."""
        return without_address(self.config["sources"]["fineweb"]["shards"][int(shard)])

    def records_folder(self, kind: str) -> str:
        """Folder of the records of a kind, such as "instructions"."""
        return self.records(kind, self.config[RECORD_STAGES[kind].section][kind])

    def records_manifest(self, kind: str) -> str:
        return f"{self.records_folder(kind)}/manifest.json"

    def records(self, kind: str, name: str) -> str:
        """Folder of the data set `name`: a name in the sources file, or the path of a file.

        A hash of the path parts a-b.json from a/b.json.
        """
        if name not in self.config["sources"].get(kind, {}):
            short_hash = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
            name = f"{slug(name)}-{short_hash}"
        return f"{self.data}/{kind}/{name}"

    @property
    def learned_records(self) -> dict[str, str]:
        """The manifests of the records that the stages of this run learn from, by their kinds."""
        return {
            kind: self.records_manifest(kind)
            for kind, stage in RECORD_STAGES.items()
            if stage.is_part_of(self.config)
        }

    @property
    def questions(self) -> list[str]:
        """The held-out questions, when the run has some."""
        name = self.config["evaluate"]["questions"]
        return [f"{self.data}/questions/{name}.jsonl"] if name else []

    def task(self, name: str) -> str:
        """Folder of a task's items."""
        return f"{self.data}/tasks/{name}"

    def task_source(self, name: str) -> dict[str, Any]:
        """The source of a task, without an address that does not matter."""
        from nanoeuler.corpus.tasks import describe_task  # loads an HTTP client

        return without_address(describe_task(name, self.config))

    @property
    def tasks(self) -> list[str]:
        """The manifests of the tasks that are scored."""
        return [
            f"{self.task(entry['name'])}/manifest.json"
            for entry in self.config["evaluate"]["tasks"]
        ]

    # ---- the corpus

    @property
    def kept_out(self) -> list[str]:
        """Evaluation sets that the corpus must not quote: questions, and manifests of tasks."""
        return [*self.questions, *self.tasks] if self.config["corpus"]["decontaminate"] else []

    @property
    def books(self) -> list[int]:
        """Ids of the books in the corpus, in the order of the sources file."""
        if "gutenberg" not in self.config["corpus"]["sources"]:
            return []
        wanted = self.config["corpus"]["books"]
        return [
            book["id"]
            for book in self.config["sources"]["gutenberg"]["books"]
            if wanted == "all" or book["id"] in wanted
        ]

    @property
    def web_shards(self) -> list[int]:
        """Numbers of the web shards in the corpus."""
        corpus = self.config["corpus"]
        takes = "fineweb" in corpus.get("sources", ())
        return list(range(corpus["fineweb"]["shards"])) if takes else []

    @property
    def own_files(self) -> list[tuple[Path, Reading]]:
        """Your own text files, and how those of their source are read."""
        entries = self.config["corpus"]["sources"]
        own = [TextSource.of(each) for each in entries if each not in ("gutenberg", "fineweb")]
        return [(file, source.reading) for source in own for file in find_files(source.path)]

    @property
    def own_text(self) -> list[str]:
        """Your own text files, which corpus.sources names by paths, folders and globs."""
        return [str(file) for file, _ in self.own_files]

    @property
    def own_inputs(self) -> list[str]:
        """Inputs of the corpus beside books and pages: the list of your own text, if any.

        It stands for its files, of which there may be many, with braces or line ends in their
        names, which have a meaning to Snakemake.
        """
        sources = self.config["corpus"]["sources"]
        is_own = any(source not in ("gutenberg", "fineweb") for source in sources)
        return [self.own_list] if is_own else []

    def list_own_text(self) -> None:
        """Write the list where it has changed: its files, with their sizes and times."""
        if not self.own_inputs:
            return
        listed = {}
        for file in self.own_text:
            status = os.stat(file)
            listed[file] = [status.st_size, status.st_mtime_ns]
        text = json.dumps(listed, indent=0) + "\n"  # ASCII: a name need not be UTF-8
        path = Path(self.own_list)
        if not path.is_file() or read_bounded(path, MOST_JSON) != text.encode("ascii"):
            with atomic_write(path) as opened:
                opened.write(text)

    @property
    def downloads(self) -> list[str]:
        """Everything that needs the network."""
        return [
            *self.before_download,
            *(self.raw_book(book) for book in self.books),
            *(self.web_shard(shard) for shard in self.web_shards),
            *self.learned_records.values(),
            *self.questions,
            *self.tasks,
        ]

    def find_groups(self) -> int | None:
        """Number of web shards in a group; None where one job builds the corpus."""
        shards = len(self.web_shards)
        if not shards:
            return None
        size = min(self.config["corpus"]["fineweb"]["max_bytes_per_shard"], WHOLE_SHARD)
        if shards * size <= ONE_JOB:
            return None
        return max(math.ceil(GROUP / size), math.ceil(shards / MOST_GROUPS))

    def group_pages(self, group: str) -> list[str]:
        """The web shards of a group."""
        files, number = self.group_files or 0, int(group)
        shards = self.web_shards[number * files : (number + 1) * files]
        return [self.web_shard(shard) for shard in shards]

    @property
    def clean_books(self) -> list[str]:
        return [self.clean_book(book) for book in self.books]

    @property
    def book_records(self) -> list[str]:
        return [self.book_record(book) for book in self.books]

    @property
    def pages(self) -> list[str]:
        return [self.web_shard(shard) for shard in self.web_shards]

    @property
    def page_records(self) -> list[str]:
        return [self.web_record(shard) for shard in self.web_shards]

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


def without_address(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source without its address if its hash is known: any file of that hash is the same file."""
    known = source.get("sha256")
    return {key: value for key, value in source.items() if key != "url" or not known}
