"""The losses of the stages, as the weights w of −Σ w · logprob.

The backward pass needs no more than these weights. Pretraining and fine-tuning know them
beforehand. Preferences find them from the log-probabilities of whole replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, PreferencePairs
from nanoeuler.training.streams import StepRows


class Objective(Protocol):
    """The loss of a stage."""

    known: ClassVar[bool]
    """Do the rows bring the weights along? Then one pass over the logits gives log-probabilities
    and gradient."""

    def first_head_weight(self, rows: StepRows) -> float:
        """The divisor of the step's sum for head 0, which gives the loss that is reported."""
        ...

    def weigh(
        self,
        ops: Backend,
        logprobs_RTK: Array,
        weights_RTK: Array,
        further: Sequence[Array],
        losses_2: Array,
    ) -> None:
        """Write the weights of some rows' targets, and add the loss of all heads and of head 0.

        It always uses the same arrays and looks at no value, so that a device can record it.
        """
        ...


class KnownWeights:
    """Nats per target, by the weights that the rows bring along."""

    known: ClassVar[bool] = True

    def first_head_weight(self, rows: StepRows) -> float:
        return float(rows.weights[..., 0].sum(dtype=np.float64))

    def weigh(
        self,
        ops: Backend,
        logprobs_RTK: Array,
        weights_RTK: Array,
        further: Sequence[Array],
        losses_2: Array,
    ) -> None:
        heads = logprobs_RTK.shape[-1]
        ops.add_losses(logprobs_RTK.reshape(-1, heads), weights_RTK.reshape(-1, heads), losses_2)


@dataclass(frozen=True)
class PreferenceLoss:
    """The chosen reply of a pair should gain on the rejected one: see the op `preference`.

    Rows bring spans, reference, scales and shares.
    """

    margin: float
    smoothing: float
    known: ClassVar[bool] = False

    def first_head_weight(self, rows: StepRows) -> float:
        return 1.0  # the shares of a step's pairs sum to 1

    def weigh(
        self,
        ops: Backend,
        logprobs_RTK: Array,
        weights_RTK: Array,
        further: Sequence[Array],
        losses_2: Array,
    ) -> None:
        pairs = PreferencePairs(*further)
        ops.preference(logprobs_RTK, pairs, self.margin, self.smoothing, weights_RTK, losses_2)
