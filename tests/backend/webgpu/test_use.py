"""What a trained model is used for on this engine: continuations are scored, text is written."""

import numpy as np
import pytest

import nanoeuler
from nanoeuler.evaluation.asking import Pair
from nanoeuler.evaluation.continuations import log_likelihoods
from nanoeuler.inference.decoder import Decoder
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
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


def test_the_scores_of_sampled_tokens_are_found_from_logits_on_the_host(engine):
    config = ModelConfig.from_dict(LLAMA)
    model = Transformer(config, engine.from_host(initial_parameters(config, 1)), engine)
    decoder = Decoder.__new__(Decoder)
    decoder.model = model
    logits = np.random.default_rng(2).standard_normal((2, 300)).astype(np.float32)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = decoder.logprobs(logits, [7, 250])
    np.testing.assert_allclose(found, [expected[0, 7], expected[1, 250]], rtol=1e-5)
