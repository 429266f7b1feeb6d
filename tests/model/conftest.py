"""Small models with weights wide enough that every nonlinearity bends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.model_gradients import TINY, random_parameters
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.transformer import Batch, Transformer


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """make_model(dtype=…, **fields): a transformer of `TINY` with some fields changed."""

    def make(dtype: Any = np.float64, **fields: Any) -> Transformer:
        config, backend = ModelConfig.from_dict(TINY | fields), ReferenceBackend(dtype)
        parameters = random_parameters(config, np.random.default_rng(1))
        return Transformer(config, backend.from_host(parameters), backend)

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """make_batch(ids): rows of one document each."""

    def make(ids: Any) -> Batch:
        ids = np.asarray(ids, np.int32)
        positions = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
        return Batch(ids, positions, np.zeros_like(ids))

    return make
