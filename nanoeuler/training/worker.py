"""The worker of each rank of a training stage, which holds the state of training.

Rank 0 has a `Trainer` that calls these methods. Each call is first told to the other ranks, which
make the same one.
"""

import functools
import platform
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.config.rules import CHECKED_CODE, code_fingerprint
from nanoeuler.model.config import ModelConfig, refined
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.refining import refine
from nanoeuler.system.energy import Meter, sum_joules
from nanoeuler.system.numpy_blas import use_one_thread
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.job import Job, Scores
from nanoeuler.training.micro_batches import micro_batch_rows
from nanoeuler.training.optimizer.optimizer import optimizer_of
from nanoeuler.training.state import StepResult, TrainingState
from nanoeuler.training.streams import StepRows, dropout_seeds

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


def everywhere(
    method: Callable[["Worker", *Given], Result],
) -> Callable[["Worker", *Given], Result]:
    """A method of the worker that rank 0 lets the others call, too."""

    @functools.wraps(method)
    def call(self: "Worker", *given: *Given) -> Result:
        if self.job.group.rank == 0:
            self.job.group.tell(method.__name__, *given)
        return method(self, *given)

    return call


class Worker:
    """The state of a job, and what is done to it."""

    state: TrainingState

    def __init__(self, job: Job, checkpoints: Checkpoints):
        self.job, self.checkpoints = job, checkpoints
        self.micro_batch_rows = micro_batch_rows(job)
        if job.lanes:
            use_one_thread()  # of NumPy's BLAS, which the specification multiplies by
        lora = job.config.lora
        self.dropout = getattr(job.settings, "dropout", 0.0)
        self.drops = self.dropout > 0 or (lora is not None and lora.dropout > 0)

    def heed(self) -> None:
        """On another rank than 0: do what it tells, until the end."""
        while True:
            call, given = self.job.group.heed()
            if call == "end":
                return
            getattr(self, call)(*given)

    @property
    def trains(self) -> dict[str, Any]:
        """What has to be the same on all ranks."""
        found = environment(self.job.backend)
        kept = found.keys() - {"threads"} if self.job.lanes else {"code", "numpy"}
        return {"fingerprint": self.job.fingerprint[:12], **{key: found.get(key) for key in kept}}

    @everywhere
    def others(self) -> list[dict[str, Any]]:
        """On rank 0: `trains` of the other ranks."""
        return self.job.group.collect(self.trains)

    # ---- the state

    def new_state(self, config: ModelConfig, parameters: np.ndarray) -> TrainingState:
        return TrainingState(
            config,
            self.job.backend,
            parameters,
            optimizer_of(self.job.settings),
            recompute=self.job.settings.recompute,
            dropout=self.dropout,
            base=self.job.base,
            objective=self.job.objective,
            group=self.job.group,
            rounded_sums=self.job.settings.sums_precision == "bf16",
            lanes=self.job.lanes,
        )

    def make_room(self, config: ModelConfig) -> None:
        """Have a state of a model, whose tensors are yet to be loaded."""
        if not hasattr(self, "state") or self.state.config != config:
            self.__dict__.pop("state", None)  # both at once may not fit into memory
            empty = np.zeros(FlatBuffer.trained_elements(config), np.float32)
            self.state = self.new_state(config, empty)

    @everywhere
    def begin(self) -> None:
        """Have the state in which training begins."""
        self.state = self.new_state(self.job.model_after(0), self.job.initial())

    @everywhere
    def restart(self) -> None:
        """Go back to the state in which training began."""
        self.make_room(self.job.model_after(0))
        self.state.restart(self.job.initial())
        if self.job.memory:
            self.job.memory.restore({})

    @everywhere
    def resume(self, saved: dict[str, Any]) -> None:
        """Take over batches and algorithms from a checkpoint of an earlier process."""
        if self.job.settings.micro_batch_rows == "auto" and not self.job.lanes:
            self.micro_batch_rows = saved["micro_batch_rows"]  # another number may fit here
        self.job.backend.algorithms.update(saved["algorithms"])

    @everywhere
    def restore(self, saved: dict[str, Any]) -> None:
        """Go to the step of the checkpoint `saved`."""
        self.make_room(self.job.model_after(saved["step"]))
        self.checkpoints.restore(saved["step"], self.state)
        self.job.backend.runtime.scales = saved.get("scales", {})
        if self.job.memory:
            self.job.memory.restore(saved.get("memory", {}))

    @everywhere
    def grow(self) -> None:
        """Refine the model, and the moments with it."""
        step, tensors = self.state.step, refined_tensors(self.state)
        self.make_room(refined(self.state.config))
        self.state.load(tensors, step)

    @everywhere
    def tensors(self) -> dict[str, np.ndarray]:
        """See `TrainingState.tensors`."""
        return self.state.tensors()

    @everywhere
    def parameters(self) -> np.ndarray:
        """See `TrainingState.trained_parameters`."""
        return self.state.trained_parameters()

    @everywhere
    def validate(self) -> Scores:
        """The scores on held-out data, of which each rank computes a part."""
        self.state.settle()
        return self.job.validate(self.state.model)

    @functools.cached_property
    def meter(self) -> Meter:
        """The first rank on a machine counts its processors, each its GPU."""
        device, machines = self.job.backend.device, self.job.group.exchange(platform.node())
        first = machines.index(platform.node()) == self.job.group.rank
        return Meter(device.address if device else None, cpu=first)

    @everywhere
    def joules(self) -> dict[str, float]:
        """On rank 0: what devices of all ranks took since the first call, where all of their kind
        are measured."""
        own = self.meter.joules()
        return sum_joules([own, *self.job.group.collect(own)])

    # ---- a step

    @everywhere
    def stage(self, number: int) -> StepRows:
        """Hand over a step's rows; they come back as they are, without empty ones."""
        stream = self.job.stream
        if not stream.pure:
            self.state.settle()
        rows = stream.rows(number, self.state.model)
        if self.drops:
            key = self.job.inputs["seed"], f"{self.job.stage} dropout", number
            rows.seeds = dropout_seeds(*key, rows.ids.shape)
        shares = self.job.lanes or self.job.group.size
        self.state.stage(rows.padded(shares * self.micro_batch_rows))
        return rows

    def step(self, learning_rate: float) -> None:
        """Begin the update on the rows that were handed over."""
        first = self.job.group.size > 1 and self.job.backend.device and not self.state.recorded
        if first:  # all ranks compute gradients with the algorithms that rank 0 finds
            self.state.rehearse(self.micro_batch_rows)
            self.agree()
        self.start(learning_rate)
        if first:  # and each its part of the update, with those that it finds
            self.agree()

    def agree(self) -> None:
        """Let all ranks compute with the same algorithms, which a checkpoint will have."""
        found = self.job.backend.algorithms
        for other in self.give_algorithms():
            found.update(other | found)
        self.take_algorithms(found)

    @everywhere
    def give_algorithms(self) -> list[dict[str, str]]:
        """On rank 0: those that the other ranks compute with."""
        return self.job.group.collect(self.job.backend.algorithms)

    @everywhere
    def take_algorithms(self, algorithms: dict[str, str]) -> None:
        self.job.backend.algorithms.update(algorithms)

    @everywhere
    def start(self, learning_rate: float) -> None:
        """Begin the update, on this rank."""
        self.state.start(self.micro_batch_rows, learning_rate)

    @everywhere
    def finish(self) -> StepResult:
        """The result of the update that was begun last."""
        return self.state.finish()


def refined_tensors(state: TrainingState) -> dict[str, np.ndarray]:
    """`state.tensors()` on the host, for the refined model: see `nanoeuler/model/refining.py`.

    The gradient of a copy of a tensor is half of the tensor's. Halves and quarters of the moments
    therefore make AdamW and Muon go on as they were: either moves each copy as far as it would have
    moved the tensor. The first layer is the exception: what its second copy reads with begins
    without moments, as it has no gradient yet, and its first copy keeps all of them.
    """
    powers = {"parameters": 0, **state.optimizer_settings.tensor_powers}
    return {
        name: refine(state.config, array, powers[name]) for name, array in state.tensors().items()
    }


def environment(backend: Backend) -> dict[str, Any]:
    """Everything outside the job that must be the same for the same bits."""
    code = code_fingerprint(*CHECKED_CODE)[:12]
    return backend.environment() | {"numpy": np.__version__, "code": code}
