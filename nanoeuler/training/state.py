"""The state of training (parameters, gradients, the optimizer's tensors), and one step of it.

    rows → loss → gradients → update

A step's rows are computed a micro-batch at a time, each as its objective says (objectives.py). The
replicas of an engine and the ranks of a group share them. A device may record a step, so all of it
works on the same arrays and looks at no value.
"""

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, FlatState
from nanoeuler.backend.runtime import Program
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.distributed.parameters import SharedParameters
from nanoeuler.training.lanes import cells_of
from nanoeuler.training.objectives import KnownWeights, MicroBatch, Objective
from nanoeuler.training.optimizer.optimizer import OptimizerSettings
from nanoeuler.training.portions import Lanes, Portions
from nanoeuler.training.streams import StepRows


@dataclass
class StepResult:
    loss: float  # Σ −weight · logprob over all heads: nats per target
    first_head_loss: float  # mean over head 0's targets: nats per token
    gradient_norm: float  # before clipping

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers; otherwise the update changed nothing."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


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
        dropout: float = 0.0,
        base: Frozen | None = None,
        objective: Objective | None = None,
        group: Group = ALONE,
        rounded_sums: bool = False,
        lanes: int = 0,
    ):
        """`parameters` is a flat float32 buffer on the host of what is trained; `base` are the
        weights that adapters are trained on. `recompute`, `dropout`: see `Transformer`.

        `objective` is `KnownWeights` unless given. The ranks of `group` share the rows of a step
        and the optimizer's work; `rounded_sums`: they add up their gradients in bfloat16. `lanes`:
        those of a step whose sums have one order, see portions.py.
        """
        self.config, self.backend, self.group, self.base = config, backend, group, base
        self.runtime = backend.runtime
        self.objective = objective or KnownWeights()
        self.step, self.ordered = 0, lanes > 0
        elements = FlatBuffer.elements(config)
        engines = self.runtime.replicas(backend, elements, lanes // group.size)
        self.shared = SharedParameters(
            config,
            backend,
            group,
            parameters,
            early_sums=len(engines) == 1,  # else those of the replicas are added up first
            rounded_sums=rounded_sums,
            cells=cells_of(config) if lanes else (),
        )
        self.parameters, part = self.shared.read, self.shared.part
        self.optimizer_settings = optimizer
        self.optimizer = optimizer.make(config, backend, part)
        self.runtime.scales = {}
        self.results = backend.zeros((4,), np.float64)  # one array, so that a device is read once
        self.report = self.results[2:]  # see `begin_update`
        model_on = partial(Transformer, config, self.parameters, recompute=recompute, base=base)
        norms = self.shared.vectors
        self.models = [model_on(engine, norms=norms, dropout=dropout) for engine in engines]
        """One for each of the engine's replicas."""
        self.model = self.models[0]
        shared = config, backend, group, self.results[:2]
        self.portions = (
            Lanes(*shared, lanes) if lanes else Portions.of_replicas(*shared, len(engines))
        )
        self.gradients = self.portions[0].gradients
        own, working = self.shared.own, self.model.working
        copied = self.shared.sharded or working is not self.parameters
        read = working[part] if copied else own
        self.flat = FlatState(own, read, self.gradients[part])
        self.schedule = self.runtime.feed([np.zeros(2)])
        self.inputs: StepInputs | None = None

    # ---- a step

    def train_step(self, rows: StepRows, micro_batch_rows: int, learning_rate: float) -> StepResult:
        """One optimizer update on all rows of a step, `micro_batch_rows` at a time."""
        self.stage(rows)
        self.start(micro_batch_rows, learning_rate)
        return self.finish()

    def compute(self, micro_batch_rows: int) -> None:
        """The work of a step: gradients of the rows that were handed over, and the update."""
        self.shared.send()
        self.compute_gradients(micro_batch_rows, self.shared)
        self.update()

    def compute_gradients(
        self, micro_batch_rows: int, shared: SharedParameters | None = None
    ) -> None:
        """Gradients and losses of the rows handed over, of which each model has a share.

        With `shared`, weights may be on their way from other ranks, and sums of gradients begin as
        soon as they are final; otherwise this rank is on its own.
        """
        inputs = self.inputs
        assert inputs is not None, "stage comes first"
        if shared:
            shared.before_blocks()
        count = inputs.shape[0]
        shares = self.portions.shares(
            [slice(s, s + micro_batch_rows) for s in range(0, count, micro_batch_rows)]
        )
        models = self.models[: len(shares)]
        weights = self.runtime.training_weights(self.model.weights)

        def work(index: int) -> None:
            model = models[index]
            model.training_weights = weights
            for number in range(index, len(shares), len(models)):
                portion, own = self.portions[number], list(map(inputs.micro_batch, shares[number]))
                portion.losses[...] = 0
                for rows in own[1:]:
                    rows.accumulate = True
                if shared and number == index:
                    own[0].before_block = shared.before_block
                if shared and number == len(shares) - 1:
                    own[-1].after_block = partial(shared.begin_sums, self.portions.to_sum)
                for rows in own:
                    self.objective.learn(model, rows, portion.views, portion.losses)

        self.runtime.side_by_side(len(models), work)
        self.portions.finish(len(shares))

    def update(self) -> None:
        """Let the optimizer move the parameters by the gradients of all ranks.

        They stay as they are where loss or gradient are not finite. The next step, or `settle`,
        sends them to the other ranks.
        """
        losses_2, schedule_2 = self.results[:2], self.schedule.arrays[0]
        self.shared.finish_sums(self.portions.to_sum)
        squares = self.portions.add_up(self.shared.part)
        if (noted := self.runtime.noted) is not None:
            self.group.largest(noted)
        told = squares, schedule_2, losses_2, self.report
        clip_norm = self.optimizer_settings.adamw.clip_norm
        self.optimizer.update(self.flat, self.backend.begin_update(*told, clip_norm))
        self.shared.note_update()

    # ---- a step of a device, which computes while the host goes on

    def stage(self, rows: StepRows) -> None:
        """Hand over the rows of the next step, of which each rank takes its share.

        A device may still be at work on the last one.
        """
        self.staged_weight = self.objective.first_head_weight(rows)
        rows = rows.share(self.group.rank, self.group.size)
        if self.inputs is None or self.inputs.shape != rows.targets.shape:
            self.inputs = StepInputs(self.backend, rows)
        self.inputs.feed.load(*rows.arrays)

    def start(self, micro_batch_rows: int, learning_rate: float) -> None:
        """Begin the update on the rows that were handed over."""
        inputs = self.inputs
        assert inputs is not None, "stage comes first"
        self.started_weight = self.staged_weight
        self.schedule.load(np.array([learning_rate, self.step]))
        if inputs.program is None or inputs.micro_batch_rows != micro_batch_rows:
            state = weakref.proxy(self)  # which holds the program, by way of its inputs
            inputs.micro_batch_rows = micro_batch_rows
            inputs.program = self.runtime.program(
                lambda: state.compute(micro_batch_rows), training=True, untimed=self.ordered
            )
        inputs.program.run()

    def finish(self) -> StepResult:
        """The result of the update that was started last."""
        loss, first_head_loss, norm, _ = self.backend.to_host(self.results).tolist()
        weight = self.started_weight
        result = StepResult(loss, first_head_loss / weight if weight else 0.0, norm)
        self.step += result.finite
        return result

    @property
    def recorded(self) -> bool:
        """Whether a step like the next one was made before."""
        return self.inputs is not None and self.inputs.program is not None

    def rehearse(self, micro_batch_rows: int) -> None:
        """Compute the gradients of the rows that were handed over, on this rank alone.

        Nothing is moved, but a device finds out how to run fast what it will run often.
        """
        known = self.runtime.scales
        program = self.runtime.program(
            lambda: self.compute_gradients(micro_batch_rows), training=True, untimed=self.ordered
        )
        program.run()
        if self.runtime.scales and not known:  # which were learned in another precision
            program.run()
        self.runtime.scales = known

    # ---- parameters and the optimizer's tensors

    def restart(self, parameters: np.ndarray) -> None:
        """Go back to step 0 and the given parameters (as in `__init__`)."""
        for tensor in self.optimizer.tensors.values():
            tensor[...] = 0
        self.load_parameters(parameters)
        self.runtime.scales = {}
        self.step = 0

    def load(self, tensors: Mapping[str, np.ndarray], step: int) -> None:
        """Take over `tensors` (as of `tensors()`) at the given step."""
        self.load_parameters(tensors["parameters"])
        for name, array in self.optimizer.tensors.items():
            array[...] = self.backend.from_host(tensors[name][self.shared.part])
        self.step = step

    def load_parameters(self, trained: np.ndarray) -> None:
        self.shared.load(trained)
        self.model.refresh()

    def trained_parameters(self) -> np.ndarray:
        """All parameters that are trained, on the host. The ranks call it together."""
        return self.whole(self.shared.own)

    def tensors(self) -> dict[str, np.ndarray]:
        """All that a checkpoint keeps, by name, on the host: flat arrays laid out by
        `trained_table`. The ranks call it together."""
        parts = {"parameters": self.shared.own, **self.optimizer.tensors}
        return {name: self.whole(part) for name, part in parts.items()}

    def whole(self, part: Array) -> np.ndarray:
        return self.shared.whole(part, self.gradients)  # which mean nothing between two steps

    def settle(self) -> None:
        """All-gather the weights of the last update now; otherwise the next step does. The ranks
        call it together before they compute with the model."""
        self.shared.send()
        self.shared.wait()


class StepInputs:
    """A step's rows on the engine, and two arrays with a number for each of their targets."""

    def __init__(self, backend: Backend, rows: StepRows):
        self.shape, self.drops = rows.targets.shape, rows.seeds is not None
        self.feed = backend.runtime.feed(rows.arrays)
        self.logprobs, self.lse = (backend.zeros((math.prod(self.shape),)) for _ in range(2))
        self.program: Program | None = None
        self.micro_batch_rows = 0

    def micro_batch(self, part: slice) -> MicroBatch:
        """Some of the rows."""
        ids, positions, starts, targets, weights, *further = (
            array[part] for array in self.feed.arrays
        )
        _, T, K = self.shape  # of the targets
        first = part.start * T * K
        batch = Batch(ids, positions, starts, further.pop() if self.drops else None)
        numbers = self.logprobs[first:], self.lse[first:]
        return MicroBatch(batch, targets.reshape(-1, K), weights, further, *numbers)
