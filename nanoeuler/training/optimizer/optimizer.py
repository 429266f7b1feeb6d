"""The interface of an optimizer to the training loop, checkpoints and memory estimates."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, FlatState
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import storage_elements, tensor_table


class Optimizer(Protocol):
    """Moves a part of the parameters of one model, with tensors of its own."""

    tensors: dict[str, Array]
    """Its state by name: flat float32 arrays, each of them the part laid out by the tensor table. A
    checkpoint saves them; the padding stays zero."""

    def update(self, flat: FlatState, scalars: Array) -> None:
        """Move the parameters by the gradients, unless loss or gradient are not finite.

        `flat` has the part alone; `scalars` are those of `Backend.begin_update`. No value is
        looked at on the host, so that an engine may record the update.
        """


class OptimizerSettings(Protocol):
    """An optimizer's constants, from which one is made for a model."""

    tensor_powers: ClassVar[Mapping[str, int]]
    """Names of the tensors that it keeps, each as large as the parameters, and the power of the
    gradient that each grows with: 1 for a mean of gradients, 2 for one of their squares."""

    tolerance: ClassVar[Mapping[str, float]]
    """By an engine's precision: relative error of parameters after three updates at rates of about
    0.1, at most: see `check_updates.py`."""

    @property
    def clip_norm(self) -> float:
        """Norm of the whole gradient, at most: a longer one is shortened to it."""

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> Optimizer:
        """An optimizer of a part of the flat buffers, at its beginning. No matrix of a block is
        cut."""


def state_bytes(config: ModelConfig, settings: type[OptimizerSettings]) -> int:
    """Bytes of parameters, gradients and the optimizer's tensors, all in float32."""
    return 4 * (2 + len(settings.tensor_powers)) * storage_elements(tensor_table(config))


def checkpoint_bytes(parameters: int, settings: type[OptimizerSettings]) -> int:
    """Bytes of a checkpoint of that many parameters, with the optimizer's tensors."""
    return 4 * (1 + len(settings.tensor_powers)) * parameters
