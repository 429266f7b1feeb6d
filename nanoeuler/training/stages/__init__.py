"""The jobs of the stages that nanoeuler.config.stages declares, a module for each section."""

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from nanoeuler.config.stages import Stage

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend
    from nanoeuler.training.distributed.group import Group
    from nanoeuler.training.job import Job
    from nanoeuler.training.stages.inputs import Inputs


class StageModule(Protocol):
    def job(self, inputs: "Inputs[Any]", backend: "Backend", group: "Group") -> "Job":
        """All that `train` needs to know. Raises `UserError` for input that does not fit."""

    def check_fit(self, inputs: "Inputs[Any]", template: str) -> Any:
        """Counts of the records that the context holds (a dataclass), of a stage that learns from
        records. Raises `UserError` where those are too few."""


def module_of(stage: Stage) -> StageModule:
    return cast(StageModule, importlib.import_module(f"{__name__}.{stage.section}"))
