"""A block that is frozen, some of its matrices with adapters that are trained (Hu et al. 2021)."""

from dataclasses import dataclass, replace
from typing import Any, cast

from nanoeuler.backend.adapted_ops import AdaptedOps, AdapterScratch, Gradient
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AdaptedMatrix, Adapter, Array, Norm
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import Block, BlockPass
from nanoeuler.model.config import Lora
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, packed_rows


@dataclass
class AdaptedActivations:
    """The block's own, and what its adapters work with."""

    own: Any
    scratch: AdapterScratch


class Adapted(Block[Any, AdaptedActivations]):
    """Weights are the block's own, with an `AdaptedMatrix` where a matrix has adapters.

    `block` computes as ever: it is given ops that know what to do with such a matrix.
    """

    def __init__(self, block: Block[Any, Any], lora: Lora, index: int):
        """`index`: its number in the model."""
        self.block, self.lora, self.index = block, lora, index
        self.form = replace(block.form, rank=lora.rank, dropout=lora.dropout)
        self.cache_shape, self.recomputable = block.cache_shape, block.recomputable
        self.specs = {spec.name: spec for spec in block.tensors()}
        self.targets = [
            name
            for name, spec in self.specs.items()
            if len(spec.shape) > 1 and target_of(name) in lora.targets
        ]

    def tensors(self) -> list[TensorSpec]:
        adapters = [each for name in self.targets for each in self.adapter_specs(name)]
        return [*self.specs.values(), *adapters]

    def adapter_specs(self, name: str) -> tuple[TensorSpec, TensorSpec]:
        """A and B of the matrix `name`, with the names of PEFT and the spread of its Kaiming
        initialisation. B lies in memory as Bᵀ."""
        spec, rank = self.specs[name], self.lora.rank
        outputs, inputs = spec.shape
        stored = rank, (spec.storage_shape or spec.shape)[1]
        down, up = (f"{name.removesuffix('weight')}lora_{part}.weight" for part in "AB")
        return (
            TensorSpec(down, (rank, inputs), (3 * inputs) ** -0.5, stored, adapter=True),
            TensorSpec(up, (rank, outputs), 0.0, transposed=True, adapter=True),
        )

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> Any:
        weights = self.block.weights(buffer, norms)
        for field, names in vars(self.block.weights(Names(), Names())).items():
            if names and set(self.targets) & set(names):
                matrix = getattr(weights, field), self.adapters(buffer, names)
                salt = 16 * self.index + [*vars(weights)].index(field)
                scale = self.lora.alpha / self.lora.rank
                setattr(weights, field, AdaptedMatrix(*matrix, scale, salt))
        return weights

    def adapters(self, buffer: NamedViews, names: tuple[str, ...]) -> list[Adapter]:
        """Those of a matrix that consists of the tensors `names`, one below the other."""
        found, first = [], 0
        for name in names:
            spec = self.specs[name]
            if name in self.targets:
                down, up = (each.name for each in self.adapter_specs(name))
                rows = slice(first, first + spec.shape[0])
                found.append(Adapter(rows, buffer.storage(down), buffer[up]))
            first += packed_rows(*(spec.storage_shape or spec.shape))
        return found

    def activations(
        self, arena: Arena, ops: Backend, rows: int, length: int, *, training: bool, first: Any
    ) -> AdaptedActivations:
        N = rows * length
        own = self.block.activations(
            arena, ops, rows, length, training=training, first=first.own if first else None
        )
        if first:
            return AdaptedActivations(own, first.scratch)
        inner, dinner = (
            arena.empty((count, self.lora.rank), ops.activation)
            for count in (N, N if training else 0)
        )
        targets = [self.specs[name] for name in self.targets]
        widths = sorted({(spec.storage_shape or spec.shape)[1] for spec in targets})
        drops = training and self.lora.dropout > 0
        dropped = {w: arena.empty((N, w), ops.activation) for w in widths if drops}
        return AdaptedActivations(own, AdapterScratch(inner, dinner, dropped))

    def ops(self, engine: Backend, saved: AdaptedActivations) -> Backend:
        return cast(Backend, AdaptedOps(engine, saved.scratch, self.lora.dropout))

    def forward(self, ops: Backend, weights: Any, saved: AdaptedActivations, p: BlockPass) -> None:
        saved.scratch.seeds_N = p.rows.seeds_N
        self.block.forward(self.ops(ops, saved), weights, saved.own, p)

    def backward(
        self, ops: Backend, weights: Any, gradients: Any, saved: AdaptedActivations, p: BlockPass
    ) -> None:
        into = {
            field: Gradient(getattr(weights, field), matrix.adapters)
            for field, matrix in vars(gradients).items()
            if isinstance(matrix, AdaptedMatrix)
        }
        arguments = weights, replace(gradients, **into), saved.own, p
        self.block.backward(self.ops(ops, saved), *arguments)

    def recompute(self, ops: Backend, weights: Any, saved: AdaptedActivations, norm: Norm) -> None:
        self.block.recompute(self.ops(ops, saved), weights, saved.own, norm)

    def step(self, ops: Backend, weights: Any, saved: AdaptedActivations, out: Array) -> None:
        self.block.step(self.ops(ops, saved), weights, saved.own, out)


class Names:
    """In the place of a buffer: has a block tell which tensors its weights consist of."""

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return (name,)

    def storage(self, name: str) -> tuple[str, ...]:
        return (name,)

    def packed(self, *names: str) -> tuple[str, ...]:
        return names


def target_of(name: str) -> str:
    """What a matrix is called as a target: q_proj of model.layers.0.self_attn.q_proj.weight."""
    return name.split(".")[-2]
