"""The stages of training, in the order in which a run trains them."""

from collections.abc import Iterable, Mapping
from typing import Any

from nanoeuler.config.stages.stage import Records, Stage

INSTRUCTIONS = Records("instructions", "record", "instructions")
PREFERENCES = Records("preferences", "pair", "preference pairs")

PRETRAIN = Stage(
    name="pretrain",
    section="pretrain",
    title="pretrained",
    verb="trained on",
    help="train a model on token shards",
    message="Pretraining on {tokens} tokens",
)
SFT = Stage(
    name="sft",
    section="sft",
    title="fine-tuned",
    verb="fine-tuned on",
    help="tune a model on instructions",
    message="Fine-tuning the pretrained model on instructions",
    records=INSTRUCTIONS,
    parents=("pretrain",),
)
SFT_SCRATCH = SFT._replace(
    name="sft_scratch",
    title="tuned from scratch",
    message="Fine-tuning random weights, to show what pretraining is worth",
    parents=(),
    switch="baseline_from_scratch",
    is_baseline=True,
)
DPO = Stage(
    name="dpo",
    section="dpo",
    title="aligned",
    verb="aligned with",
    help="align a model with preferences",
    message="Aligning the model with preferences",
    records=PREFERENCES,
    parents=("sft", "pretrain"),
    needs_parent=True,
    contexts_in_row=2,
    scores_with_parent=True,
)
STAGES = (PRETRAIN, SFT, SFT_SCRATCH, DPO)
BY_NAME = {stage.name: stage for stage in STAGES}
BY_SECTION = {stage.section: stage for stage in STAGES if not stage.is_baseline}
KINDS = {stage.records.kind: stage.records for stage in STAGES if stage.records}
RECORD_STAGES = {
    kind: next(stage for stage in STAGES if stage.records == records)
    for kind, records in KINDS.items()
}
"""The first stage that learns from each kind of records; its section names the data set."""


def stages_of(config: Mapping[str, Any]) -> list[Stage]:
    """The stages of a run of `config`."""
    return [stage for stage in STAGES if stage.is_part_of(config)]


def parent_of(stage: Stage, config: Mapping[str, Any]) -> Stage | None:
    """The stage of a run of `config` whose model `stage` starts from, unless that is given."""
    parents = (BY_NAME[name] for name in stage.parents)
    return next((parent for parent in parents if parent.is_part_of(config)), None)


def is_baseline(name: str) -> bool:
    """Whether the stage's model is only there to be compared with."""
    return name in BY_NAME and BY_NAME[name].is_baseline


def result_of(names: Iterable[str]) -> str:
    """The stage whose model is the result of a run, the last one that is no baseline, or ""."""
    return max(reversed([*names]), key=lambda name: not is_baseline(name), default="")


def in_order(names: Iterable[str]) -> list[str]:
    """The stages as a report shows them: baselines behind, then stages of other names."""
    shown = sorted(BY_NAME, key=is_baseline)
    return sorted(names, key=lambda name: (shown.index(name) if name in shown else 99, name))
