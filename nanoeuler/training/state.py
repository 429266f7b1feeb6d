"""The state of training (parameters, gradients, the optimizer's tensors), and one step of it."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
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
from nanoeuler.training.distributed.parameters import (
    BEFORE_ALL,
    Arrivals,
    SharedParameters,
    wait_for_all,
)
from nanoeuler.training.distributed.shards import Buckets, buckets
from nanoeuler.training.objectives import KnownWeights, Objective
from nanoeuler.training.optimizer.optimizer import OptimizerSettings
from nanoeuler.training.streams import StepRows

NOTHING_SENT: Arrivals = {}


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
        rounded_sums: bool = False,
    ):
        """`parameters` is a flat float32 buffer on the host. `recompute`: see `Transformer`.

        `objective` is `KnownWeights` unless given. The ranks of `group` share the rows of a step
        and the optimizer's work; `rounded_sums`: they add up their gradients in bfloat16.
        """
        self.config, self.backend, self.group = config, backend, group
        self.rounded_sums = rounded_sums
        self.objective = objective or KnownWeights()
        self.step = 0
        self.shared = SharedParameters(config, backend, group, parameters)
        self.parameters, part = self.shared.read, self.shared.part
        self.optimizer_settings = optimizer
        self.optimizer = optimizer.make(config, backend, part)
        backend.scales = {}
        self.results = backend.zeros((4,), np.float64)  # one array, so that a device is read once
        self.report = self.results[2:]  # see `Optimizer.update`
        self.replicas = [
            self.make_replica(engine, index, recompute=recompute)
            for index, engine in enumerate(backend.replicas(len(parameters)))
        ]
        self.model, self.gradients = self.replicas[0].model, self.replicas[0].gradients
        own, working = self.shared.own, self.model.working
        copied = self.shared.vectors is not None or working is not self.parameters
        self.flat = FlatState(own, working[part] if copied else own, self.gradients[part])
        one_by_one = group.size > 1 and len(self.replicas) == 1  # else they are added up first
        all_late = Buckets({}, [slice(0, len(parameters))])
        self.buckets = buckets(config) if one_by_one else all_late
        self.schedule = backend.feed([np.zeros(2)])
        self.inputs: StepInputs | None = None

    def make_replica(self, engine: Backend, index: int, *, recompute: bool) -> Replica:
        gradients = engine.zeros(self.parameters.shape)
        losses = engine.zeros((2,), np.float64) if index else self.results[:2]
        model = Transformer(
            self.config, self.parameters, engine, norms=self.shared.vectors, recompute=recompute
        )
        return Replica(model, gradients, model_weights(self.config, gradients), losses)

    def restart(self, parameters: np.ndarray) -> None:
        """Go back to step 0 and the given parameters (as in `__init__`)."""
        for tensor in self.optimizer.tensors.values():
            tensor[...] = 0
        self.load_parameters(parameters)
        self.backend.scales = {}
        self.step = 0

    def load(self, tensors: Mapping[str, np.ndarray], step: int) -> None:
        """Take over `tensors` (as of `tensors()`) at the given step."""
        self.load_parameters(tensors["parameters"])
        for name, array in self.optimizer.tensors.items():
            array[...] = self.backend.from_host(tensors[name][self.shared.part])
        self.step = step

    def load_parameters(self, parameters: np.ndarray) -> None:
        self.shared.load(parameters)
        self.model.refresh()

    def whole_parameters(self) -> np.ndarray:
        """All parameters, on the host. The ranks call it together."""
        return self.whole(self.shared.own)

    def tensors(self) -> dict[str, np.ndarray]:
        """All that a checkpoint keeps, by name, on the host: flat arrays laid out by the tensor
        table. The ranks call it together."""
        parts = {"parameters": self.shared.own, **self.optimizer.tensors}
        return {name: self.whole(part) for name, part in parts.items()}

    def whole(self, part: Array) -> np.ndarray:
        return self.shared.whole(part, self.gradients)  # which mean nothing between two steps

    def settle(self) -> None:
        """Let all ranks have the weights of the last update, which otherwise the next step sends.
        The ranks call it together before they compute with the model."""
        wait_for_all(self.shared.send(self.buckets))

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
        self.compute_gradients(micro_batch_rows, self.shared.send(self.buckets), self.add_up)
        self.update()

    def add_up(self, block: int) -> None:
        """Begin the sums over all ranks of the gradients that are complete above a block."""
        if parts := self.buckets.early.get(block):
            self.begin_sums(parts)

    def begin_sums(self, parts: Sequence[slice]) -> None:
        self.shared.begin_sums(self.gradients, parts, rounded=self.rounded_sums)

    def compute_gradients(
        self,
        micro_batch_rows: int,
        arrived: Arrivals = NOTHING_SENT,
        completed: Callable[[int], None] | None = None,
    ) -> None:
        """Gradients and losses of the rows handed over, each replica a share of them.

        `arrived`: see `SharedParameters.send`. `completed`: see `Transformer.backward_blocks`; it
        is told of all rows together.
        """
        assert self.inputs is not None

        def wait_for_block(block: int) -> None:
            if block in arrived:
                arrived[block]()

        if self.shared.vectors is None or self.backend.prepares_weights:
            wait_for_all(arrived)  # without vectors, a norm comes with the block behind its reader
        else:
            wait_for_block(BEFORE_ALL)
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
                waiting = wait_for_block if number == 0 else None
                tell = completed if number == len(own) - 1 else None
                self.accumulate(part, replica, waiting, tell, accumulate=number > 0)

        self.backend.side_by_side(len(replicas), work)
        # always in the same order: which replica is faster changes no bit
        self.backend.sum_into(self.gradients, [replica.gradients for replica in replicas[1:]])
        self.backend.sum_into(replicas[0].losses, [replica.losses for replica in replicas[1:]])

    def accumulate(
        self,
        part: slice,
        replica: Replica,
        needing: Callable[[int], None] | None,
        completed: Callable[[int], None] | None,
        *,
        accumulate: bool,
    ) -> None:
        """Forward and backward of some rows into the gradients and the losses of a replica.

        `needing`: see `Transformer.forward`; `completed`: see `Transformer.backward_blocks`.
        """
        assert self.inputs is not None
        ops, model, batch = replica.model.backend, replica.model, self.inputs.batch(part)
        buffers = model.forward(batch, training=True, needing=needing)
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

        They stay as they are where loss or gradient are not finite. The next step, or `settle`,
        sends them to the other ranks.
        """
        group, losses_2 = self.group, self.replicas[0].losses
        self.begin_sums(self.buckets.late)
        group.finish_reduce()
        squares = self.backend.squares(self.flat.gradients)
        group.sum(losses_2, squares)
        if (noted := self.backend.noted) is not None:
            group.largest(noted)
        schedule_2 = self.schedule.arrays[0]
        self.optimizer.update(self.flat, squares, schedule_2, losses_2, self.report)
        self.shared.note_update()


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
