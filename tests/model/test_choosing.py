"""Tokens that an engine chooses itself are those that the host chooses, on any path."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.sampling import GREEDY
from nanoeuler.inference.window import ContextWindow
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from tests.choosing_backend import ChoosingBackend

CONFIG = ModelConfig(
    vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=20, context=24, mtp_heads=2
)


def written(backend, prompts, count):
    """The tokens that are chosen behind `prompts`, (count, rows)."""
    parameters = 4 * initial_parameters(CONFIG, 1)
    model = Transformer(CONFIG, backend.from_host(parameters), backend)
    window = ContextWindow(model, len(prompts), CONFIG.context)
    allowed = np.arange(CONFIG.vocab_size) > 2
    chosen, new = [], prompts
    for position in range(count):
        positions = np.full(len(prompts), position)
        chosen.append(window.choose(new, GREEDY, positions, allowed))
        new = [[int(token)] for token in chosen[-1]]
    return np.array(chosen)


@pytest.mark.parametrize("prompts", [[[5]], [[5, 9, 11]], [[5, 9], [7], [8, 3, 2]]])
def test_an_engine_that_chooses_gives_the_tokens_that_the_host_gives(prompts):
    """40 tokens slide out of a context of 24: the cache is read anew on the way."""
    expected = written(ReferenceBackend(), prompts, 40)
    np.testing.assert_array_equal(written(ChoosingBackend(), prompts, 40), expected)
