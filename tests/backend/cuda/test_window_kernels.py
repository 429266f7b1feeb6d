"""The kernels of sliding windows and of a scaled embedding on a GPU."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.check_form import check_form


@pytest.mark.gpu
def test_a_window_starts_where_the_specification_says():
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend("fp32"), np.random.default_rng(1)
    starts = np.sort(random.integers(0, 300, (5, 301)).astype(np.int32))
    offset = random.integers(0, 9000, 5).astype(np.int32)
    expected, out = np.empty_like(starts), engine.empty(starts.shape, np.int32)
    ReferenceBackend(np.float32).window_starts(starts, offset, 77, 8000, expected)
    engine.window_starts(*map(engine.from_host, (starts, offset)), 77, 8000, out)
    np.testing.assert_array_equal(engine.to_host(out), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp8"])
def test_windows_and_a_scaled_embedding_are_trained_as_specified(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    fields = {"embedding_scale": 27.7, "windows": [64, 0]}
    config = ModelConfig.from_dict({"preset": "base"} | fields)
    assert [row for row in check_form(CudaBackend(precision), config) if not row.passed] == []
