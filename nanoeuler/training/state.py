"""What training changes: parameters and AdamW's moments, one flat buffer each, and one step that moves them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.backend.flat_places import places
from nanoeuler.model.flat import ModelViews
from nanoeuler.model.spec import ModelConfig, tensor_table
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.objectives import KnownWeights, Objective
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


@dataclass
class Worker:
    """One share of a step's rows: an engine's model with gradients and losses of its own. The first has the state's own."""

    model: Transformer
    gradients: Any
    views: ModelViews
    losses: Any  # as in TrainingState


class TrainingState:
    """Parameters, gradients and moments of a model on a backend, and the number of updates done."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Any,
        parameters: np.ndarray,
        optimizer: AdamW,
        recompute: bool = False,
        objective: Objective | None = None,
    ):
        """`parameters` is a flat float32 buffer on the host. `recompute`: see `Transformer`. `objective` is `KnownWeights` unless given."""
        self.config, self.backend, self.optimizer, self.objective = (
            config,
            backend,
            optimizer,
            objective or KnownWeights(),
        )
        self.parameters = backend.from_host(parameters)
        self.gradients, self.first_moment, self.second_moment = (
            backend.zeros(parameters.shape) for _ in range(3)
        )
        self.model = Transformer(config, self.parameters, backend, recompute)
        self.gradient_views = ModelViews(config, self.gradients)
        self.decay_slices = decay_slices(config)
        self.step = 0
        self.schedule = backend.zeros(
            (2,), np.float64
        )  # learning rate, updates done before this step
        self.results = backend.zeros((4,), np.float64)  # one array, so that a device is read once
        self.losses = self.results[
            :2
        ]  # nats of this step: of all heads, and of head 0 by its weights
        self.report = self.results[
            2:
        ]  # the gradient's norm before clipping; updates left out so far
        self.inputs: StepInputs | None = None
        self.recorded: Any = None
        self.workers = [Worker(self.model, self.gradients, self.gradient_views, self.losses)]
        engines = backend.workers(len(parameters)) if hasattr(backend, "workers") else []
        if len(engines) > 1:  # threads that share the rows of a step
            self.workers = [self.worker(engine, first=engine is engines[0]) for engine in engines]
        self.transposes = (
            backend.transposes(self.model.weights) if hasattr(backend, "transposes") else None
        )
        if self.transposes:
            for worker in self.workers:
                worker.model.training_weights = self.transposes.weights

    def worker(self, engine: Any, first: bool) -> Worker:
        gradients = self.gradients if first else engine.zeros(self.gradients.shape)
        losses = self.losses if first else engine.zeros((2,), np.float64)
        model = Transformer(self.config, self.parameters, engine, self.model.recompute)
        return Worker(model, gradients, ModelViews(self.config, gradients), losses)

    def train_step(self, rows: StepRows, micro_batch_rows: int, learning_rate: float) -> StepResult:
        """One optimizer update on all rows of a step, `micro_batch_rows` at a time."""
        self.stage(rows)
        self.start(micro_batch_rows, learning_rate)
        return self.finish()

    def stage(self, rows: StepRows) -> None:
        """Hand over the rows of the next step; on a device they are copied while it is still at work on the last."""
        if self.inputs is None or self.inputs.shape != rows.targets.shape:
            self.inputs, self.recorded = StepInputs(self.backend, rows), None
        self.first_head_weight = self.objective.first_head_weight(rows)
        self.backend.load(
            self.inputs.flat,
            [rows.ids, rows.positions, rows.starts, rows.targets, rows.weights, *rows.further],
        )

    def start(self, micro_batch_rows: int, learning_rate: float) -> None:
        """Begin the update on the rows that were handed over; a device computes while the host goes on."""
        self.started_weight = self.first_head_weight
        self.backend.load(self.schedule, [np.array([learning_rate, self.step])])
        self.recorded = self.backend.run(
            lambda: self.compute(micro_batch_rows), self.recorded, often=True
        )

    def finish(self) -> StepResult:
        """What the update that was begun last has come to."""
        loss, first_head_loss, norm, _ = self.backend.to_host(self.results).tolist()
        if np.isfinite(loss) and np.isfinite(norm):  # otherwise `update` changed nothing
            self.step += 1
        return StepResult(
            loss, first_head_loss / self.started_weight if self.started_weight else 0.0, norm
        )

    def compute(self, micro_batch_rows: int) -> None:
        """The work of a step, always on the same arrays and without a look at any value, so that a device can record it."""
        parts = [
            slice(start, start + micro_batch_rows)
            for start in range(0, self.inputs.shape[0], micro_batch_rows)
        ]
        workers = self.workers[: len(parts)]
        self.transpose()

        def work(index: int) -> None:
            workers[index].losses[...] = 0
            for number, part in enumerate(parts[index :: len(workers)]):
                self.accumulate(part, accumulate=number > 0, worker=workers[index])

        if len(workers) == 1:
            work(0)
        else:  # each into gradients of its own, added in their order: who is faster changes no bit
            self.backend.together(len(workers), work)
            self.backend.sum_into(self.gradients, [worker.gradients for worker in workers[1:]])
            for worker in workers[1:]:
                self.losses += worker.losses
        self.update()

    def transpose(self) -> None:
        """What the forward pass reads of the parameters as they are now, where an engine wants it laid out another way."""
        if self.transposes:
            self.transposes.refresh()

    def accumulate(self, part: slice, accumulate: bool, worker: Worker | None = None) -> None:
        """Forward and backward of some rows into the gradients and the losses of a worker, the first unless given.

        Where only few tokens have a target, as in fine-tuning, an engine that may look at values makes the logits of those alone.
        """
        if worker is None:
            self.transpose()
            worker = self.workers[0]
        ops, model, inputs = worker.model.backend, worker.model, self.inputs
        batch = Batch(inputs.ids[part], inputs.positions[part], inputs.starts[part])
        targets, weights, K = (
            inputs.targets[part].reshape(-1),
            inputs.weights[part],
            self.config.mtp_heads,
        )
        room = slice(
            part.start * inputs.shape[1] * inputs.shape[2], None
        )  # workers are at work at the same time
        logprobs, lse = inputs.logprobs[room][: len(targets)], inputs.lse[room][: len(targets)]
        further = [array[part] for array in inputs.further]
        buffers = model.forward(batch, training=True)
        few = None
        if (
            self.objective.known
            and hasattr(ops, "few_targets")
            and (few := ops.few_targets(targets.reshape(-1, K))) is not None
        ):
            targets, weights = targets.reshape(-1, K)[few].reshape(-1), weights.reshape(-1, K)[few]
            logprobs, lse = logprobs[: len(targets)], lse[: len(targets)]
            model.gather_hidden(buffers, few)
        parts = [
            (tokens, slice(tokens.start * K, tokens.stop * K))
            for tokens in model.head_parts(buffers, len(targets) // K)
        ]
        if self.objective.known:
            for tokens, losses in parts:
                logits = model.all_logits(buffers, tokens)
                ops.cross_entropy_with_gradient(
                    logits,
                    targets[losses],
                    weights.reshape(-1)[losses],
                    logprobs[losses],
                    lse[losses],
                )
                model.backward_heads(buffers, tokens, worker.views, accumulate or tokens.start > 0)
            self.objective.weigh(
                ops, logprobs.reshape(weights.shape), weights, further, worker.losses
            )
        else:
            for tokens, losses in parts:
                ops.cross_entropy(
                    model.all_logits(buffers, tokens),
                    targets[losses],
                    logprobs[losses],
                    lse[losses],
                )
            self.objective.weigh(
                ops, logprobs.reshape(weights.shape), weights, further, worker.losses
            )
            for tokens, losses in parts:
                logits = (
                    model.all_logits(buffers, tokens)
                    if len(parts) > 1
                    else model.logit_rows(buffers)
                )
                ops.cross_entropy_backward(
                    logits, targets[losses], weights.reshape(-1)[losses], lse[losses]
                )
                model.backward_heads(buffers, tokens, worker.views, accumulate or tokens.start > 0)
        if few is not None:
            model.scatter_hidden(buffers, few)
        model.backward_layers(batch, buffers, worker.views, accumulate)

    def update(self) -> None:
        flat = (
            self.parameters,
            self.model.working,
            self.gradients,
            self.first_moment,
            self.second_moment,
        )
        self.backend.update(
            *flat, self.decay_slices, self.optimizer, self.schedule, self.losses, self.report
        )


class StepInputs:
    """A step's rows on the backend, and room for the log-probability and log-sum-exp of every target."""

    def __init__(self, backend: Any, rows: StepRows):
        self.shape = shape = rows.targets.shape  # (rows, T, K)
        arrays = [rows.ids, rows.positions, rows.starts, rows.targets, rows.weights, *rows.further]
        parts = places(arrays)
        self.flat = backend.zeros(
            (parts[-1].stop,), np.uint8
        )  # one array, so that a device is sent it in one copy
        views = [
            self.flat[part].view(array.dtype).reshape(array.shape)
            for part, array in zip(parts, arrays, strict=True)
        ]
        self.ids, self.positions, self.starts, self.targets, self.weights, *self.further = views
        self.logprobs, self.lse = (backend.zeros((math.prod(shape),)) for _ in range(2))


def decay_slices(config: ModelConfig) -> list[tuple[slice, bool]]:
    """The flat buffer as runs of tensors that decay (matrices) and don't (norms)."""
    runs: list[tuple[slice, bool]] = []
    for tensor in tensor_table(config):
        if runs and runs[-1][1] == tensor.decay:
            runs[-1] = (slice(runs[-1][0].start, tensor.stop), tensor.decay)
        else:
            runs.append((slice(tensor.offset, tensor.stop), tensor.decay))
    return runs
