"""The weights of a model in safetensors: flat buffers to named tensors and back.

A model folder has them as transformers computes with them. The weights of a QK-norm without any are
ones there. Each block's last matrix is multiplied by h, where that is exact, as x + h·W f(x) is
x + (h·W) f(x); reading divides it again. Checkpoints hold the tensors of their buffers alone.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file
from safetensors.numpy import save_file

from nanoeuler.errors import UserError, brief
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import parameter_count, tensor_table
from nanoeuler.storage.files import parse_json

OUTPUTS = ("o_proj.weight", "down_proj.weight", "c_proj.weight", "c_proj.bias")
"""The parts of a layer that its step is proportional to."""
MOST_HEADER = 16_000_000
"""Bytes of a file's header: a hundred thousand tensors. (The format allows 100 MB.)"""
MOST_UNSEEN = 1 << 30
"""Bytes that are taken for a model before it is known that its files have as many."""
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""Types of weights in the files, and how NumPy reads them."""
TYPES = {**FLOATS, "I8": np.int8, "U8": np.uint8}
"""These, and the types of codes."""
STORED = {
    "f": {"F32": "float32", "BF16": "bf16"},
    "e": {"F16": "float16"},
    "b": {"I8": "int8"},
    "B": {"U8": "uint8"},
}
"""The types that an array may have in a model folder, and their names, by its type in memory."""
STEP = "outputs_times_h"
"""Key of the metadata of a file whose outputs are multiplied by h, which it gives."""


def norms_of_ones(config: ModelConfig) -> dict[str, np.ndarray]:
    """The weights that transformers wants of a QK-norm without any: with ones it computes the same.

    A model folder holds them beside the model's own tensors.
    """
    if config.qk_norm != "rms":
        return {}
    own = {tensor.name for tensor in tensor_table(config)}
    table = tensor_table(replace(config, qk_norm="weighted"))
    return {
        tensor.name: np.ones(tensor.shape, np.float32) for tensor in table if tensor.name not in own
    }


def save_parameters(path: Path, config: ModelConfig, parameters: np.ndarray, dtype: str) -> float:
    """Write the weights of a model folder, in f32 or bf16.

    Returns the step size that a reader has to know: 1 where h is in the weights already.
    """
    tensors = named({"": FlatBuffer(config, parameters)}) | norms_of_ones(config)
    step = config.step_size
    if step == 1.0 or math.frexp(step)[0] != 0.5:  # h is no power of two
        write_tensors(path, tensors, dtype)
        return step
    h, outputs = np.float32(step), [name for name in tensors if name.endswith(OUTPUTS)]
    multiplied = {name: tensors[name] * h for name in outputs}
    if not all(np.array_equal(multiplied[name] / h, tensors[name]) for name in outputs):
        write_tensors(path, tensors, dtype)  # numbers at the ends of what float32 holds
        return step
    write_tensors(path, tensors | multiplied, dtype, {STEP: repr(step)})
    return 1.0


class Later(NamedTuple):
    """A float32 tensor of a file that is made when its turn comes: make(of)."""

    shape: tuple[int, ...]
    make: Callable[[Any], np.ndarray]
    of: Any


def write_one_by_one(path: Path, tensors: Mapping[str, Later]) -> None:
    """Write a safetensors file whose tensors would take much memory together."""
    entries, stop = {}, 0
    for name, later in tensors.items():
        start, stop = stop, stop + 4 * math.prod(later.shape)
        entries[name] = {"dtype": "F32", "shape": later.shape, "data_offsets": [start, stop]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # so that the numbers are aligned
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for later in tensors.values():
            file.write(np.ascontiguousarray(later.make(later.of), np.float32).data)


def load_parameters(path: Path, config: ModelConfig) -> np.ndarray:
    """The flat parameters of a model of `config` in the weights of a model folder or a checkpoint.

    Raises `UserError` like `load_tensors`.
    """
    require_size(config, [path])
    buffer = FlatBuffer(config, np.zeros(FlatBuffer.elements(config), np.float32))
    load_tensors(path, {"": buffer}, norms_of_ones(config))
    if stored_step(path, config) != config.step_size:
        for name in buffer.rows:
            if name.endswith(OUTPUTS):
                buffer[name][...] /= np.float32(config.step_size)
    return buffer.array


def require_size(config: ModelConfig, files: Sequence[Path], bits: int = 16) -> None:
    """Refuse a config whose model would take far more memory than its files have, of at least so
    many bits a parameter."""
    parameters = parameter_count(config)
    have = sum(path.stat().st_size for path in files if path.is_file())
    if 4 * parameters > MOST_UNSEEN and bits * parameters > 8 * have:
        raise UserError(
            f"{files[0]}: a model with the fields of its config has {parameters:,} parameters, and "
            f"its weights take {have:,} bytes, which cannot hold them; fetch the model again"
        )


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where the data begin. Raises ValueError for damage.

    What the entries say is for the safetensors package to check.
    """
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        header = parse_json(file.read(size).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header, 8 + size


def read_values(path: Path, entry: Mapping[str, Any], data: int) -> np.ndarray:
    """A tensor of a file that the safetensors package has checked, as float32, or codes as they
    are. (It reads no bf16 for NumPy.) `entry`: that of the header, `data`: where the data begin."""
    start, end = entry["data_offsets"]
    kind = np.dtype(TYPES[entry["dtype"]])
    values = np.fromfile(path, kind, (end - start) // kind.itemsize, offset=data + start)
    if entry["dtype"] == "BF16":
        values = from_bf16(values)
    elif kind.itemsize > 1:
        values = values.astype(np.float32)
    return values.reshape(entry["shape"])


def stored_step(path: Path, config: ModelConfig) -> float:
    """The step size that a reader of the weights in `path` has to know: see `save_parameters`."""
    with safe_open(path, framework="numpy") as file:
        noted = (file.metadata() or {}).get(STEP)
    if noted is None:
        return config.step_size
    if noted != repr(config.step_size):
        raise UserError(
            f"{path}: its outputs are multiplied by {brief(noted)} where the config has a "
            f"step_size of {config.step_size}; the file is of another model than its config says"
        )
    return 1.0


def named(buffers: Mapping[str, FlatBuffer]) -> dict[str, np.ndarray]:
    """The tensors of flat buffers as in a file; keys of `buffers` are prefixes ("" for none)."""
    return {
        prefix + tensor.name: np.ascontiguousarray(buffer.in_file(tensor.name))
        for prefix, buffer in buffers.items()
        for tensor in buffer.table
    }


def save_tensors(path: Path, buffers: Mapping[str, FlatBuffer]) -> None:
    """Write the named tensors of flat buffers."""
    write_safetensors(path, named(buffers))


def write_tensors(
    path: Path,
    tensors: dict[str, np.ndarray],
    dtype: str,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write float32 tensors in f32 or bf16."""
    if dtype == "bf16":
        arrays = {name: to_bf16(tensor) for name, tensor in tensors.items()}
        serialize_file(
            {
                name: TensorSpec(
                    dtype="bfloat16",
                    shape=array.shape,
                    data_ptr=array.ctypes.data,
                    data_len=array.nbytes,
                )
                for name, array in arrays.items()
            },
            path,
            metadata,
        )
    else:
        write_safetensors(path, tensors, metadata)


def write_safetensors(
    path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError when it cannot be written."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # it hides the number of the system's error in its text
        number = re.search(r"os error (\d+)", str(error))
        if number:
            raise OSError(int(number[1]), str(error), str(path)) from error
        raise


def load_tensors(
    path: Path,
    buffers: dict[str, FlatBuffer],
    known: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Read what `save_tensors` wrote into `buffers`. See `read_tensors`."""
    wanted = {
        prefix + tensor.name: buffer.in_file(tensor.name)
        for prefix, buffer in buffers.items()
        for tensor in buffer.table
    }
    read_tensors(path, wanted, known)


def read_tensors(
    path: Path,
    wanted: dict[str, np.ndarray],
    known: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Read a file's tensors into the arrays `wanted`; of the `known` tensors it may have further
    ones.

    Raises `UserError` for a damaged file or one of another model.
    """
    other_fields = "the file is of a model with other fields than its config says"
    try:
        header, data = read_header(path)
        with safe_open(path, framework="numpy") as file:
            present = set(file.keys())
        for name in sorted(present - wanted.keys()):
            if name not in known:
                raise UserError(f"{path}: tensor {name} is one too many; {other_fields}")
            wanted[name] = np.zeros(known[name].shape, np.float32)
        for name, view in wanted.items():
            if name not in present:
                raise UserError(f"{path}: tensor {name} is missing; {other_fields}")
            check_stored(path, name, header[name]["dtype"], header[name]["shape"], view)
        for name, view in wanted.items():
            view[...] = read_values(path, header[name], data)
        for name in present & known.keys():
            if not np.array_equal(wanted[name], known[name]):
                raise UserError(f"{path}: tensor {name} has other values; {other_fields}")
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; train the model first or give its folder"
        ) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path}: damaged or cut off ({error}); copy it again from where it came, or delete "
            f"{path.parent} and run its stage again"
        ) from error


def check_stored(
    path: Path, name: str, dtype: str, shape: Sequence[int], expected: np.ndarray
) -> None:
    """Refuse a stored tensor that does not fit the model."""
    types = STORED[expected.dtype.char]
    if dtype not in types:
        raise UserError(
            f"{path}: tensor {name} has type {dtype}; a nanoeuler model is stored in "
            f"{' or '.join(types.values())}, so this file was not written by it"
        )
    if tuple(shape) != expected.shape:
        raise UserError(
            f"{path}: tensor {name} has shape {list(shape)} where the config asks for "
            f"{list(expected.shape)}"
        )


def to_bf16(tensor: np.ndarray) -> np.ndarray:
    """The upper halves (uint16) of float32 numbers, rounded to nearest, ties to even.

    They are bfloat16, which NumPy has no type for.
    """
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bf16(halves: np.ndarray) -> np.ndarray:
    """The float32 numbers whose upper halves are given as uint16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)
