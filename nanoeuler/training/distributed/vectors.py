"""The parameters that all ranks read in float32, where products read a copy in fewer bits."""

from collections.abc import Sequence

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import tensor_table
from nanoeuler.training.distributed.group import Group


class Vectors:
    """The weights and biases of norms, few as they are, of all ranks' parts."""

    def __init__(self, config: ModelConfig, backend: Backend, cuts: Sequence[int]):
        tensors = [tensor for tensor in tensor_table(config) if len(tensor.shape) == 1]
        offsets_V = np.concatenate([np.arange(each.offset, each.stop) for each in tensors])
        self.cuts = np.searchsorted(offsets_V, cuts).tolist()
        self.offsets_V = backend.from_host(offsets_V)
        self.values_V = backend.zeros(offsets_V.shape)

    def send(self, parameters: Array, group: Group) -> None:
        """Let all ranks have those in the parts of the others."""
        own = slice(self.cuts[group.rank], self.cuts[group.rank + 1])
        parameters.take(self.offsets_V[own], out=self.values_V[own])
        group.gather(self.values_V, self.cuts)
        parameters[self.offsets_V] = self.values_V
