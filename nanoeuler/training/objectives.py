"""The losses of the stages, −Σ w · logprob with weights w, and a pass that learns from one of them.

    token ids → residual stream → logits → loss → gradient of every parameter

The backward pass needs no more than the weights. Pretraining and fine-tuning know them beforehand.
Preferences find them from the log-probabilities of whole replies. What is done with the gradients
is the optimizer's matter; `state.py` has rows of a step pass, part by part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nanoeuler.backend.records import Array, LogitRows, ModelWeights, PreferencePairs
from nanoeuler.model.heads import gather_tokens, scatter_gradients
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.streams import StepRows


@dataclass
class MicroBatch:
    """B rows of a step on the engine, N = B · T tokens, M = N · K targets of K heads."""

    batch: Batch
    targets_NK: Array  # −1: no loss
    weights_BTK: Array  # of the targets; an objective that finds them writes them here
    further: Sequence[Array]  # other inputs of the objective
    logprobs_M: Array  # written: log-probability of each target
    lse_M: Array  # written: log-sum-exp of its logits
    accumulate: bool = False  # gradients are added to those that are there
    before_block: Callable[[int], None] | None = None  # see `Transformer.forward`
    after_block: Callable[[int], None] | None = None  # see `Transformer.backward_blocks`


class Objective(Protocol):
    """The loss of a stage."""

    def first_head_weight(self, rows: StepRows) -> float:
        """The divisor of the step's sum for head 0, which gives the loss that is reported."""
        ...

    def learn(
        self, model: Transformer, rows: MicroBatch, gradients: ModelWeights, losses_2: Array
    ) -> None:
        """Forward and backward pass: write `gradients`, and add the loss of all heads and of head
        0 to `losses` (float64).

        It always uses the same arrays and looks at no value, so that a device can record it.
        """
        ...


class KnownWeights:
    """Nats per target, by the weights that the rows bring along."""

    def first_head_weight(self, rows: StepRows) -> float:
        return float(rows.weights[..., 0].sum(dtype=np.float64))

    def learn(
        self, model: Transformer, rows: MicroBatch, gradients: ModelWeights, losses_2: Array
    ) -> None:
        ops, heads, K = model.backend, model.heads, model.config.mtp_heads
        # token ids → residual stream
        buffers = model.forward(rows.batch, training=True, before_block=rows.before_block)
        targets_NK, weights_NK = rows.targets_NK, rows.weights_BTK.reshape(-1, K)
        few = ops.few_targets(targets_NK)
        if few is not None:  # as in fine-tuning: the heads take the tokens with targets alone
            targets_NK, weights_NK = targets_NK[few], weights_NK[few]
            gather_tokens(buffers, few)
        targets_M, weights_M = targets_NK.reshape(-1), weights_NK.reshape(-1)
        logprobs_M, lse_M = rows.logprobs_M[: len(targets_M)], rows.lse_M[: len(targets_M)]
        # residual stream → logits → log-probabilities, and back again
        for tokens in heads.parts(buffers, len(targets_NK)):
            m = slice(tokens.start * K, tokens.stop * K)
            logits = heads.logits(model.training_weights.heads, buffers, tokens)
            found = logprobs_M[m], lse_M[m]
            ops.cross_entropy_with_gradient(LogitRows(logits, targets_M[m], *found, weights_M[m]))
            model.backward_heads(buffers, gradients, tokens, accumulate=rows.accumulate)
        ops.add_losses(logprobs_M.reshape(-1, K), weights_NK, losses_2)
        if few is not None:
            scatter_gradients(buffers, few)
        # residual stream → parameters
        model.backward_blocks(
            rows.batch, buffers, gradients, accumulate=rows.accumulate, after_block=rows.after_block
        )


@dataclass(frozen=True)
class PreferenceLoss:
    """The chosen reply of a pair should gain on the rejected one: see the op `preference`.

    Rows bring spans, reference, scales and shares.
    """

    margin: float
    smoothing: float

    def first_head_weight(self, rows: StepRows) -> float:
        return 1.0  # the shares of a step's pairs sum to 1

    def learn(
        self, model: Transformer, rows: MicroBatch, gradients: ModelWeights, losses_2: Array
    ) -> None:
        ops, heads, K = model.backend, model.heads, model.config.mtp_heads
        buffers = model.forward(rows.batch, training=True, before_block=rows.before_block)
        targets_M, weights_M = rows.targets_NK.reshape(-1), rows.weights_BTK.reshape(-1)
        logprobs_M, lse_M = rows.logprobs_M[: len(targets_M)], rows.lse_M[: len(targets_M)]
        parts = heads.parts(buffers, len(rows.targets_NK))
        for tokens in parts:
            m = slice(tokens.start * K, tokens.stop * K)
            logits = heads.logits(model.training_weights.heads, buffers, tokens)
            ops.cross_entropy(LogitRows(logits, targets_M[m], logprobs_M[m], lse_M[m]))
        ops.preference(
            logprobs_M.reshape(rows.weights_BTK.shape),
            PreferencePairs(*rows.further),
            self.margin,
            self.smoothing,
            rows.weights_BTK,
            losses_2,
        )
        for tokens in parts:
            m = slice(tokens.start * K, tokens.stop * K)
            if len(parts) > 1:  # their buffer has those of the last part
                logits = heads.logits(model.training_weights.heads, buffers, tokens)
            found = logprobs_M[m], lse_M[m]
            ops.cross_entropy_backward(LogitRows(logits, targets_M[m], *found, weights_M[m]))
            model.backward_heads(buffers, gradients, tokens, accumulate=rows.accumulate)
        model.backward_blocks(
            rows.batch, buffers, gradients, accumulate=rows.accumulate, after_block=rows.after_block
        )
