"""`export --format nanoeuler --dtype bf16`: a model folder like any other, half as large."""

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.model.files import WEIGHTS, load_model
from nanoeuler.model.weights_file import from_bf16, to_bf16


@pytest.fixture
def halved(make_model, tmp_path):
    """A model folder, and its export in bf16."""
    saved = make_model({}, "alpaca")
    command = ["export", str(saved), "--format", "nanoeuler", "--dtype", "bf16"]
    assert main([*command, "--output", str(tmp_path / "half")]) == 0
    return saved, tmp_path / "half"


def test_it_holds_the_rounded_weights_in_half_the_bytes(halved):
    whole, half = map(load_model, halved)
    assert np.array_equal(half.parameters, from_bf16(to_bf16(whole.parameters)))
    assert not np.array_equal(half.parameters, whole.parameters)
    assert (
        np.abs(half.parameters - whole.parameters).max() <= 2**-8 * np.abs(whole.parameters).max()
    )
    larger, smaller = ((folder / WEIGHTS).stat().st_size for folder in halved)
    assert smaller < 0.6 * larger
    assert (half.config, half.stage, half.template) == (whole.config, whole.stage, whole.template)


def test_it_is_used_like_the_model_that_it_comes_from(halved):
    model = api.load(halved[1], "cpu")
    assert model.generate("a", max_tokens=5, seed=1)


def test_a_changed_byte_is_found(halved):
    path = halved[1] / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_model(halved[1])
