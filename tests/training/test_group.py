"""Ranks that share computations: over real connections, in threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.training.distributed import shards
from nanoeuler.training.distributed.group import ALONE, HostGroup
from nanoeuler.training.distributed.shards import buckets
from nanoeuler.training.distributed.vectors import Vectors
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import TINY

GPT2 = ModelConfig(
    family="gpt2",
    vocab_size=50,
    dim=16,
    layers=2,
    heads=2,
    kv_heads=2,
    ffn=20,
    context=8,
    mtp_heads=1,
)


def groups(size):
    pairs = [Pipe() for _ in range(size - 1)]
    leader = HostGroup(0, size, [near for near, _ in pairs])
    return [leader, *(HostGroup(rank, size, [far]) for rank, (_, far) in enumerate(pairs, 1))]


@pytest.mark.parametrize("count", [0, 1, 3, 7])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_all_values_in_order_and_computes_its_own(size, count):
    computed = [[] for _ in range(size)]

    def work(group):
        def square(number):
            computed[group.rank].append(number)
            return number**2

        return list(group.share(count, square))

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(work, groups(size)))
    assert found == [[number**2 for number in range(count)]] * size
    assert computed == [list(range(rank, count, size)) for rank in range(size)]


def test_a_rank_alone_computes_each_when_it_is_asked_for():
    asked = []
    values = ALONE.share(3, asked.append)
    assert next(values) is None
    assert asked == [0]


@pytest.mark.parametrize("config", [TINY, replace(TINY, tied=not TINY.tied), GPT2])
def test_gradients_are_summed_once_each_and_most_of_them_early(config):
    early, late = buckets(config)
    parts = [*late, *(part for parts in early.values() for part in parts)]
    taken = np.zeros(FlatBuffer.elements(config), int)
    for part in parts:
        taken[part] += 1
    assert (taken == 1).all()
    assert list(early) == sorted(early, reverse=True)
    assert sum(part.stop - part.start for part in late) < len(taken) / 2


@pytest.mark.parametrize("rows_at_once", [2, 6])
@pytest.mark.parametrize("config", [TINY, replace(TINY, tied=not TINY.tied), GPT2])
def test_sums_during_the_backward_pass_have_the_bits_of_sums_behind_it(
    config, rows_at_once, monkeypatch
):
    tokens = np.random.default_rng(1).integers(0, 50, 1000).astype(np.int32)
    rows = TextStream(tokens, 8, 96, config.mtp_weights, 0, True, 1, "text").step(0)

    def train(group):
        start = initial_parameters(config, 1)
        optimizer = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
        state = TrainingState(config, ReferenceBackend(), start, optimizer, group=group)
        results = [state.train_step(rows, rows_at_once, 1e-2) for _ in range(2)]
        return bool(state.buckets.early), results, state.parameters.tobytes()

    def by_two():
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(train, groups(2)))

    during = by_two()
    monkeypatch.setattr(shards, "BUCKETS", 0.5)  # none holds two of the model
    behind = by_two()
    assert [found[0] for found in (*during, *behind)] == [True, True, False, False]
    assert during[0][1:] == during[1][1:] == behind[0][1:] == behind[1][1:]


@pytest.mark.parametrize("config", [TINY, GPT2])
def test_all_ranks_get_the_norms_of_each_others_parts_and_keep_their_own_matrices(config):
    whole = np.arange(FlatBuffer.elements(config), dtype=np.float64)

    def work(group):
        ends = shards.cuts(config, group.size)
        known = np.full(len(whole), -1.0)
        own = slice(ends[group.rank], ends[group.rank + 1])
        known[own] = whole[own]
        Vectors(config, ReferenceBackend(), ends).send(known, group)
        return own, known

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, groups(3)))
    for own, known in found:
        buffer, expected = FlatBuffer(config, known), FlatBuffer(config, whole)
        np.testing.assert_array_equal(known[own], whole[own])
        for tensor in buffer.table:
            if len(tensor.shape) == 1:
                np.testing.assert_array_equal(buffer[tensor.name], expected[tensor.name])
            elif not own.start < tensor.stop or not tensor.offset < own.stop:
                assert (buffer[tensor.name] == -1).all()
