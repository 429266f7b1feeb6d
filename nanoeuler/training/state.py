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

    def __init__(self, config: ModelConfig, backend: Any, parameters: np.ndarray, optimizer: AdamW, recompute: bool = False):
        """`parameters` is a flat float32 buffer on the host. `recompute`: see `Transformer`."""
        self.config, self.backend, self.optimizer = config, backend, optimizer
        self.parameters = backend.from_host(parameters)
        self.gradients, self.first_moment, self.second_moment = (backend.zeros(parameters.shape) for _ in range(3))
        self.model = Transformer(config, self.parameters, backend, recompute)
        self.gradient_views = ModelViews(config, self.gradients)
        self.decay_slices = decay_slices(config)
        self.step = 0
        self.schedule = backend.zeros((2,), np.float64)  # learning rate, updates done before this step
        self.results = backend.zeros((4,), np.float64)  # one array, so that a device is read once
        self.losses = self.results[:2]  # nats of this step: of all heads, and of head 0 by its weights
        self.report = self.results[2:]  # the gradient's norm before clipping; updates left out so far
        self.inputs: StepInputs | None = None
        self.recorded: Any = None

    def train_step(self, rows: StepRows, micro_batch_rows: int, learning_rate: float) -> StepResult:
        """One optimizer update on all rows of a step, `micro_batch_rows` at a time."""
        self.stage(rows)
        self.start(micro_batch_rows, learning_rate)
        return self.finish()

    def stage(self, rows: StepRows) -> None:
        """Hand over the rows of the next step; on a device they are copied while it is still at work on the last."""
        if self.inputs is None or self.inputs.shape != rows.targets.shape:
            self.inputs, self.recorded = StepInputs(self.backend, rows.targets.shape), None
        self.first_head_weight = float(rows.weights[..., 0].sum(dtype=np.float64))
        self.backend.load(self.inputs.flat, [rows.ids, rows.positions, rows.starts, rows.targets, rows.weights])

    def start(self, micro_batch_rows: int, learning_rate: float) -> None:
        """Begin the update on the rows that were handed over; a device computes while the host goes on."""
        self.started_weight = self.first_head_weight
        self.backend.load(self.schedule, [np.array([learning_rate, self.step])])
        self.recorded = self.backend.run(lambda: self.compute(micro_batch_rows), self.recorded)

    def finish(self) -> StepResult:
        """What the update that was begun last has come to."""
        loss, first_head_loss, norm, _ = self.backend.to_host(self.results).tolist()
        if np.isfinite(loss) and np.isfinite(norm):  # otherwise `update` changed nothing
            self.step += 1
        return StepResult(loss, first_head_loss / self.started_weight if self.started_weight else 0.0, norm)

    def compute(self, micro_batch_rows: int) -> None:
        """The work of a step, always on the same arrays and without a look at any value, so that a device can record it."""
        self.losses[...] = 0
        for start in range(0, self.inputs.shape[0], micro_batch_rows):
            self.accumulate(slice(start, start + micro_batch_rows), accumulate=start > 0)
        self.update()

    def accumulate(self, part: slice, accumulate: bool) -> None:
        """Forward and backward of some rows into the gradients and the losses."""
        ops, model, inputs = self.backend, self.model, self.inputs
        batch = Batch(inputs.ids[part], inputs.positions[part], inputs.starts[part])
        targets, weights = inputs.targets[part].reshape(-1), inputs.weights[part].reshape(-1)
        logprobs, lse, heads = inputs.logprobs[: len(targets)], inputs.lse[: len(targets)], self.config.mtp_heads
        buffers = model.forward(batch, training=True)
        for tokens in model.head_parts(buffers):
            losses = slice(tokens.start * heads, tokens.stop * heads)
            ops.cross_entropy_with_gradient(model.all_logits(buffers, tokens), targets[losses], weights[losses], logprobs[losses], lse[losses])
            model.backward_heads(buffers, tokens, self.gradient_views, accumulate or tokens.start > 0)
        ops.add_losses(logprobs.reshape(-1, heads), weights.reshape(-1, heads), self.losses)
        model.backward_layers(batch, buffers, self.gradient_views, accumulate)

    def update(self) -> None:
        flat = self.parameters, self.model.working, self.gradients, self.first_moment, self.second_moment
        self.backend.update(*flat, self.decay_slices, self.optimizer, self.schedule, self.losses, self.report)


class StepInputs:
    """A step's rows on the backend, and room for the log-probability and log-sum-exp of every target."""

    def __init__(self, backend: Any, shape: tuple[int, int, int]):
        """`shape` is (rows, T, K)."""
        self.shape, (rows, length, heads) = shape, shape
        tokens = rows * length
        self.flat = backend.zeros((tokens * (3 + 2 * heads),), np.int32)  # one array, so that a device is sent it in one copy
        self.ids, self.positions, self.starts = (self.flat[part * tokens : (part + 1) * tokens].reshape(rows, length) for part in range(3))
        targets, weights = self.flat[3 * tokens : (3 + heads) * tokens], self.flat[(3 + heads) * tokens :]
        self.targets, self.weights = targets.reshape(shape), weights.view(np.float32).reshape(shape)
        self.logprobs, self.lse = (backend.zeros((tokens * heads,)) for _ in range(2))


def decay_slices(config: ModelConfig) -> list[tuple[slice, bool]]:
    """The flat buffer as runs of tensors that decay (matrices) and don't (norms)."""
    runs: list[tuple[slice, bool]] = []
    for tensor in tensor_table(config):
        if runs and runs[-1][1] == tensor.decay:
            runs[-1] = (slice(runs[-1][0].start, tensor.stop), tensor.decay)
        else:
            runs.append((slice(tensor.offset, tensor.stop), tensor.decay))
    return runs
