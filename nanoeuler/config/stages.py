"""The stages of training, in the order in which a run trains them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nanoeuler.config.settings import Training


class Records(NamedTuple):
    """A kind of data set that a stage learns from, as its settings, options and texts name it."""

    kind: str
    """The key of the stage's section that names the data set, and its section of the sources."""
    unit: str
    noun: str


class Stage(NamedTuple):
    name: str
    """Its rule, and its folder results/<run>/<name>."""
    section: str
    """Its section of the configuration, its subcommand, and its module in training.stages."""
    title: str
    """Its model in reports, such as "fine-tuned"."""
    verb: str
    """Verb of the report in front of an amount of data: "fine-tuned on"."""
    help: str
    """Its subcommand in a line."""
    message: str
    """Message of the workflow at its start; keys of its section stand in braces."""
    revision: int = 1
    """Raised when the stage's code changes what it writes."""
    records: Records | None = None
    """Data that it learns from; without any, the corpus."""
    parents: tuple[str, ...] = ()
    """Stages whose model it starts from: the first that is part of the run. Without any the weights
    are random."""
    needs_parent: bool = False
    """It does not start from random weights."""
    contexts_in_row: int = 1
    """Contexts that a row holds, and a batch at least."""
    scores_with_parent: bool = False
    """Its parent scores all of its records once, before it trains."""
    switch: str | None = None
    """A key of its section without which it is not part of the run."""
    is_baseline: bool = False
    """Its model is there to be compared with, and is not the run's result."""

    @property
    def settings(self) -> "type[Training]":
        """The class of its section."""
        from dataclasses import fields

        from nanoeuler.config.settings import Configuration, Training  # slow for `--help`
        from nanoeuler.storage.section import section_type

        kinds = {item.name: section_type(item) for item in fields(Configuration)}
        kind = kinds[self.section]
        assert kind is not None
        assert issubclass(kind, Training)
        return kind

    @property
    def pairs(self) -> bool:
        """Whether it learns from pairs, of which one side is preferred."""
        return self.records is not None and self.records.unit == "pair"

    def is_part_of(self, config: Mapping[str, Any]) -> bool:
        """Whether a run of `config` has this stage."""
        section = config.get(self.section, {"enabled": False})
        switched_on = self.switch is None or section.get(self.switch, False)
        return bool(switched_on and section.get("enabled", True))


INSTRUCTIONS = Records("instructions", "record", "instructions")
PREFERENCES = Records("preferences", "pair", "preference pairs")
PROBLEMS = Records("problems", "record", "problems")

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
RL = Stage(
    name="rl",
    section="rl",
    title="rewarded",
    verb="rewarded for",
    help="let a model learn from the rewards of its own replies",
    message="Learning from the rewards of sampled replies",
    records=PROBLEMS,
    parents=("dpo", "sft", "pretrain"),
    needs_parent=True,
)
STAGES = (PRETRAIN, SFT, SFT_SCRATCH, DPO, RL)
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
