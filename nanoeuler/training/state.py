"""The state of training (parameters, gradients, the optimizer's tensors), and one step of it."""

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.programs import Program
from nanoeuler.backend.records import Array, FlatState, ModelWeights
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import model_weights
from nanoeuler.model.heads import gather_tokens, scatter_gradients
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.distributed.shards import Buckets, buckets, cuts
from nanoeuler.training.distributed.vectors import Vectors
from nanoeuler.training.objectives import KnownWeights, Objective
from nanoeuler.training.optimizer.optimizer import OptimizerSettings
from nanoeuler.training.streams import StepRows


@dataclass
class StepResult:
    """The result of an update."""

    loss: float  # Σ −weight · logprob over all heads: nats per target
    first_head_loss: float  # mean over head 0's targets: nats per token
    gradient_norm: float  # before clipping

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers; otherwise the update changed nothing."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


@dataclass
class Replica:
    """One share of a step's rows: a model on an engine, with gradients and losses of its own."""

    model: Transformer
    gradients: Array
    views: ModelWeights  # of the gradients
    losses: Array  # (2,) float64: nats of all heads, and of head 0, each by its weights


class TrainingState:
    """A model in training on an engine, and the number of updates done."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        parameters: np.ndarray,
        optimizer: OptimizerSettings,
        *,
        recompute: bool = False,
        objective: Objective | None = None,
        group: Group = ALONE,
    ):
        """`parameters` is a flat float32 buffer on the host. `recompute`: see `Transformer`.

        `objective` is `KnownWeights` unless given. The ranks of `group` share the rows of a step
        and the optimizer's work.
        """
        self.config, self.backend, self.group = config, backend, group
        self.cuts = cuts(config, group.size)
        self.part = slice(self.cuts[group.rank], self.cuts[group.rank + 1])
        self.objective = objective or KnownWeights()
        self.step = 0
        self.parameters = backend.from_host(parameters)
        self.optimizer_settings = optimizer
        self.optimizer = optimizer.make(config, backend, self.part)
        backend.scales = {}
        self.results = backend.zeros((4,), np.float64)  # one array, so that a device is read once
        self.report = self.results[2:]  # see `Optimizer.update`
        self.replicas = [
            self.make_replica(engine, index, recompute=recompute)
            for index, engine in enumerate(backend.replicas(len(parameters)))
        ]
        self.model, self.gradients = self.replicas[0].model, self.replicas[0].gradients
        self.flat = self.own_part()
        one_by_one = group.size > 1 and len(self.replicas) == 1  # else they are added up first
        whole = Buckets({}, [slice(0, len(parameters))])
        self.buckets = buckets(config) if one_by_one else whole
        copied = self.model.working is not self.parameters
        self.vectors = Vectors(config, backend, self.cuts) if copied and group.size > 1 else None
        """Where there is a working copy, that is what ranks send each other, and these. Then each
        knows the other float32 parameters of its own part alone."""
        self.schedule = backend.feed([np.zeros(2)])
        self.inputs: StepInputs | None = None

    def make_replica(self, engine: Backend, index: int, *, recompute: bool) -> Replica:
        gradients = engine.zeros(self.parameters.shape)
        losses = engine.zeros((2,), np.float64) if index else self.results[:2]
        model = Transformer(self.config, self.parameters, engine, recompute=recompute)
        return Replica(model, gradients, model_weights(self.config, gradients), losses)

    def own_part(self) -> FlatState:
        """The part of the flat buffers that this rank updates."""
        parameters, working = self.parameters[self.part], self.model.working
        copied = working is not self.parameters
        return FlatState(
            parameters, working[self.part] if copied else parameters, self.gradients[self.part]
        )

    def restart(self, parameters: np.ndarray) -> None:
        """Go back to step 0 and the given parameters (as in `__init__`)."""
        for tensor in self.optimizer.tensors.values():
            tensor[...] = 0
        self.parameters[...] = self.backend.from_host(parameters)
        self.model.refresh()
        self.backend.scales = {}
        self.step = 0

    def load(self, tensors: Mapping[str, np.ndarray], step: int) -> None:
        """Take over `tensors` (as of `tensors()`) at the given step."""
        self.parameters[...] = self.backend.from_host(tensors["parameters"])
        for name, array in self.optimizer.tensors.items():
            array[...] = self.backend.from_host(tensors[name][self.part])
        self.model.refresh()
        self.step = step

    def whole_parameters(self) -> np.ndarray:
        """All parameters, on the host. The ranks call it together."""
        self.group.gather(self.parameters, self.cuts)
        return self.backend.to_host(self.parameters)

    def tensors(self) -> dict[str, np.ndarray]:
        """All that a checkpoint keeps, by name, on the host: flat arrays laid out by the tensor
        table, which stay as they are in the next step. The ranks call it together."""
        found = {"parameters": self.whole_parameters()}
        for name, part in self.optimizer.tensors.items():
            whole = part
            if self.group.size > 1:
                whole = self.backend.empty(self.parameters.shape)
                whole[self.part] = part
                self.group.gather(whole, self.cuts)
            found[name] = self.backend.to_host(whole)
        return found if self.backend.device else {name: a.copy() for name, a in found.items()}

    def train_step(self, rows: StepRows, micro_batch_rows: int, learning_rate: float) -> StepResult:
        """One optimizer update on all rows of a step, `micro_batch_rows` at a time."""
        self.stage(rows)
        self.start(micro_batch_rows, learning_rate)
        return self.finish()

    def stage(self, rows: StepRows) -> None:
        """Hand over the rows of the next step, of which each rank takes its share.

        A device may still be at work on the last one.
        """
        self.staged_weight = self.objective.first_head_weight(rows)
        rows = rows.share(self.group.rank, self.group.size)
        if self.inputs is None or self.inputs.shape != rows.targets.shape:
            self.inputs = StepInputs(self.backend, arrays_of(rows))
        self.inputs.feed.load(*arrays_of(rows))

    def start(self, micro_batch_rows: int, learning_rate: float) -> None:
        """Begin the update on the rows that were handed over; a device computes while the host
        goes on."""
        inputs = self.inputs
        assert inputs is not None, "stage comes first"
        self.started_weight = self.staged_weight
        self.schedule.load(np.array([learning_rate, self.step]))
        if inputs.program is None or inputs.micro_batch_rows != micro_batch_rows:
            state = weakref.proxy(self)  # which holds the program, by way of its inputs
            inputs.micro_batch_rows = micro_batch_rows
            inputs.program = self.backend.program(
                lambda: state.compute(micro_batch_rows), training=True
            )
        inputs.program.run()

    @property
    def recorded(self) -> bool:
        """Whether a step like the next one was made before."""
        return self.inputs is not None and self.inputs.program is not None

    def rehearse(self, micro_batch_rows: int) -> None:
        """Compute the gradients of the rows that were handed over, on this rank alone.

        Nothing is moved, but a device finds out how to run fast what it will run often.
        """
        known = self.backend.scales
        program = self.backend.program(
            lambda: self.compute_gradients(micro_batch_rows), training=True
        )
        program.run()
        if self.backend.scales and not known:  # which were learned in another precision
            program.run()
        self.backend.scales = known

    def finish(self) -> StepResult:
        """The result of the update that was started last."""
        loss, first_head_loss, norm, _ = self.backend.to_host(self.results).tolist()
        weight = self.started_weight
        result = StepResult(loss, first_head_loss / weight if weight else 0.0, norm)
        self.step += result.finite
        return result

    def compute(self, micro_batch_rows: int) -> None:
        """The work of a step, always on the same arrays and without a look at any value."""
        self.compute_gradients(micro_batch_rows, self.add_up)
        self.update()

    def add_up(self, block: int) -> None:
        """Begin the sums over all ranks of the gradients that are complete above a block."""
        if parts := self.buckets.early.get(block):
            self.group.begin_reduce(self.gradients, self.cuts, parts)

    def compute_gradients(
        self, micro_batch_rows: int, completed: Callable[[int], None] | None = None
    ) -> None:
        """Gradients and losses of the rows handed over, each replica a share of them.

        `completed`: see `Transformer.backward_blocks`; it is told of all rows together.
        """
        assert self.inputs is not None
        count = self.inputs.shape[0]
        parts = [slice(s, s + micro_batch_rows) for s in range(0, count, micro_batch_rows)]
        replicas = self.replicas[: len(parts)]
        weights = self.backend.training_weights(self.model.weights)

        def work(index: int) -> None:
            replica = replicas[index]
            replica.model.training_weights = weights
            replica.losses[...] = 0
            own = parts[index :: len(replicas)]
            for number, part in enumerate(own):
                tell = completed if number == len(own) - 1 else None
                self.accumulate(part, replica, accumulate=number > 0, completed=tell)

        self.backend.side_by_side(len(replicas), work)
        # always in the same order: which replica is faster changes no bit
        self.backend.sum_into(self.gradients, [replica.gradients for replica in replicas[1:]])
        self.backend.sum_into(replicas[0].losses, [replica.losses for replica in replicas[1:]])

    def accumulate(
        self,
        part: slice,
        replica: Replica,
        *,
        accumulate: bool,
        completed: Callable[[int], None] | None,
    ) -> None:
        """Forward and backward of some rows into the gradients and the losses of a replica."""
        assert self.inputs is not None
        ops, model, batch = replica.model.backend, replica.model, self.inputs.batch(part)
        buffers = model.forward(batch, training=True)
        K = self.config.mtp_heads
        targets_NK, weights, further = self.inputs.targets(part)
        logprobs_R, lse_R = self.inputs.target_arrays(part)
        few = ops.few_targets(targets_NK) if self.objective.known else None
        if few is not None:  # as in fine-tuning: the heads take the tokens with targets alone
            targets_NK, weights = targets_NK[few], weights.reshape(-1, K)[few]
            gather_tokens(buffers, few)
        targets_R, weights_R = targets_NK.reshape(-1), weights.reshape(-1)
        logprobs_R, lse_R = logprobs_R[: len(targets_R)], lse_R[: len(targets_R)]
        logprobs = logprobs_R.reshape(weights.shape)
        heads, head_weights = model.heads, model.training_weights.heads
        parts = heads.parts(buffers, len(targets_NK))
        if not self.objective.known:
            for tokens in parts:
                r = slice(tokens.start * K, tokens.stop * K)
                logits = heads.logits(head_weights, buffers, tokens)
                ops.cross_entropy(logits, targets_R[r], logprobs_R[r], lse_R[r])
            self.objective.weigh(ops, logprobs, weights, further, replica.losses)
        for tokens in parts:
            r = slice(tokens.start * K, tokens.stop * K)
            if self.objective.known or len(parts) > 1:
                logits = heads.logits(head_weights, buffers, tokens)
            else:
                logits = heads.logit_rows(buffers)
            if self.objective.known:
                ops.cross_entropy_with_gradient(
                    logits, targets_R[r], weights_R[r], logprobs_R[r], lse_R[r]
                )
            else:
                ops.cross_entropy_backward(logits, targets_R[r], weights_R[r], lse_R[r])
            adding = accumulate or tokens.start > 0
            heads.backward(
                model.weights.heads, replica.views.heads, buffers, tokens, accumulate=adding
            )
        if self.objective.known:
            self.objective.weigh(ops, logprobs, weights, further, replica.losses)
        if few is not None:
            scatter_gradients(buffers, few)
        model.backward_blocks(
            batch, buffers, replica.views, accumulate=accumulate, completed=completed
        )

    def update(self) -> None:
        """Let the optimizer move the parameters by the gradients of all ranks.

        They stay as they are where loss or gradient are not finite.
        """
        group, losses_2 = self.group, self.replicas[0].losses
        group.begin_reduce(self.gradients, self.cuts, self.buckets.late)
        group.finish_reduce()
        squares = self.backend.squares(self.flat.gradients)
        group.sum(losses_2, squares)
        if (noted := self.backend.noted) is not None:
            group.largest(noted)
        schedule_2 = self.schedule.arrays[0]
        self.optimizer.update(self.flat, squares, schedule_2, losses_2, self.report)
        group.gather(self.model.working, self.cuts)
        if self.vectors:
            self.vectors.send(self.parameters, group)


class StepInputs:
    """A step's rows on the engine, and two arrays with a number for each of their targets."""

    def __init__(self, backend: Backend, arrays: list[np.ndarray]):
        self.shape = arrays[3].shape  # (rows, T, K)
        self.feed = backend.feed(arrays)
        self.logprobs, self.lse = (backend.zeros((math.prod(self.shape),)) for _ in range(2))
        self.program: Program | None = None
        self.micro_batch_rows = 0

    def batch(self, part: slice) -> Batch:
        """Some rows, for the model."""
        return Batch(*(array[part] for array in self.feed.arrays[:3]))

    def targets(self, part: slice) -> tuple[Array, Array, list[Array]]:
        """Targets (N, K) of some rows, their weights (rows, T, K), and what the objective adds."""
        targets, weights, *further = (array[part] for array in self.feed.arrays[3:])
        return targets.reshape(-1, self.shape[2]), weights, further

    def target_arrays(self, part: slice) -> tuple[Array, Array]:
        """Log-probability and log-sum-exp from the first target of some rows on."""
        first = part.start * self.shape[1] * self.shape[2]
        return self.logprobs[first:], self.lse[first:]


def arrays_of(rows: StepRows) -> list[np.ndarray]:
    """The arrays of a step's rows, in the order in which `StepInputs` takes them apart."""
    return [rows.ids, rows.positions, rows.starts, rows.targets, rows.weights, *rows.further]
