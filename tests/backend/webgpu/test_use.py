"""What a trained model is used for on this engine: continuations are scored, text is written."""

import numpy as np
import pytest

import nanoeuler
from nanoeuler.evaluation.asking import Pair
from nanoeuler.evaluation.continuations import log_likelihoods
from nanoeuler.inference.decoder import Decoder
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.in_use import is_halved, model_in_use
from nanoeuler.model.transformer import Transformer
from tests.models import GPT2, LLAMA, model_in


@pytest.mark.parametrize("fields", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_it_writes_what_the_specification_writes(engine, tmp_path, fields):
    folder = model_in(tmp_path / "model", fields)
    written = [
        nanoeuler.load(folder, device=device).generate("The ferry", max_tokens=9, temperature=0)
        for device in ("webgpu", "reference")
    ]
    assert written[0] == written[1]


def test_it_scores_continuations_as_the_specification_does(engine):
    config = ModelConfig.from_dict(LLAMA)
    weights, random = 8 * initial_parameters(config, 1), np.random.default_rng(4)
    pairs = [Pair(random.integers(1, 300, n).astype(np.int32), n // 2) for n in (3, 9, 14)]
    (sums, greedy), (expected, is_greedy) = (
        log_likelihoods(Transformer(config, ops.from_host(weights), ops), pairs, 32, 0)
        for ops in (engine, nanoeuler.backend.make_backend("reference"))
    )
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert np.array_equal(greedy, is_greedy)


@pytest.fixture
def halving(engine):
    """The engine with matrices in float16, and all else in float32."""
    if not engine.device.has_halves:
        pytest.skip("the adapter reads no float16")
    own = type(engine)()
    own.halves_weights = True
    return own


@pytest.mark.parametrize("fields", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_matrices_in_float16_are_read_as_they_are_rounded(halving, fields):
    config = ModelConfig.from_dict(fields)
    weights = 8 * initial_parameters(config, 1)
    tokens = np.random.default_rng(4).integers(1, 300, (1, 12)).astype(np.int32)
    rounded = FlatBuffer(config, weights.copy())
    for tensor in rounded.table:
        if len(tensor.shape) > 1:
            rounded[tensor.name][...] = rounded[tensor.name].astype(np.float16)
    model = model_in_use(config, weights, halving)
    assert is_halved(model)
    assert model.parameters.nbytes == weights.nbytes // 2
    reference = nanoeuler.backend.make_backend("reference")
    exact = Transformer(config, reference.from_host(rounded.array), reference)
    for count in (9, 1, 2):  # a prompt, and tokens that are decoded
        part, tokens = tokens[:, :count], tokens[:, count:]
        if count == 9:
            caches = model.new_cache(1, 12), exact.new_cache(1, 12)
        found = halving.to_host(extend(model, caches[0], part))
        # in float32 from there on: see OP_TOLERANCE
        np.testing.assert_allclose(found, extend(exact, caches[1], part), rtol=0, atol=1e-4)


def test_a_model_with_a_number_that_float16_lacks_stays_in_float32(halving):
    config = ModelConfig.from_dict(LLAMA)
    weights = initial_parameters(config, 1)
    weights[5] = 1e5
    assert not is_halved(model_in_use(config, weights, halving))


def test_the_scores_of_sampled_tokens_are_found_from_logits_on_the_host(engine):
    config = ModelConfig.from_dict(LLAMA)
    model = Transformer(config, engine.from_host(initial_parameters(config, 1)), engine)
    decoder = Decoder.__new__(Decoder)
    decoder.model = model
    logits = np.random.default_rng(2).standard_normal((2, 300)).astype(np.float32)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = decoder.scores(logits, [[7], [250]])
    np.testing.assert_allclose(found, [expected[0, 7], expected[1, 250]], rtol=1e-5)
