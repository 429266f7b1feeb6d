"""A stage of training: one declaration, over which everything that lists stages iterates."""

from collections.abc import Mapping
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
    """A stage of training."""

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
