"""The portions of a step's rows that a rank computes, and how they are added up.

Usually there is one for each replica of the engine. With lanes, sums have one order, whoever
computes what: see lanes.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, ModelWeights
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.training.distributed.group import Group
from nanoeuler.training.lanes import cells_of


@dataclass
class Portion:
    """What is learnt of some rows of a step."""

    gradients: Array
    views: ModelWeights  # of the gradients
    losses: Array  # (2,) float64: nats of all heads, and of head 0, each by its weights


class Portions:
    """A portion for each replica, which take the rows in turns."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        group: Group,
        losses_2: Array,
        of_portions: Sequence[Array],
    ):
        """`losses`: where the sums of all go; `of_portions`: where those of each go."""
        self.backend, self.group, self.losses_2 = backend, group, losses_2
        self.own = []
        for losses in of_portions:
            gradients = backend.zeros((FlatBuffer.trained_elements(config),))
            self.own.append(Portion(gradients, model_weights(config, gradients), losses))

    @classmethod
    def of_replicas(
        cls, config: ModelConfig, backend: Backend, group: Group, losses_2: Array, count: int
    ) -> "Portions":
        further = [backend.zeros((2,), np.float64) for _ in range(1, count)]
        return cls(config, backend, group, losses_2, [losses_2, *further])

    def __getitem__(self, number: int) -> Portion:
        return self.own[number]

    @property
    def to_sum(self) -> list[Array]:
        """The gradients that are to be added up before those of other ranks, as by
        `Runtime.add_neighbours`."""
        return [self.own[0].gradients]

    def shares(self, parts: Sequence[slice]) -> list[Sequence[slice]]:
        """The rows of each portion, of the parts that are computed at once."""
        count = min(len(self.own), len(parts))
        return [parts[number::count] for number in range(count)]

    def finish(self, used: int) -> None:
        """Add up what was learnt of so many portions, always in the same order: which replica is
        faster changes no bit."""
        first, *others = self.own[:used]
        runtime = self.backend.runtime
        runtime.sum_into(first.gradients, [other.gradients for other in others])
        runtime.sum_into(first.losses, [other.losses for other in others])

    def add_up(self, part: slice) -> Array:
        """The losses ← those of all ranks. Returns numbers whose sum is that of the squares of all
        gradients, of which this rank has a part."""
        squares = self.backend.squares(self.own[0].gradients[part])
        self.group.sum(self.losses_2, squares)
        return squares


class Lanes(Portions):
    """A portion for each of this rank's lanes, which are neighbours."""

    def __init__(
        self, config: ModelConfig, backend: Backend, group: Group, losses_2: Array, lanes: int
    ):
        """`lanes`: of all ranks together."""
        count = lanes // group.size
        self.ours = slice(group.rank * count, (group.rank + 1) * count)
        self.lane_losses = backend.zeros((lanes, 2), np.float64)
        super().__init__(config, backend, group, losses_2, list(self.lane_losses[self.ours]))
        self.cells = cells_of(config)
        self.cell_squares = backend.zeros((len(self.cells),), np.float64)

    @property
    def to_sum(self) -> list[Array]:
        return [portion.gradients for portion in self.own]

    def shares(self, parts: Sequence[slice]) -> list[Sequence[slice]]:
        each = len(parts) // len(self.own)
        return [parts[first : first + each] for first in range(0, len(parts), each)]

    def finish(self, used: int) -> None:
        """Lanes are added up part by part: see `SharedParameters`."""

    def add_up(self, part: slice) -> Array:
        """Each number has zeros on all ranks but one, so that no sum of theirs is rounded."""
        self.lane_losses[: self.ours.start] = self.lane_losses[self.ours.stop :] = 0
        self.cell_squares[...] = 0
        ours = [n for n, cell in enumerate(self.cells) if part.start <= cell.start < part.stop]
        mine = slice(ours[0], ours[-1] + 1)
        arrays = self.own[0].gradients, self.cells[mine], self.cell_squares[mine]
        self.backend.squares_of_cells(*arrays)
        self.group.sum(self.lane_losses.reshape(-1), self.cell_squares)
        self.losses_2[...] = 0
        self.backend.runtime.sum_into(self.losses_2, list(self.lane_losses))
        return self.cell_squares
