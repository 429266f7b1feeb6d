"""AdamW (Loshchilov & Hutter 2019) with the gradient's norm clipped."""

from dataclasses import dataclass
from typing import ClassVar

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AdamWConstants, Array, FlatState
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import storage_elements, tensor_table


@dataclass(frozen=True)
class AdamW:
    """The constants; the learning rate comes from the schedule."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    tensor_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def make(self, config: ModelConfig, ops: Backend) -> "AdamWOptimizer":
        return AdamWOptimizer(self, config, ops)


class AdamWOptimizer:
    """Both moments of every parameter. Matrices decay, norms don't."""

    def __init__(self, settings: AdamW, config: ModelConfig, ops: Backend):
        elements = storage_elements(tensor_table(config))
        self.ops, self.clip_norm = ops, settings.clip_norm
        self.constants = AdamWConstants(
            settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay
        )
        self.decays = decay_slices(config)
        self.tensors: dict[str, Array] = {
            name: ops.zeros((elements,)) for name in settings.tensor_names
        }

    def update(self, flat: FlatState, schedule_2: Array, losses_2: Array, report_2: Array) -> None:
        ops, constants = self.ops, self.constants
        scalars = ops.begin_update(
            flat.gradients, schedule_2, losses_2, report_2, constants, self.clip_norm
        )
        first, second = self.tensors.values()
        ops.adamw(flat, first, second, self.decays, constants, scalars)


def decay_slices(config: ModelConfig) -> list[tuple[slice, bool]]:
    """The flat buffer as runs of tensors that decay and tensors that don't."""
    runs: list[tuple[slice, bool]] = []
    for tensor in tensor_table(config):
        if runs and runs[-1][1] == tensor.decay:
            runs[-1] = (slice(runs[-1][0].start, tensor.stop), tensor.decay)
        else:
            runs.append((slice(tensor.offset, tensor.stop), tensor.decay))
    return runs
