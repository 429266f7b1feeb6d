"""Read what a run has left in its folders. A missing file is no error: half a run has a report."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nanoeuler.config import RESOLVED, read_resolved
from nanoeuler.config.data_settings import Corpus
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import KINDS, PRETRAIN, in_order, is_baseline
from nanoeuler.corpus.addresses import without_secrets
from nanoeuler.corpus.sources.registry import NAMED
from nanoeuler.errors import UserError
from nanoeuler.evaluation import shapes
from nanoeuler.evaluation.scores import EVALUATION, without
from nanoeuler.model.files import CONFIG, TOKENIZER, WEIGHTS, previous, read_description, usable
from nanoeuler.storage.files import read_json
from nanoeuler.storage.integrity import Origin, read_sealed
from nanoeuler.storage.shape import check_shape, read_lines
from nanoeuler.storage.timing import read_times
from nanoeuler.system.energy import ENERGIES, sum_joules

Json = dict[str, Any]
"""An object of a JSON file."""

MEASURED = {
    "finished": shapes.Measurement,
    "validation": shapes.Validation,
    "loss": shapes.Step,
}
"""Keys that make a line of metrics.jsonl a measurement; its header has none of them."""
CHECK = Origin("`nanoeuler check`", "delete it, or let `nanoeuler check` write it again")
WORKFLOW = Origin("the workflow", "delete it and start the workflow again")
MEND = "delete it and run the stage that writes it again"


@dataclass
class Stage:
    """One training stage: the lines of its metrics.jsonl by kind, and its model's evaluation."""

    name: str
    header: Json = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    validations: list[Json] = field(default_factory=list)
    finished: Json | None = None
    evaluation: Json | None = None
    model_step: int | None = None  # training step of the weights in its model folder
    model: Path | None = None  # folder of its model, if that is whole
    again: bool = False  # the stage is making the next model, and that one is kept until then

    @property
    def last(self) -> Json:
        """The newest line that has step, tokens and seconds."""
        lines = [*self.steps, *self.validations]
        return self.finished or max(lines, key=lambda line: line["step"], default={})

    @property
    def state(self) -> str:
        """How far it is."""
        if self.finished or not self.header:
            return f"{self.name} finished"
        step, total = self.last.get("step", 0), self.header.get("total_steps")
        return f"{self.name} at step {step:,}" + (f" of {total:,}" if total else "")

    @property
    def settings(self) -> Mapping[str, Any]:
        """The section of the configuration that the stage trained by, as its header keeps it."""
        return self.header.get("config", {}).get(self.header.get("stage"), {})

    @property
    def parameters(self) -> int | None:
        return self.header.get("parameters") or (self.evaluation or {}).get("parameters")

    @property
    def provenance(self) -> Json:
        """The machine and the code of its training, or else of its evaluation."""
        evaluated = (self.evaluation or {}).get("provenance")
        return self.header.get("provenance") or evaluated or {}

    @property
    def handed_on(self) -> Json | None:
        """The held-out measurement of the model that the stage hands on.

        With `keep: best` that need not be the last one. While the stage makes its model, it is the
        last. Step 0 is left out: it measures the model before this stage.
        """
        measured = {line["step"]: line["validation"] for line in self.validations if line["step"]}
        last = next(reversed(measured.values()), None)
        return last if self.again else measured.get(self.model_step, last)

    @property
    def tokens_of_model(self) -> int | None:
        """The tokens that the model has read which the stage hands on, with `keep: best` fewer than
        those of its training; while it makes its model, those so far."""
        read, step = self.last.get("tokens"), self.last.get("step")
        if not (read and step and self.model_step) or self.again:
            return read
        return min(read, read // step * self.model_step)

    @property
    def skipped_steps(self) -> int:
        """The steps whose rows were left out, since their loss was not a number."""
        return sum(last - first + 1 for first, last in self.header.get("skipped", []))

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the logged steps, so that a pause of the machine does not count."""
        return self.median("tokens_per_second")

    @property
    def joules(self) -> dict[str, float]:
        """Energy of the GPUs and of the processors, as far as it was measured."""
        return {kind: self.last[kind] for kind in ENERGIES if kind in self.last}

    @property
    def cost(self) -> dict[str, float]:
        """Seconds and energy of its training."""
        return {kind: self.last[kind] for kind in ("seconds", *ENERGIES) if kind in self.last}

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: share of the device's peak; None where the peak is unknown."""
        return self.median("mfu")

    def median(self, key: str) -> float | None:
        values = [line[key] for line in self.steps if line.get(key) is not None]
        return statistics.median(values) if values else None


@dataclass
class Run:
    """All that is known of a run."""

    name: str
    config: Mapping[str, Any]
    stages: dict[str, Stage]
    gradients: Json | None = None
    corpus: Json | None = None  # manifest of the corpus
    tokens: Json | None = None  # manifest of the token shards
    records: dict[str, Json] = field(default_factory=dict)  # manifests of records, by kind
    pipeline: Json | None = None  # which rules need which, as the workflow keeps it
    plan: Json | None = None  # what the workflow planned before its first job
    disk: dict[str, int] = field(default_factory=dict)  # data and results → bytes of the run there
    times: dict[str, list[Json]] = field(default_factory=dict)  # rule → its attempts
    tokenizer: Path | None = None  # tokenizer.json of the first model that has one

    @property
    def first(self) -> Stage:
        return next(iter(self.stages.values()))

    @property
    def sources(self) -> dict[str, Json]:
        """Source of text → its part of the corpus's manifest."""
        return (self.corpus or {}).get("sources", {})

    @property
    def bigram(self) -> dict[str, float]:
        """Source → held-out bits per byte of a bigram model: the baseline."""
        pretrain = self.stages.get(PRETRAIN.name)
        return pretrain.header.get("bigram_bits_per_byte", {}) if pretrain else {}

    @property
    def bits_per_byte(self) -> dict[str, float]:
        """Source → held-out bits per byte after the first stage, which learned from such text: of
        its evaluation, or else of its own last measurement."""
        held_out = (self.first.evaluation or {}).get("held_out") or {}
        measured = self.first.handed_on if self.first.name == PRETRAIN.name else None
        return (
            {source: each["bits_per_byte"] for source, each in held_out.items()} or measured or {}
        )

    @property
    def joules(self) -> dict[str, float]:
        """Energy of all stages, as far as all were measured."""
        return sum_joules([stage.joules for stage in self.stages.values() if stage.last])

    @property
    def evaluations(self) -> dict[str, Json]:
        return {name: stage.evaluation for name, stage in self.stages.items() if stage.evaluation}

    @property
    def readers(self) -> dict[str, Json]:
        """The evaluations of models that have read running text: only theirs say anything of it."""
        return {name: each for name, each in self.evaluations.items() if not is_baseline(name)}

    def evaluated(self, key: str) -> dict[str, Any]:
        """Stage → what its evaluation has under `key`, for the stages that have something there."""
        return {name: each[key] for name, each in self.evaluations.items() if each.get(key)}

    @property
    def checked(self) -> Json | None:
        """The gradient check without its tables."""
        if self.gradients is None:
            return None
        kept = ("passed", "tolerance", "largest_error", "quick")
        return {
            "tensors": len(self.gradients["rows"]),
            "derivatives_passed": all(row["ok"] for row in self.gradients["rows"]),
            "engine": without(self.gradients["engine"], "rows"),
        } | {key: self.gradients[key] for key in kept}

    @property
    def rule_seconds(self) -> dict[str, float]:
        """Rule → the time of all its attempts."""
        return {
            rule: sum(attempt["seconds"] for attempt in attempts)
            for rule, attempts in self.times.items()
        }


def is_run(folder: Path) -> bool:
    return any(folder.glob("*/metrics.jsonl")) or any(folder.glob("evaluation/*.json"))


def gather(config: Mapping[str, Any], folder: Path) -> Run:
    """Read the run in `folder` (results/<run>). Raises `UserError` when it holds no stage, or a
    file is damaged."""
    measured = {path.parent.name for path in folder.glob("*/metrics.jsonl")}
    measured |= {path.stem for path in folder.glob("evaluation/*.json")}
    names = in_order(measured)
    if not names:
        raise UserError(
            f"{folder}: holds neither a stage's metrics.jsonl nor an evaluation; "
            "give the folder of a run, such as results/demo, after training"
        )
    stages = {name: read_stage(folder, name) for name in names}
    run = Run(config.get("run", folder.name), config, stages)
    run.gradients = sealed(folder / "gradients.json", CHECK, "a check of gradients", "rows")
    run.pipeline = read_pipeline(folder)
    run.plan = read_result(folder / "plan.json", shapes.Plan)
    run.times = read_times(folder)
    models = [folder / name / "model" for name in names]
    tokenizers = [place / TOKENIZER for model in models for place in (model, previous(model))]
    run.tokenizer = next((path for path in tokenizers if path.is_file()), None)
    if {"data_dir", "results_dir", "run", "corpus", "tokenizer", "sources"} <= config.keys():
        paths = Paths(config)
        if run.plan and {item.name for item in fields(Corpus)} <= config["corpus"].keys():
            run.disk = {"data": bytes_in(data_of(paths)), "results": bytes_in([folder])}
        run.corpus = read_result(Path(paths.corpus_manifest), shapes.Corpus)
        run.tokens = read_result(Path(paths.tokens), shapes.Tokens)
        for kind, path in paths.learned_records.items():
            if manifest := read_result(Path(path), shapes.RECORDS[KINDS[kind].unit]):
                run.records[kind] = manifest
    return run


def entitled(run: Run) -> Run:
    """The run as people read of it: its sources by the titles that their file gives them."""
    sources = run.config.get("sources") or {}
    titles = {
        name: source["title"]
        for name, source in sources.items()
        if isinstance(source, Mapping) and "title" in source
    }

    def renamed(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {titles.get(key, key): renamed(item) for key, item in value.items()}
        return [renamed(item) for item in value] if isinstance(value, list) else value

    def named(record: Any, *names: str) -> Any:
        return replace(record, **{name: renamed(getattr(record, name)) for name in names})

    if not titles:
        return run
    kept = ("header", "steps", "validations", "finished", "evaluation")
    stages = {name: named(stage, *kept) for name, stage in run.stages.items()}
    return replace(named(run, "corpus", "tokens", "plan"), stages=stages)


def data_of(paths: Paths) -> list[Path]:
    """The data that a plan counts: fetched texts, the corpus and its tokens."""
    config = paths.config
    texts = [
        name
        for source in NAMED
        for item in source.items(config)
        for name in (source.fetched(config, item), source.text(config, item))
    ]
    return [Path(name) for name in dict.fromkeys([paths.corpus, *texts])]


def bytes_in(places: Iterable[Path]) -> int:
    files = (file for place in places for file in (place, *place.rglob("*")) if file.is_file())
    return sum(file.stat().st_size for file in files)


def read_result(path: Path, shape: Any) -> Json | None:
    """The JSON that a stage wrote, or None without such a file."""
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object; {MEND}")
    check_shape(path, value, shape, MEND)
    return value


def sealed(path: Path, origin: Origin, what: str, key: str) -> Json | None:
    """The JSON that its writer sealed, see `read_sealed`; None without such a file."""
    return read_sealed(path, origin, what, key, origin.remedy) if path.is_file() else None


def read_pipeline(folder: Path) -> Json | None:
    """The rules of the workflow and the configuration that it kept, if it has made the run."""
    return sealed(folder / "pipeline.json", WORKFLOW, "what the workflow wrote", "rules")


def kept_configuration(folder: Path) -> Json:
    """The configuration that the workflow of the run in `folder` kept, or that of a trial; empty
    where there is none, as for stages that were run by hand."""
    pipeline = read_pipeline(folder)
    if pipeline is None:
        return without_secrets(read_resolved(folder / RESOLVED) or {})
    return pipeline.get("config", {})


def read_stage(folder: Path, name: str) -> Stage:
    stage = Stage(name)
    path = folder / "evaluation" / f"{name}.json"
    stage.evaluation = sealed(path, EVALUATION, "an evaluation", "held_out")
    made = folder / name / "model"
    model = usable(made)
    if (model / CONFIG).is_file():
        description = read_description(model)[1]
        stage.again = model != made
        if (model / WEIGHTS).is_file() and (model / TOKENIZER).is_file():
            stage.model = model
        stage.model_step = (description.get("info") or {}).get("step")
    for line in read_metrics(folder / name / "metrics.jsonl"):
        if "finished" in line:
            stage.finished = line
        elif "validation" in line:
            stage.validations.append(line)
        elif "loss" in line:
            stage.steps.append(line)
        else:
            stage.header = line
    return stage


def read_metrics(path: Path) -> Iterator[Json]:
    """The lines of a metrics.jsonl; a last one that was cut off is left out."""
    mend = "take the line out, or run the stage again"
    cut_off = None
    for number, line in read_lines(path, shape_of_line, mend) if path.is_file() else ():
        if cut_off:
            raise UserError(f"{path}, line {cut_off}: not valid JSON; {mend}")
        if line is None:  # being written, or cut off by a kill
            cut_off = number
        else:
            yield line


def shape_of_line(line: Json) -> Any:
    return next((shape for key, shape in MEASURED.items() if key in line), shapes.Header)
