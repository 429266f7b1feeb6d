"""Read what a run has left in its folders. Whatever is not there is None or empty: a report of half a run is still one."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoeuler.config.paths import Paths
from nanoeuler.errors import UserError
from nanoeuler.evaluation.comparison import is_evaluation
from nanoeuler.files import read_json
from nanoeuler.model.files import CONFIG, read_description
from nanoeuler.timing import read_times

STAGES = ("pretrain", "sft", "dpo", "sft_scratch")
"""In the order in which a report shows them; stages of other names follow."""
MEASURED = {"finished", "validation", "loss"}
"""What makes a line of metrics.jsonl a measurement; the header has none of these."""
WHEN = {"step", "tokens", "seconds"}
"""What every measurement says."""
CHECKED = {"rows", "tolerance", "passed", "largest_error", "quick"}
"""What a check of gradients says."""


@dataclass
class Stage:
    """One training stage: its metrics.jsonl, taken apart, and the evaluation of its model."""

    name: str
    header: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    validations: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    model_step: int | None = (
        None  # of training, that the weights of its model folder are from; None where there is none yet
    )

    @property
    def last(self) -> dict[str, Any]:
        """The newest line that knows step, tokens and seconds."""
        return self.finished or max(
            [*self.steps, *self.validations], key=lambda line: line["step"], default={}
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """The section of the configuration that the stage trained by, as its header keeps it."""
        return self.header.get("config", {}).get(self.header.get("stage"), {})

    @property
    def handed_on(self) -> dict[str, Any] | None:
        """The held-out measurement of the model that the stage hands on, which with `keep: best` need not be the last; the last while there is none.

        That of step 0 is of the model before.
        """
        measured = {line["step"]: line["validation"] for line in self.validations if line["step"]}
        return measured.get(self.model_step, next(reversed(measured.values()), None))

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the logged steps: a pause of the machine does not count."""
        return self.median("tokens_per_second")

    @property
    def mfu(self) -> float | None:
        """Share of the device's peak that the model's matrix products and attention reach; None where the peak is not known."""
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
    gradients: dict[str, Any] | None = None
    corpus: dict[str, Any] | None = None  # manifest of the corpus
    tokens: dict[str, Any] | None = None  # manifest of the token shards
    instructions: dict[str, Any] | None = None  # manifest of the instruction records
    preferences: dict[str, Any] | None = None  # manifest of the preference pairs
    pipeline: dict[str, Any] | None = None  # which rules need which, as the workflow keeps it
    times: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # rule → its attempts
    tokenizer: Path | None = None  # tokenizer.json of the first model that has one

    @property
    def bigram(self) -> dict[str, float]:
        """Held-out bits per byte of a bigram model, per source: the floor."""
        return (
            self.stages["pretrain"].header.get("bigram_bits_per_byte", {})
            if "pretrain" in self.stages
            else {}
        )

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        return {name: stage.evaluation for name, stage in self.stages.items() if stage.evaluation}


def gather(config: Mapping[str, Any], folder: Path) -> Run:
    """Read the run in `folder` (results/<run>). Raises `UserError` when it holds no stage, or a file is damaged."""
    measured = {path.parent.name for path in folder.glob("*/metrics.jsonl")} | {
        path.stem for path in folder.glob("evaluation/*.json")
    }
    names = [name for name in STAGES if name in measured] + sorted(measured - set(STAGES))
    if not names:
        raise UserError(
            f"{folder}: holds neither a stage's metrics.jsonl nor an evaluation; give the folder of a run, such as results/demo, after training"
        )
    run = Run(
        name=config.get("run", folder.name),
        config=config,
        stages={name: read_stage(folder, name) for name in names},
    )
    run.gradients = optional_json(folder / "gradients.json")
    if run.gradients is not None and CHECKED - run.gradients.keys():
        raise UserError(
            f"{folder / 'gradients.json'}: not a check of gradients; delete it, or let `nanoeuler check` write it again"
        )
    run.pipeline, run.times = optional_json(folder / "pipeline.json"), read_times(folder)
    run.tokenizer = next(
        (path for name in names if (path := folder / name / "model" / "tokenizer.json").is_file()),
        None,
    )
    if {"data_dir", "results_dir", "run", "corpus", "tokenizer", "sources"} <= config.keys():
        paths = Paths(config)
        run.corpus, run.tokens = (
            optional_json(Path(paths.corpus_manifest)),
            optional_json(Path(paths.tokens)),
        )
        if config.get("sft", {}).get("enabled"):
            run.instructions = optional_json(Path(paths.instructions) / "manifest.json")
        if config.get("dpo", {}).get("enabled"):
            run.preferences = optional_json(Path(paths.preferences) / "manifest.json")
    return run


def kept_configuration(folder: Path) -> dict[str, Any]:
    """The configuration that the workflow of the run in `folder` had; empty where it kept none, as for stages that were run by hand."""
    return (optional_json(folder / "pipeline.json") or {}).get("config", {})


def read_stage(folder: Path, name: str) -> Stage:
    stage = Stage(name, evaluation=optional_json(folder / "evaluation" / f"{name}.json"))
    if stage.evaluation is not None and not is_evaluation(stage.evaluation):
        raise UserError(
            f"{folder / 'evaluation' / name}.json: not an evaluation; delete it, or let `nanoeuler evaluate` write it again"
        )
    model = folder / name / "model"
    if (model / CONFIG).is_file():
        stage.model_step = read_description(model)[1].get("info", {}).get("step")
    path = folder / name / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start:,}); delete it, or run the stage again"
        ) from error
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(lines):  # being written, or cut off by a kill
                break
            raise UserError(
                f"{path}, line {number}: not valid JSON ({error.msg}); take the line out, or run the stage again"
            ) from error
        if not isinstance(line, dict) or (not MEASURED.isdisjoint(line) and WHEN - line.keys()):
            raise UserError(
                f"{path}, line {number}: no measurement with {', '.join(sorted(WHEN))}; take the line out, or run the stage again"
            )
        if "finished" in line:
            stage.finished = line
        elif "validation" in line:
            stage.validations.append(line)
        elif "loss" in line:
            stage.steps.append(line)
        else:
            stage.header = line
    return stage


def optional_json(path: Path) -> dict[str, Any] | None:
    value = read_json(path) if path.is_file() else None
    if not isinstance(value, dict | None):
        raise UserError(
            f"{path}: not a JSON object; delete it and run the stage that writes it again"
        )
    return value
