"""AdamW (Loshchilov & Hutter 2019) with the gradient's norm clipped."""

from collections.abc import Collection, Mapping
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
    # float32 in every precision
    tolerance: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("fp64", "fp32", "tf32", "bf16", "fp8"), 1e-6
    )

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
        scalars = self.ops.begin_update(
            flat.gradients, schedule_2, losses_2, report_2, self.constants, self.clip_norm
        )
        self.move(flat, scalars)

    def move(self, flat: FlatState, scalars: Array) -> None:
        """The update itself, by the scalars of `begin_update`."""
        first, second = self.tensors.values()
        self.ops.adamw(flat, first, second, self.decays, self.constants, scalars)


def decay_slices(config: ModelConfig, left_out: Collection[str] = ()) -> list[tuple[slice, bool]]:
    """The flat buffer as runs of tensors that decay and tensors that don't.

    `left_out` names tensors that belong to no run.
    """
    runs: list[tuple[slice, bool]] = []
    previous = None
    for tensor in tensor_table(config):
        if tensor.name in left_out:
            previous = None
            continue
        if runs and previous == tensor.decay:
            runs[-1] = (slice(runs[-1][0].start, tensor.stop), tensor.decay)
        else:
            runs.append((slice(tensor.offset, tensor.stop), tensor.decay))
        previous = tensor.decay
    return runs
