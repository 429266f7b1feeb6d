"""One contiguous buffer for all parameters (or gradients, or a moment), with named views."""

import numpy as np

from nanoeuler.backend.records import Array, ModelWeights
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of, make_blocks
from nanoeuler.model.spec import (
    head_names,
    storage_elements,
    tensor_table,
    trained_part,
    trained_table,
)
from nanoeuler.model.tensors import INITIAL_STD, NamedArrays, NamedViews

TAIL = np.float32(3.6541528)
"""Initial weights stop at so many standard deviations. What lies beyond, three in ten thousand,
NumPy computes by a logarithm of the C library, whose last bits are not the same everywhere."""

FLOAT16 = np.dtype(np.float16)


def fits_float16(parameters: np.ndarray) -> bool:
    """Is none of the numbers larger than those of float16?"""
    return bool(np.abs(parameters).max() <= np.finfo(FLOAT16).max)


class FlatBuffer:
    """Views into one flat array laid out by `tensor_table`, or by `trained_table`.

    `buffer[name]` has the tensor's shape, `packed` spans adjacent tensors as one matrix in storage
    shape. The array may be NumPy's or CuPy's: only slices and reshapes are taken. Of a frozen
    tensor, a buffer of those that are trained has what `base` has, or None.
    """

    def __init__(self, config: ModelConfig, array: Array, base: NamedViews | None = None):
        self.base = base
        self.table, whole = trained_table(config), tensor_table(config)
        if array.shape == (storage_elements(whole),):
            self.table = whole
        self.rows = {tensor.name: tensor for tensor in self.table}
        self.frozen = {tensor.name for tensor in whole} - self.rows.keys()
        if array.shape != (storage_elements(self.table),):
            raise ValueError(
                f"a flat buffer of shape {array.shape} does not fit the tensor table, "
                f"which needs {storage_elements(self.table)} elements"
            )
        self.array = array

    @staticmethod
    def elements(config: ModelConfig) -> int:
        """Length of a flat buffer for `config`."""
        return storage_elements(tensor_table(config))

    @staticmethod
    def trained_elements(config: ModelConfig) -> int:
        """Length of a flat buffer of the tensors that are trained."""
        return storage_elements(trained_table(config))

    def storage(self, name: str) -> Array:
        """View in storage shape, padding included."""
        if name in self.frozen:
            return self.base and self.base.storage(name)
        tensor = self.rows[name]
        return self.array[tensor.offset : tensor.stop].reshape(tensor.storage_shape)

    def __getitem__(self, name: str) -> Array:
        if name in self.frozen:
            return self.base and self.base[name]
        return self.storage(name)[tuple(slice(size) for size in self.rows[name].shape)]

    def in_file(self, name: str) -> Array:
        """View in the shape that files have."""
        return self[name].T if self.rows[name].transposed else self[name]

    def packed(self, *names: str) -> Array:
        """The adjacent matrices (or vectors) `names` as one (their storage rows one after
        another)."""
        if names[0] in self.frozen:
            return self.base and self.base.packed(*names)
        first, last = self.rows[names[0]], self.rows[names[-1]]
        return self.array[first.offset : last.stop].reshape(-1, *first.storage_shape[1:])


def model_weights(
    config: ModelConfig,
    array: Array,
    norms: NamedArrays | None = None,
    base: NamedViews | None = None,
) -> ModelWeights:
    """Views of the flat buffer `array`, and of `base` what is frozen and not in it.

    `norms`: where the weights of the norms are taken from, if `array` is the copy that products
    read.
    """
    buffer = FlatBuffer(config, array, base)
    return weights_of(config, buffer, norms or buffer, None if base else array)


def weights_of(
    config: ModelConfig, buffer: NamedViews, norms: NamedArrays, array: Array = None
) -> ModelWeights:
    """Views of `buffer`; `array`: its flat buffer, if there is one with all of them."""
    family = family_of(config)
    heads = head_names(config)
    final_norm, *final_norm_bias = (norms[name] for name in family.final_norm)
    return ModelWeights(
        flat=array,
        embedding=buffer[family.embedding],
        blocks=[block.weights(buffer, norms) for block in make_blocks(config)],
        final_norm=final_norm,
        heads=buffer.packed(*heads),
        first_head=buffer.storage(heads[0]),
        positions=buffer[family.positions] if family.positions else None,
        final_norm_bias=final_norm_bias[0] if final_norm_bias else None,
    )


def initial_parameters(
    config: ModelConfig, seed: int, embedding_std: float = INITIAL_STD
) -> np.ndarray:
    """A flat float32 buffer of fresh parameters: normal with each tensor's spread, norms 1, biases
    0.

    `embedding_std` is the embedding's spread. Each tensor draws from a counter-based stream of its
    own, keyed by the seed and its row in the table. Padding is 0.
    """
    buffer = FlatBuffer(config, np.zeros(FlatBuffer.elements(config), np.float32))
    draw(buffer, config, seed, embedding_std)
    return buffer.array


def apart(config: ModelConfig, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split a flat buffer of all parameters into the frozen model, empty where there are no
    adapters, and what is trained."""
    part = trained_part(config)
    return parameters[: part.start], parameters[part]


def draw(
    buffer: FlatBuffer, config: ModelConfig, seed: int, embedding_std: float = INITIAL_STD
) -> None:
    """Fresh values for the tensors of `buffer`: see `initial_parameters`."""
    for index, tensor in enumerate(tensor_table(config)):
        if tensor.name not in buffer.rows:
            continue
        view = buffer[tensor.name]
        view[...] = tensor.initial_std is None
        if tensor.initial_std:
            generator = np.random.Generator(np.random.Philox(key=[seed, index]))
            draws = generator.standard_normal(tensor.shape, np.float32)
            np.clip(draws, -TAIL, TAIL, out=draws)
            is_embedding = tensor.name == family_of(config).embedding
            std = embedding_std if is_embedding else tensor.initial_std
            view[...] = draws * np.float32(std)
