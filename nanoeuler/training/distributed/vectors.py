"""The float32 parameters that all ranks read, where products read a copy in fewer bits."""

from collections.abc import Callable, Sequence

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import tensor_table
from nanoeuler.training.distributed.group import Group


class Vectors:
    """The weights and biases of norms, few as they are, of all ranks' parts.

    `vectors[name]` is a view of one.
    """

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        cuts: Sequence[int],
        rank: int,
        parameters: Array,
    ):
        """`parameters`: the flat buffer of all of them, float32, of which `rank` updates a part."""
        tensors = [tensor for tensor in tensor_table(config) if len(tensor.shape) == 1]
        offsets_V = np.concatenate([np.arange(each.offset, each.stop) for each in tensors])
        self.cuts = np.searchsorted(offsets_V, cuts).tolist()
        self.own = slice(self.cuts[rank], self.cuts[rank + 1])
        self.offsets_V = backend.from_host(offsets_V)
        self.offsets_in_part = backend.from_host(offsets_V[self.own] - cuts[rank])
        self.values_V = parameters[self.offsets_V]
        firsts = np.searchsorted(offsets_V, [each.offset for each in tensors]).tolist()
        self.views = {
            tensor.name: self.values_V[first : first + tensor.shape[0]]
            for tensor, first in zip(tensors, firsts, strict=True)
        }

    def __getitem__(self, name: str) -> Array:
        return self.views[name]

    def load(self, parameters: Array) -> None:
        """Take over those of all parameters."""
        self.values_V[...] = parameters[self.offsets_V]

    def update(self, part: Array) -> None:
        """Take over those in the rank's own part of the parameters."""
        part.take(self.offsets_in_part, out=self.values_V[self.own])

    def begin_gather(self, group: Group) -> Callable[[], None]:
        """See `Group.begin_gather`."""
        return group.begin_gather(self.values_V, self.cuts, [slice(0, len(self.values_V))])
