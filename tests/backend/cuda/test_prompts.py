"""Prompts: kernels of their own, which change nothing but rounding."""

import dataclasses

import numpy as np
import pytest
from test_decoding import CONFIGS, NAMES, ODD, engine

from nanoeuler.model.appending import extend
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer

pytestmark = pytest.mark.gpu
PROMPTED = dataclasses.replace(ODD, dim=128, heads=4, ffn=192, head_size=64, context=700)


def test_prompts_have_kernels_of_their_own():
    backend = engine("bf16")
    model = Transformer(PROMPTED, backend.from_host(initial_parameters(PROMPTED, 1)), backend)
    forms = [block.form for block in model.blocks]
    hopper = backend.has_clusters
    longest = [backend.longest_prompts(forms, 128, rows) for rows in (1, 2, 7)]
    assert longest == ([2048, 1024, 292] if hopper else [0, 0, 0])
    assert backend.longest_prompts(forms, 96, 1) == 0
    assert engine("bf16", portable=True).longest_prompts(forms, 128, 1) == 0
    assert engine("fp32").longest_prompts(forms, 128, 1) == 0


@pytest.mark.parametrize("config", [PROMPTED, dataclasses.replace(PROMPTED, qk_norm="weighted")])
@pytest.mark.parametrize(("rows", "length"), [(1, 200), (3, 100), (7, 100), (30, 60), (90, 20)])
def test_behind_a_prompt_the_last_layer_computes_last_tokens_alone(config, rows, length):
    backend = engine("bf16")
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    random = np.random.default_rng(3)
    tokens = random.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    counts = length - np.arange(rows, dtype=np.int32) % 9
    caches = [model.new_cache(rows, 2 * length) for _ in range(2)]
    for _ in range(2):
        every = backend.to_host(extend(model, caches[0], tokens, counts, every=True))
        last = backend.to_host(extend(model, caches[1], tokens, counts))
        expected = every.reshape(rows, length, -1)[np.arange(rows), counts - 1]
        # each result is rounded to 8 bits
        assert np.linalg.norm(last - expected) < 0.01 * np.linalg.norm(expected)
        for row in range(rows):  # slots behind those of the row's tokens have no meaning
            ends = slice(0, caches[0].lengths[row])
            bits = [cache.memory.all_bits[:, row, ends] for cache in caches]
            assert (bits[0] == bits[1]).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_padding_of_prompts_and_the_room_of_a_cache_change_no_bit(rows):
    backend = engine("bf16")
    model = Transformer(PROMPTED, backend.from_host(initial_parameters(PROMPTED, 1)), backend)
    random = np.random.default_rng(2)
    tokens = random.integers(0, PROMPTED.vocab_size, (rows, 230)).astype(np.int32)
    counts = np.array([203, 70, 9][:rows], np.int32)

    def read(length, room):
        cache = model.new_cache(rows, room)
        first = extend(model, cache, tokens[:, :length], counts)
        behind = extend(model, cache, tokens[:, :16], np.full(rows, 12))
        return [backend.to_host(each) for each in (first, behind)]

    expected = read(203, 230)
    for length, room in ((203, 700), (210, 700), (230, 500)):
        for found, known in zip(read(length, room), expected, strict=True):
            np.testing.assert_array_equal(found, known)


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_a_prompt_read_at_once_and_in_parts_leaves_the_same_cache_but_for_rounding(config):
    """By the composed ops, and by the kernels of many and of few rows."""
    backend = engine("bf16")
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    tokens = np.random.default_rng(2).integers(1, 290, (3, 40)).astype(np.int32)
    logits = []
    for parts in ([40], [25, 15], [30, 3, 7], [38, 1, 1]):
        cache, start = model.new_cache(3, 48), 0
        for length in parts:
            found = extend(model, cache, tokens[:, start : start + length])
            start += length
        logits.append(backend.to_host(found))
    for other in logits[1:]:
        # of three layers, each result rounded to 8 bits
        error = np.linalg.norm(other - logits[0]) / np.linalg.norm(logits[0])
        assert error < 0.02
