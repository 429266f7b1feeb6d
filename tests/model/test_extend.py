"""The KV cache: any way of feeding a sequence in gives the logits of the whole forward pass."""

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.checks.model_gradients import TINY, random_parameters
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.transformer import Transformer

# Float64 with products of other shapes: the order of a sum may differ, nothing else.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def random_ids(rows, length, seed=5):
    random = np.random.default_rng(seed)
    return random.integers(0, TINY["vocab_size"], (rows, length)).astype(np.int32)


@pytest.fixture(
    params=[{}, {"kv_heads": 1, "tied": True, "head_size": 6}, {"mtp_heads": 1, "step_size": 0.5}],
    ids=["grouped", "tied", "half steps"],
)
def model(request, make_model):
    return make_model(**request.param)


def whole(model, make_batch, ids):
    """Logits behind every token, uncached: (B, T, V)."""
    return model.first_logits(model.forward(make_batch(ids)).stream.normed).reshape(*ids.shape, -1)


def test_prefill_gives_the_logits_behind_every_token(model, make_batch):
    ids = random_ids(3, 8)
    expected = whole(model, make_batch, ids)
    np.testing.assert_allclose(
        extend(model, model.new_cache(3, 8), ids, every=True), expected, **CLOSE
    )
    np.testing.assert_allclose(extend(model, model.new_cache(3, 8), ids), expected[:, -1], **CLOSE)


@pytest.mark.parametrize("pieces", [[1] * 8, [3, 1, 4], [7, 1], [2, 6]])
def test_any_pieces_give_the_logits_of_the_whole(model, make_batch, pieces):
    ids = random_ids(2, 8)
    cache = model.new_cache(2, 8)
    parts = np.split(ids, np.cumsum(pieces)[:-1], axis=1)
    logits = np.concatenate([extend(model, cache, part, every=True) for part in parts], axis=1)
    np.testing.assert_allclose(logits, whole(model, make_batch, ids), **CLOSE)
    assert cache.lengths.tolist() == [8, 8]


def test_rows_of_unequal_lengths_do_not_disturb_each_other(model, make_batch):
    ids = random_ids(3, 8)
    expected = whole(model, make_batch, ids)
    cache = model.new_cache(3, 8)
    taken = np.zeros(3, np.int32)
    # in the last step the padding reaches past the cache's end
    for counts in ([4, 1, 2], [1, 1, 3], [2, 1, 2], [1, 4, 1]):
        padded = np.full((3, max(counts)), 18, np.int32)
        for row, count in enumerate(counts):
            padded[row, :count] = ids[row, taken[row] : taken[row] + count]
        taken += counts
        logits = extend(model, cache, padded, np.array(counts))
        np.testing.assert_allclose(logits, expected[np.arange(3), taken - 1], **CLOSE)
        assert cache.lengths.tolist() == taken.tolist()


def test_truncate_takes_tokens_back(model, make_batch):
    ids, other = random_ids(2, 8), random_ids(2, 3, seed=6)
    cache = model.new_cache(2, 8)
    extend(model, cache, ids)
    cache.truncate(0, 5)
    cache.truncate(1, 5)
    logits = extend(model, cache, other, every=True)
    changed = np.concatenate([ids[:, :5], other], axis=1)
    np.testing.assert_allclose(logits, whole(model, make_batch, changed)[:, 5:], **CLOSE)


def test_remove_moves_the_last_row_into_the_gap(model, make_batch):
    ids = random_ids(3, 8)
    cache = model.new_cache(3, 8)
    extend(model, cache, ids[:, :6], np.array([6, 3, 5]))
    cache.remove(0)
    assert cache.lengths.tolist() == [5, 3]
    logits = extend(model, cache, np.array([[ids[2, 5]], [ids[1, 3]]]))
    expected = whole(model, make_batch, ids)
    np.testing.assert_allclose(logits, expected[[2, 1], [5, 3]], **CLOSE)


def test_what_does_not_fit_is_refused_and_changes_nothing(model):
    cache = model.new_cache(2, 4)
    extend(model, cache, random_ids(2, 3))
    with pytest.raises(ValueError, match="the cache holds 4 tokens"):
        extend(model, cache, random_ids(2, 2))
    with pytest.raises(ValueError, match="do not fit a cache of 2 rows"):
        extend(model, cache, random_ids(3, 1))
    with pytest.raises(ValueError, match="counts"):
        extend(model, cache, random_ids(2, 1), np.array([1, 0]))
    with pytest.raises(ValueError, match="cannot be cut to 5"):
        cache.truncate(0, 5)
    assert cache.lengths.tolist() == [3, 3]


def test_a_longer_rotary_table_leaves_the_one_that_recorded_programs_read(model):
    before = model.rotary.whole
    positions = len(before[0])
    model.rotary.need(positions)
    assert model.rotary.made == [(before, before)]
    model.rotary.need(positions + 1)
    assert model.rotary.made[0][0] is before
    assert model.rotary.whole is not before
    assert len(model.rotary.whole[0]) == 2 * positions, "few are made, however it grows"
    np.testing.assert_array_equal(model.rotary.whole[0][:positions], before[0])


class InFours(CpuBackend):
    """An engine that reads prompts of up to 11 tokens, to which up to four cost the same."""

    fused_tokens, prompt_multiple = 1, 4

    def longest_prompts(self, forms, dim, rows):
        return 11  # 8 of which are a multiple of four

    def decode_fused(self, step):
        super().decode_fused(step)
        if step.last_BD is not None:
            first = np.arange(0, len(step.x_ND), step.starts_BT.shape[1])
            step.last_BD[...] = step.x_ND[first + step.ends_B - step.lengths_B]
            step.x_ND[...] = np.nan


def test_prompts_of_nearly_one_length_take_the_same_step():
    config, random = ModelConfig.from_dict(TINY), np.random.default_rng(1)
    parameters = random_parameters(config, random).astype(np.float32)
    plain, wide = (Transformer(config, parameters, engine(1)) for engine in (CpuBackend, InFours))
    ids = random_ids(2, config.context)  # behind which the last step's padding reaches
    caches = [model.new_cache(2, config.context) for model in (plain, wide)]
    for length in (5, 7, config.context):
        for cache in caches:
            cache.lengths[:] = 0
        read = [
            [
                extend(model, cache, ids[:, :2]),
                extend(model, cache, ids[:, 2:length], [1, length - 2]),
            ]
            for model, cache in zip((plain, wide), caches, strict=True)
        ]
        np.testing.assert_allclose(read[1], read[0], rtol=1e-5, atol=1e-6)
        assert caches[1].lengths.tolist() == [3, length]
    shapes = [sorted(key[:2] for key in cache.memory.passes) for cache in caches]
    assert shapes == [[(2, 2), (2, 3), (2, 5), (2, 6)], [(2, 8)]]
    (only,) = caches[1].memory.passes.values()
    assert sorted(only.programs) == [4, 8]
