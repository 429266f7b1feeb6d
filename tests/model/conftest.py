"""Small models with weights wide enough that every nonlinearity bends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.model_gradients import TINY
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import storage_elements, tensor_table
from nanoeuler.model.transformer import Batch, Transformer


def random_parameters(config: ModelConfig, seed: int = 1) -> np.ndarray:
    """A flat float64 buffer: normal with spread 0.4, norms around 1, padding 0."""
    random = np.random.default_rng(seed)
    parameters = np.zeros(storage_elements(tensor_table(config)))
    buffer = FlatBuffer(config, parameters)
    for tensor in buffer.table:
        buffer[tensor.name][...] = random.standard_normal(tensor.shape) * 0.4 + (
            1.0 if tensor.initial_std is None else 0.0
        )
    return parameters


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """make_model(dtype=…, **fields): a transformer of the tiny configuration with some fields changed."""

    def make(dtype: Any = np.float64, **fields: Any) -> Transformer:
        config, backend = ModelConfig.from_dict(TINY | fields), ReferenceBackend(dtype)
        return Transformer(config, backend.from_host(random_parameters(config)), backend)

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """make_batch(ids): rows of one document each."""

    def make(ids: Any) -> Batch:
        ids = np.asarray(ids, np.int32)
        return Batch(
            ids, np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1)), np.zeros_like(ids)
        )

    return make
