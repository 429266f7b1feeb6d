"""Read what a run has left in its folders. A missing file is no error: half a run has a report."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from nanoeuler.config.paths import Paths
from nanoeuler.errors import UserError
from nanoeuler.evaluation.comparison import check_evaluation_seal, is_evaluation
from nanoeuler.files import read_json
from nanoeuler.integrity import Origin, check_seal
from nanoeuler.model.files import CONFIG, read_description
from nanoeuler.timing import read_times

Json = dict[str, Any]
"""An object of a JSON file."""

STAGES = ("pretrain", "sft", "dpo", "sft_scratch")
"""In the order in which a report shows them; stages of other names follow."""
SCRATCH = "sft_scratch"
"""The stage that shows what pretraining is worth: its model has read no running text."""
MEASURED = {"finished", "validation", "loss"}
"""Keys that make a line of metrics.jsonl a measurement; its header has none of them."""
WHEN = {"step", "tokens", "seconds"}
"""Keys that every measurement has."""
NUMBER = (int, float)
CHECKED: dict[str, Any] = {
    "rows": list,
    "tolerance": NUMBER,
    "passed": bool,
    "largest_error": (*NUMBER, NoneType),
    "quick": bool,
}
"""Keys of a gradient check and the types of their values."""
CHECKED_ROW: dict[str, Any] = {
    "case": str,
    "tensor": str,
    "elements": int,
    "error": (*NUMBER, NoneType),
    "worst": (*NUMBER, NoneType),
    "ok": bool,
}
"""The same for a tensor of it."""


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

    @property
    def last(self) -> Json:
        """The newest line that has step, tokens and seconds."""
        lines = [*self.steps, *self.validations]
        return self.finished or max(lines, key=lambda line: line["step"], default={})

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

        With `keep: best` that need not be the last one. While there is no model, it is the last.
        Step 0 is left out: it measures the model before this stage.
        """
        measured = {line["step"]: line["validation"] for line in self.validations if line["step"]}
        return measured.get(self.model_step, next(reversed(measured.values()), None))

    @property
    def skipped_steps(self) -> int:
        """The steps whose rows were left out, since their loss was not a number."""
        return sum(last - first + 1 for first, last in self.header.get("skipped", []))

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the logged steps, so that a pause of the machine does not count."""
        return self.median("tokens_per_second")

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
    instructions: Json | None = None  # manifest of the instruction records
    preferences: Json | None = None  # manifest of the preference pairs
    pipeline: Json | None = None  # which rules need which, as the workflow keeps it
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
        pretrain = self.stages.get("pretrain")
        return pretrain.header.get("bigram_bits_per_byte", {}) if pretrain else {}

    @property
    def evaluations(self) -> dict[str, Json]:
        return {name: stage.evaluation for name, stage in self.stages.items() if stage.evaluation}

    @property
    def readers(self) -> dict[str, Json]:
        """The evaluations of models that have read running text: only theirs say anything of it."""
        return {name: each for name, each in self.evaluations.items() if name != SCRATCH}

    def evaluated(self, key: str) -> dict[str, Any]:
        """Stage → what its evaluation has under `key`, for the stages that have something there."""
        return {name: each[key] for name, each in self.evaluations.items() if each.get(key)}

    @property
    def rule_seconds(self) -> dict[str, float]:
        """Rule → the time of all its attempts."""
        return {
            rule: sum(attempt["seconds"] for attempt in attempts)
            for rule, attempts in self.times.items()
        }


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
    run.gradients = read_gradients(folder / "gradients.json")
    run.pipeline = optional_json(folder / "pipeline.json")
    run.times = read_times(folder)
    tokenizers = [folder / name / "model" / "tokenizer.json" for name in names]
    run.tokenizer = next((path for path in tokenizers if path.is_file()), None)
    if {"data_dir", "results_dir", "run", "corpus", "tokenizer", "sources"} <= config.keys():
        paths = Paths(config)
        run.corpus = optional_json(Path(paths.corpus_manifest))
        run.tokens = optional_json(Path(paths.tokens))
        if config.get("sft", {}).get("enabled"):
            run.instructions = optional_json(Path(paths.instructions) / "manifest.json")
        if config.get("dpo", {}).get("enabled"):
            run.preferences = optional_json(Path(paths.preferences) / "manifest.json")
    return run


def read_gradients(path: Path) -> Json | None:
    """The gradient check of a run, if there is one."""
    found = optional_json(path)
    if found is None:
        return None
    remedy = "delete it, or let `nanoeuler check` write it again"
    check_seal(path, found, Origin("`nanoeuler check`", remedy))
    if not has_types(found, CHECKED) or not all(has_types(r, CHECKED_ROW) for r in found["rows"]):
        raise UserError(f"{path}: not a check of gradients; {remedy}")
    return found


def has_types(value: object, types: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(
        key in value and isinstance(value[key], kind) for key, kind in types.items()
    )


def in_order(stages: set[str]) -> list[str]:
    return [name for name in STAGES if name in stages] + sorted(stages - set(STAGES))


def kept_configuration(folder: Path) -> Json:
    """The configuration that the workflow of the run in `folder` kept; empty where it kept none,
    as for stages that were run by hand."""
    return (optional_json(folder / "pipeline.json") or {}).get("config", {})


def read_stage(folder: Path, name: str) -> Stage:
    path = folder / "evaluation" / f"{name}.json"
    stage = Stage(name, evaluation=optional_json(path))
    if stage.evaluation is not None:
        check_evaluation_seal(path, stage.evaluation)
        if not is_evaluation(stage.evaluation):
            raise UserError(
                f"{path}: not an evaluation; delete it, or let `nanoeuler evaluate` write it again"
            )
    model = folder / name / "model"
    if (model / CONFIG).is_file():
        stage.model_step = read_description(model)[1].get("info", {}).get("step")
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


def read_metrics(path: Path) -> list[Json]:
    """The lines of a metrics.jsonl; a last one that was cut off is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start:,}); delete it, or run the stage again"
        ) from error
    read = []
    for number, text in enumerate(lines, 1):
        mend = "take the line out, or run the stage again"
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(lines):  # being written, or cut off by a kill
                break
            raise UserError(
                f"{path}, line {number}: not valid JSON ({error.msg}); {mend}"
            ) from error
        if not isinstance(line, dict) or (not MEASURED.isdisjoint(line) and WHEN - line.keys()):
            keys = ", ".join(sorted(WHEN))
            raise UserError(f"{path}, line {number}: no measurement with {keys}; {mend}")
        read.append(line)
    return read


def optional_json(path: Path) -> Json | None:
    value = read_json(path) if path.is_file() else None
    if not isinstance(value, dict | None):
        raise UserError(
            f"{path}: not a JSON object; delete it and run the stage that writes it again"
        )
    return value
