"""One contiguous buffer for all parameters (or gradients, or a moment), with named views."""

import numpy as np

from nanoeuler.backend.records import Array, ModelWeights
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of, make_blocks
from nanoeuler.model.spec import head_names, storage_elements, tensor_table
from nanoeuler.model.tensors import INITIAL_STD, NamedArrays, NamedViews


class FlatBuffer:
    """Views into one flat array laid out by `tensor_table`.

    `buffer[name]` has the tensor's shape, `packed` spans adjacent tensors as one matrix in storage
    shape. The array may be NumPy's or CuPy's: only slices and reshapes are taken.
    """

    def __init__(self, config: ModelConfig, array: Array):
        self.table = tensor_table(config)
        self.rows = {tensor.name: tensor for tensor in self.table}
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

    def storage(self, name: str) -> Array:
        """View in storage shape, padding included."""
        tensor = self.rows[name]
        return self.array[tensor.offset : tensor.stop].reshape(tensor.storage_shape)

    def __getitem__(self, name: str) -> Array:
        return self.storage(name)[tuple(slice(size) for size in self.rows[name].shape)]

    def in_file(self, name: str) -> Array:
        """View in the shape that files have."""
        return self[name].T if self.rows[name].transposed else self[name]

    def packed(self, *names: str) -> Array:
        """The adjacent matrices `names` as one matrix (their storage rows one after another)."""
        first, last = self.rows[names[0]], self.rows[names[-1]]
        columns = first.storage_shape[1]
        return self.array[first.offset : last.stop].reshape(-1, columns)


def model_weights(
    config: ModelConfig, array: Array, norms: NamedArrays | None = None
) -> ModelWeights:
    """Views of the flat buffer `array`.

    `norms`: where the weights of the norms are taken from, if `array` is the copy that products
    read.
    """
    buffer = FlatBuffer(config, array)
    return weights_of(config, buffer, buffer if norms is None else norms, array)


def weights_of(
    config: ModelConfig, buffer: NamedViews, norms: NamedArrays, array: Array = None
) -> ModelWeights:
    """Views of `buffer`; `array`: its flat buffer, if it has one."""
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
    for index, tensor in enumerate(buffer.table):
        view = buffer[tensor.name]
        if tensor.initial_std is None:
            view[...] = 1
        elif tensor.initial_std:
            generator = np.random.Generator(np.random.Philox(key=[seed, index]))
            draws = generator.standard_normal(tensor.shape, np.float32)
            is_embedding = tensor.name == family_of(config).embedding
            std = embedding_std if is_embedding else tensor.initial_std
            view[...] = draws * np.float32(std)
    return buffer.array
