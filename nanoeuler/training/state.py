"""What training changes: parameters and AdamW's moments, one flat buffer each, and one step that moves them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.model.flat import ModelViews
from nanoeuler.model.spec import ModelConfig, tensor_table
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.streams import StepRows


@dataclass(frozen=True)
class AdamW:
    """The optimizer's constants; the rate comes from the schedule."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float


@dataclass
class StepResult:
    loss: float  # Σ −weight · logprob over all heads: nats per target
    first_head_loss: float  # mean over head 0's targets: nats per token
    gradient_norm: float  # before clipping


class TrainingState:
    """Parameters, gradients and moments of a model on a backend, and the number of updates done."""

    def __init__(self, config: ModelConfig, backend: Any, parameters: np.ndarray, optimizer: AdamW):
        """`parameters` is a flat float32 buffer on the host."""
        self.config, self.backend, self.optimizer = config, backend, optimizer
        self.parameters = backend.from_host(parameters)
        self.gradients, self.first_moment, self.second_moment = (backend.zeros(parameters.shape) for _ in range(3))
        self.model = Transformer(config, self.parameters, backend)
        self.gradient_views = ModelViews(config, self.gradients)
        self.decay_slices = decay_slices(config)
        self.step = 0

    def train_step(self, rows: StepRows, micro_batch_rows: int, learning_rate: float) -> StepResult:
        """One optimizer update on all rows of a step, `micro_batch_rows` at a time."""
        loss, first_head_loss = 0.0, 0.0
        first_head_weight = float(rows.weights[..., 0].sum(dtype=np.float64))
        for start in range(0, len(rows.ids), micro_batch_rows):
            nats_RTK = self.accumulate(rows, slice(start, start + micro_batch_rows), accumulate=start > 0)
            loss += float(nats_RTK.sum(dtype=np.float64))
            first_head_loss += float(nats_RTK[..., 0].sum(dtype=np.float64))
        norm = self.backend.squared_norm(self.gradients) ** 0.5
        result = StepResult(loss, first_head_loss / first_head_weight if first_head_weight else 0.0, norm)
        if np.isfinite(loss) and np.isfinite(norm):
            self.update(learning_rate, min(1.0, self.optimizer.clip_norm / (norm + 1e-6)))
        return result

    def accumulate(self, rows: StepRows, part: slice, accumulate: bool) -> np.ndarray:
        """Forward and backward of some rows into the gradients; returns weight × nats of every target, (rows, T, K)."""
        ops, model = self.backend, self.model
        batch = Batch(*(ops.from_host(array[part]) for array in (rows.ids, rows.positions, rows.starts)))
        targets, weights = ops.from_host(rows.targets[part].reshape(-1)), ops.from_host(rows.weights[part].reshape(-1))
        buffers = model.forward(batch, training=True)
        logits = model.all_logits(buffers)
        logprobs, lse = ops.empty(targets.shape), ops.empty(targets.shape)
        ops.cross_entropy(logits, targets, logprobs, lse)
        ops.cross_entropy_backward(logits, targets, weights, lse)
        model.backward(batch, buffers, self.gradient_views, accumulate)
        return -ops.to_host(logprobs).reshape(rows.targets[part].shape) * rows.weights[part]

    def update(self, learning_rate: float, gradient_scale: float) -> None:
        self.step += 1
        o = self.optimizer
        for part, decays in self.decay_slices:
            self.backend.adamw(
                self.parameters[part],
                self.gradients[part],
                self.first_moment[part],
                self.second_moment[part],
                o.weight_decay if decays else 0.0,
                learning_rate,
                (o.beta1, o.beta2),
                o.epsilon,
                self.step,
                gradient_scale,
            )


def decay_slices(config: ModelConfig) -> list[tuple[slice, bool]]:
    """The flat buffer as runs of tensors that decay (matrices) and don't (norms)."""
    runs: list[tuple[slice, bool]] = []
    for tensor in tensor_table(config):
        if runs and runs[-1][1] == tensor.decay:
            runs[-1] = (slice(runs[-1][0].start, tensor.stop), tensor.decay)
        else:
            runs.append((slice(tensor.offset, tensor.stop), tensor.decay))
    return runs
