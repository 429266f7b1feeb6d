"""The interface of an optimizer to the training loop, checkpoints and memory estimates."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, FlatState
from nanoeuler.config.settings import Training
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import storage_elements, trained_table
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.lion import Lion
from nanoeuler.training.optimizer.muon import Muon


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
    def adamw(self) -> AdamW:
        """Those that it shares with AdamW."""

    def expected(self, gradients: Sequence[np.ndarray], matrices: int) -> np.ndarray:
        """The update by which a tensor moves after these gradients, per unit of learning rate and
        without weight decay: written a second time, for `check_updates.py`.

        It is so many matrices of a block, one below the other; 0: something else.
        """

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> Optimizer:
        """A fresh optimizer of a part of the flat buffers, which cuts no matrix of a block."""


def state_bytes(config: ModelConfig, settings: type[OptimizerSettings]) -> int:
    """Bytes of the parameters that are trained, of their gradients and of the optimizer's tensors,
    all in float32."""
    return 4 * (2 + len(settings.tensor_powers)) * storage_elements(trained_table(config))


def checkpoint_bytes(parameters: int, settings: type[OptimizerSettings]) -> int:
    """Bytes of a checkpoint of that many parameters, with the optimizer's tensors."""
    return 4 * (1 + len(settings.tensor_powers)) * parameters


def optimizer_of(settings: Training) -> OptimizerSettings:
    s = settings
    adamw = AdamW(s.beta1, s.beta2, s.epsilon, s.weight_decay, s.clip_norm, s.embedding_rate)
    if s.optimizer == "muon":
        return Muon(s.muon_momentum, adamw)
    return Lion(adamw) if s.optimizer == "lion" else adamw
