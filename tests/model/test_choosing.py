"""Tokens that an engine chooses itself are those that the host chooses, on any path."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.decoder import Row
from nanoeuler.inference.device_decoder import decoder_kind
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, Sampling, packed
from nanoeuler.inference.speculation import DeviceSpeculation
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from tests.choosing_backend import ChoosingReference
from tests.models import chain, cycle

CONFIG = ModelConfig(
    vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=20, context=24, mtp_heads=2
)


def written(backend, prompts, count):
    """The tokens that are sampled behind `prompts`."""
    parameters = 4 * initial_parameters(CONFIG, 1)
    model = Transformer(CONFIG, backend.from_host(parameters), backend)
    allowed = np.arange(CONFIG.vocab_size) > 2
    decoding = Decoding(model, prompts, GREEDY, count, -1, allowed, 0)
    while decoding.step():
        pass
    assert min(each.dropped for each in decoding.continuations) > 0
    return [each.ids for each in decoding.continuations]


@pytest.mark.parametrize("prompts", [[[5]], [[5, 9, 11]], [[5, 9], [7], [8, 3, 2]]])
def test_an_engine_that_chooses_gives_the_tokens_that_the_host_gives(prompts):
    """40 tokens slide out of a context of 24: the cache is read anew on the way."""
    expected = written(ReferenceBackend(), prompts, 40)
    assert written(ChoosingReference(), prompts, 40) == expected


def test_an_engine_that_chooses_finds_the_log_probabilities_that_the_host_finds():
    """While rows end one by one, and steps are launched ahead."""

    def scored(backend):
        parameters = backend.from_host(4 * initial_parameters(CONFIG, 1))
        model, allowed = Transformer(CONFIG, parameters, backend), np.ones(CONFIG.vocab_size, bool)
        prompts, sampling = [[5, 9], [7], [8, 3, 2], [4]] * 8, Sampling(temperature=1, top_p=1)
        decoding = Decoding(
            model, prompts, sampling, 40, 3, allowed, 50 * np.arange(32), scored=True
        )
        while decoding.step():
            pass
        return decoding.continuations, decoding.decoder.cache.memory.samplers

    (found, recorded), (expected, _) = scored(ChoosingReference()), scored(ReferenceBackend())
    assert len({len(each.logprobs) for each in expected}) > 8
    assert len(recorded) <= 6, "steps of each number of rows"
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        assert len(one.logprobs) == len(one.ids) + one.ended
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("drafts", [3, 7])
@pytest.mark.parametrize("prompts", [[[5]], [[5, 9, 11]], [[5, 9], [7], [8, 3, 2]]])
def test_drafts_on_a_device_change_no_token(prompts, drafts):
    """Rows accept different numbers, and slide out of a context of 40 at different times."""

    def written(backend, drafts):
        model = chain(backend, cycle(12, 0.05), noise=0.7, mixing=1.0)
        speculation = DeviceSpeculation(4, 0.0, drafts) if drafts else None
        allowed = np.arange(12) > 2
        decoder = decoder_kind(model)(model, len(prompts), 40, allowed, speculation)
        decoder.rows += [Row(prompt, GREEDY) for prompt in prompts]
        passes = 0
        while min(len(row.ids) for row in decoder.rows) < 90:
            before = [len(row.ids) for row in decoder.rows]
            rows, _ = decoder.next()
            taken = [len(row.ids) - old for row, old in zip(rows, before, strict=True)]
            assert 1 <= min(taken) <= max(taken) <= 1 + drafts
            passes += 1
        assert min(row.dropped for row in decoder.rows) > 0
        return [row.ids[:90] for row in decoder.rows], passes

    expected, passes = written(ReferenceBackend(), 0)
    assert passes == 90
    found, passes = written(ChoosingReference(), drafts)
    assert found == expected
    assert passes < 85  # some drafts were right


def test_memory_of_caches_that_are_gone_passes_to_the_next_ones_of_their_shapes():
    """So a conversation's programs are not recorded anew for each reply's length."""
    backend = ChoosingReference()
    model = Transformer(CONFIG, backend.from_host(initial_parameters(CONFIG, 1)), backend)

    def memory(rows, capacity):
        return model.new_cache(rows, capacity).memory

    first, second = memory(1, 100), memory(1, 129)
    assert memory(1, 128) is first
    assert memory(1, 256) is second
    large = memory(16, 512)  # takes what may be kept for itself
    assert memory(16, 500) is large
    assert memory(1, 100) is not first
    assert memory(16, 512) is not large


def test_settings_that_are_whole_numbers_are_those_of_the_same_fractions():
    whole, fractions = Sampling(1, 5, 1, 2), Sampling(1.0, 5, 1.0, 2)
    assert packed([whole]).tolist() == packed([fractions]).tolist()
