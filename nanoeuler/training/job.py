"""A training stage at work: everything in which one stage differs from another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nanoeuler.config.rules import lasting
from nanoeuler.config.settings import Training
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig, coarsened
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.transformer import Transformer
from nanoeuler.storage.files import canonical_json, sha256_text
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.lanes import lanes_of, require_lanes
from nanoeuler.training.objectives import KnownWeights, Objective
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.streams import Stream

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend


Scores = dict[str, float]
"""A measurement on held-out data: values by name."""


class Memory(Protocol):
    """A state beside that of training, such as samples that several steps learn from."""

    @property
    def saved(self) -> dict[str, Any]:
        """The state as a checkpoint keeps it (JSON)."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go back to the state that a checkpoint holds, or, with an empty one, to the beginning."""


@dataclass
class Job:
    """All that `train` needs to know of a stage."""

    stage: str
    output: Path  # results/<run>/<stage>
    config: ModelConfig
    settings: Training
    inputs: Mapping[str, Any]  # what else decides the weights, for the fingerprint
    stream: Stream
    schedule: Schedule
    backend: "Backend"
    initial: Callable[[], np.ndarray]  # what is trained, at its start: flat, of `model_after(0)`
    validate: Callable[[Transformer], Scores]
    score: Callable[[Scores], float]  # the value to compare measurements by; lower is better
    tokenizer_path: Path
    template: str | None
    calculator: bool = False  # do the records, or those of the parent, have calls of it?
    prepare: Callable[[], None] = lambda: None  # what all ranks compute before training
    sample: Callable[[Transformer], str] | None = None  # a text to show with each measurement
    objective: Objective = field(default_factory=KnownWeights)
    parent: Path | None = None  # folder of the model that it starts from
    base: Frozen | None = None  # the weights beneath adapters, where those are trained
    memory: Memory | None = None  # what the stage remembers from one step to the next
    grow_at: Sequence[int] = ()  # the steps after which the model is refined, up to `config`
    tuned: bool = False  # starts from a trained model, which is measured before the first step
    patience: int | None = None  # measurements without improvement that end the stage
    facts: dict[str, Any] = field(default_factory=dict)  # for the first line of metrics.jsonl
    info: dict[str, Any] = field(default_factory=dict)  # for the model folder: licences, parent
    group: Group = ALONE  # the ranks that share each step

    @cached_property
    def fingerprint(self) -> str:
        candidate = self.backend.candidate
        return fingerprint(self.stage, self.settings, candidate=candidate, **self.inputs)

    def model_after(self, steps: int) -> ModelConfig:
        """The model that has just done that many steps. If it grows, then before the next."""
        return coarsened(self.config, sum(at >= steps for at in self.grow_at))

    @property
    def rows(self) -> dict[str, Any]:
        """What decides the rows of each step, for those who ask later when something was read."""
        records = BY_SECTION[self.stage].records
        data = self.inputs[records.kind if records else "tokens"]
        hashes = [data] if isinstance(data, str) else data
        sizes = self.stream.row_count, self.stream.rows_per_step
        return row_facts(self.inputs["seed"], hashes, *sizes)

    @property
    def model_folder(self) -> Path:
        return self.output / "model"

    @property
    def adapter_folder(self) -> Path:
        """Folder of the adapters beside the model, where some are trained."""
        return self.output / "adapter"

    @property
    def rows_per_rank(self) -> int:
        """Rows of a step that each rank computes."""
        return -(-self.stream.rows_per_step // self.group.size)

    @cached_property
    def lanes(self) -> int:
        """Parts of a step whose sums have one order, see lanes.py; 0: it has none.

        Raises `UserError` where the ranks cannot share them.
        """
        if self.settings.reproducible is None:
            return 0
        if not self.backend.orders_sums:
            raise UserError(
                f"{self.stage}.reproducible: with --device {self.backend.name} "
                f"{self.backend.own_rounding}; leave it out, or take --device cpu"
            )
        rows, least = self.stream.rows_per_step, self.backend.runtime.least_lane_tokens
        lanes = lanes_of(rows, self.stream.length, least)
        rounded = self.settings.sums_precision != "fp32"
        require_lanes(self.stage, rows, lanes, self.group.size, least, rounded=rounded)
        return lanes

    @property
    def tokens_per_step(self) -> int:
        return self.stream.rows_per_step * self.stream.length


def row_facts(seed: int, data: Sequence[str], rows: int, rows_per_step: int) -> dict[str, Any]:
    """`Job.rows` of a stage whose epoch has `rows`, made of files with the hashes `data`."""
    named = " ".join(each[:12] for each in data)
    return {"seed": seed, "data": named, "rows": rows, "rows_per_step": rows_per_step}


DURATION = {"tokens", "epochs"}
LATER = {"lora", "reproducible", "short_rows_until"}
"""Keys whose null is what there was before them."""
BY_CONTENT = {"init_from", "old_tokens"}
"""Keys that name a folder or file; a hash of its content is among the inputs."""


def fingerprint(stage: str, settings: Training, **inputs: Any) -> str:
    """A hash of everything that can change a stage's weights.

    A run with the fingerprint of a checkpoint resumes from it, or only exports its model again when
    it was finished. Another fingerprint starts afresh. Without it, a run with a new learning rate
    would silently return the old weights.

    Hashed are the settings that can change the result, the stage's revision, and `inputs`.

    `inputs` (JSON values) are the model section, the seed, and hashes of data, tokenizer and
    parent. The duration is left out for a WSD schedule, since such a run can be made longer.
    """
    ignored = BY_CONTENT | (DURATION if settings.schedule == "wsd" else set())
    kept = lasting(asdict(settings), type(settings))
    content = {
        "stage": stage,
        "revision": BY_SECTION[stage].revision,
        "section": {
            key: value
            for key, value in kept.items()
            if key not in ignored and (key not in LATER or value is not None)
        },
        "inputs": inputs,
    }
    return sha256_text(canonical_json(content))
