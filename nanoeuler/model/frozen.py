"""The weights that adapters are trained on: nobody changes them, so nobody keeps them twice."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FLOAT16, FlatBuffer, fits_float16
from nanoeuler.model.quantized import QuantizedBuffer, quantized_bytes
from nanoeuler.model.spec import storage_elements, tensor_table
from nanoeuler.model.tensors import NamedArrays, NamedViews


class Frozen:
    """A model as it was read, and as products of an engine read it, once somebody asks for that.

    An engine whose products take numbers of 16 bits has no float32 of its matrices. One that reads
    no codes has their numbers in floats.
    """

    def __init__(
        self, config: ModelConfig, weights: np.ndarray | QuantizedBuffer, backend: Backend
    ):
        """`config`: that of the adapters. `weights`: flat float32 parameters of the model without
        any, on the host, or quantized."""
        self.config, self.weights, self.backend = replace(config, lora=None), weights, backend

    @classmethod
    def of(
        cls, config: ModelConfig, parameters: np.ndarray, backend: Backend, scheme: str | None
    ) -> "Frozen":
        """With flat float32 parameters, rounded where a scheme is given."""
        base = replace(config, lora=None)
        weights = QuantizedBuffer.of(base, parameters, scheme) if scheme else parameters
        return cls(config, weights, backend)

    @property
    def scheme(self) -> str | None:
        """int8 or int4; None: weights in floats."""
        return self.weights.scheme if isinstance(self.weights, QuantizedBuffer) else None

    def in_floats(self) -> np.ndarray:
        """The flat float32 parameters: `weights` themselves, or a new array."""
        return self.weights.dense() if isinstance(self.weights, QuantizedBuffer) else self.weights

    @cached_property
    def on_engine(self) -> tuple[NamedViews, NamedArrays]:
        """What products read, and where norms have their weights, in the engine's own type."""
        if isinstance(self.weights, QuantizedBuffer) and self.backend.reads_codes:
            return self.weights, self.weights
        host, engine = self.in_floats(), self.backend
        kind = engine.activation
        if kind == FLOAT16 and not fits_float16(host):
            kind = engine.dtype
        buffer = FlatBuffer(self.config, engine.from_host(host, kind))
        if kind == engine.dtype:
            return buffer, buffer
        values = FlatBuffer(self.config, host)
        vectors = (tensor.name for tensor in buffer.table if len(tensor.shape) == 1)
        return buffer, {name: engine.from_host(values[name]) for name in vectors}


def frozen_bytes(config: ModelConfig, ops: Backend, scheme: str | None = None) -> int:
    """Bytes of `Frozen` on an engine, but for vectors, which are few; 0 without adapters.

    `scheme`: int8 or int4, where the weights are quantized.
    """
    if config.lora is None:
        return 0
    base = replace(config, lora=None)
    if scheme is not None and ops.reads_codes:
        return quantized_bytes(base, scheme)
    return ops.activation.itemsize * storage_elements(tensor_table(base))
