"""A model's weights as small whole numbers with scales: for use, and for adapters to train on.

`int8` has all matrices in GGUF's q8_0. `int4` has those of the blocks in q4_0, but for attention's
output, which 4 bits harm most for its size; that, embedding and heads are in q8_0. Norms, biases
and learned positions stay in float32. The last matrix of each block has h in it, as in other
programs: x + h·W f(x) is x + (h·W) f(x).
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler.backend.quantized import BLOCK, Quantized, empty, in_floats, round_into
from nanoeuler.backend.records import Array
from nanoeuler.backend.runtime import Arena, count_bytes, in_one_block
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import head_names, tensor_table
from nanoeuler.model.tensors import Tensor
from nanoeuler.model.weights_file import OUTPUTS, read_tensors, write_safetensors

SCHEMES = {"int8": ("q8_0", "q8_0"), "int4": ("q4_0", "q8_0")}
"""Formats of most of the blocks' matrices, and of the others."""
FINER = ("self_attn.o_proj.weight", "attn.c_proj.weight")
"""What the names of the blocks' others end in."""
CODES, SCALES = ".codes", ".scales"
"""What the names of a quantized tensor's two arrays end in."""


class QuantizedBuffer:
    """A model's tensors by name, as `FlatBuffer` has them: matrices are `Quantized`."""

    def __init__(self, config: ModelConfig, scheme: str):
        """Zeros. Raises `UserError` for a model whose rows are no whole blocks."""
        require_blocks(config, scheme)
        self.config, self.scheme = replace(config, step_size=1.0), scheme
        self.table = tensor_table(self.config)
        self.wholes = in_one_block(lambda arena: lay_out(self.config, scheme, arena), np)
        """A tensor, or the neighbours that are one product."""
        self.places: dict[str, tuple[int, slice, Tensor]] = {}
        """Each tensor's whole, and its rows there."""
        for number, run in enumerate(runs(self.table)):
            first = 0
            for tensor in run:
                stop = first + tensor.storage_shape[0]
                self.places[tensor.name] = number, slice(first, stop), tensor
                first = stop

    @classmethod
    def of(cls, config: ModelConfig, parameters: np.ndarray, scheme: str) -> "QuantizedBuffer":
        """The flat float32 `parameters` of a model of `config`, rounded.

        Raises `UserError` for numbers that a scale in float16 does not hold.
        """
        made, buffer = cls(config, scheme), FlatBuffer(config, parameters)
        for tensor in made.table:
            values, target = buffer[tensor.name], made[tensor.name]
            if config.step_size != 1.0 and tensor.name.endswith(OUTPUTS):
                values = values * np.float32(config.step_size)
            if not isinstance(target, Quantized):
                target[...] = values
                continue
            round_into(target, values)
            if not np.isfinite(target.scales).all():
                raise UserError(
                    f"tensor {tensor.name} holds a value that is not finite in {scheme}; use the "
                    "model as it is, or if it has none there, take an earlier one"
                )
        return made

    # ---- views

    def storage(self, name: str) -> Array:
        """With padding."""
        return self.packed(name)

    def __getitem__(self, name: str) -> Array:
        number, rows, tensor = self.places[name]
        whole, stop = self.wholes[number], rows.start + tensor.shape[0]
        part = whole[rows.start : stop]
        if isinstance(part, Quantized):
            return replace(part, columns=tensor.shape[1])
        return part[tuple(slice(size) for size in tensor.shape)]

    def packed(self, *names: str) -> Array:
        """Neighbours as one matrix."""
        number, rows, _ = self.places[names[0]]
        return self.wholes[number][rows.start : self.places[names[-1]][1].stop]

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(
            whole.codes.nbytes + whole.scales.nbytes
            if isinstance(whole, Quantized)
            else whole.nbytes
            for whole in self.wholes
        )

    def dense(self) -> np.ndarray:
        """The flat float32 parameters of a model of `self.config` with these numbers."""
        buffer = FlatBuffer(self.config, np.zeros(FlatBuffer.elements(self.config), np.float32))
        for tensor in self.table:
            buffer[tensor.name][...] = in_floats(self[tensor.name])
        return buffer.array

    # ---- files

    def in_file(self) -> Iterator[tuple[str, np.ndarray]]:
        """The arrays of a file, by name, without padding of rows."""
        for tensor in self.table:
            values = self[tensor.name]
            if isinstance(values, Quantized):
                yield tensor.name + CODES, values.codes
                yield tensor.name + SCALES, values.scales
            else:
                yield tensor.name, values

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        write_safetensors(path, dict(self.in_file()))

    @classmethod
    def load(cls, path: Path, config: ModelConfig, scheme: str) -> "QuantizedBuffer":
        """What `save` wrote. Raises `UserError` for a damaged file or one of another model."""
        made = cls(config, scheme)
        read_tensors(path, dict(made.in_file()))
        for name, values in made.in_file():
            if name.endswith(SCALES) and not np.isfinite(values).all():
                raise UserError(
                    f"{path}: tensor {name} holds a scale that is not finite; quantize the model "
                    "again"
                )
        return made


def lay_out(config: ModelConfig, scheme: str, arena: Arena) -> list[Array | Quantized]:
    """Memory for the tensors, neighbours of one product together."""
    wholes: list[Array | Quantized] = []
    for run in runs(tensor_table(config)):
        rows, *columns = sum(each.storage_shape[0] for each in run), *run[0].storage_shape[1:]
        format = format_of(config, scheme, run[0])
        if format is None:
            wholes.append(arena.empty((rows, *columns), np.dtype(np.float32)))
        else:
            wholes.append(empty(format, (rows, columns[0]), arena.empty))
    return wholes


def format_of(config: ModelConfig, scheme: str, tensor: Tensor) -> str | None:
    """The format of a tensor; None: float32."""
    family = family_of(config)
    if len(tensor.shape) == 1 or tensor.name == family.positions:
        return None
    coarse, fine = SCHEMES[scheme]
    others = family.embedding, *head_names(config)
    return fine if tensor.name in others or tensor.name.endswith(FINER) else coarse


def quantized_bytes(config: ModelConfig, scheme: str) -> int:
    """The memory of a `QuantizedBuffer`."""
    return count_bytes(lambda arena: lay_out(config, scheme, arena))


def runs(table: tuple[Tensor, ...]) -> Iterator[list[Tensor]]:
    """The tensors, those together that are parts of a packed product."""

    def whole(tensor: Tensor) -> object:
        """Equal for neighbours of one product: their layer's part, and their width."""
        return tensor.storage_shape[1:] if tensor.packed else tensor.name

    for _, run in itertools.groupby(table, whole):
        yield list(run)


def require_blocks(config: ModelConfig, what: str) -> None:
    """Raise `UserError` where rows of the model's matrices are no whole blocks, which other
    programs want of these formats, too. A Llama's ffn may be filled up."""
    widths = {"dim": config.dim, "heads · head_size": config.heads * config.head_size}
    if config.family == "gpt2":
        widths["ffn"] = config.ffn
    for name, width in widths.items():
        if width % BLOCK:
            raise UserError(
                f"{what} has blocks of {BLOCK} weights, which don't divide the model's {name} of "
                f"{width}; use it in float32, f16 or bf16"
            )
