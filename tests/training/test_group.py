"""Ranks that share computations: over real connections, in threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Lora
from nanoeuler.model.adapters import adapted
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, apart, initial_parameters
from nanoeuler.model.frozen import Frozen
from nanoeuler.training.distributed import parameters
from nanoeuler.training.distributed.group import ALONE, HostGroup
from nanoeuler.training.distributed.parameters import buckets
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import TINY

ADAMW = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
OTHER = replace(TINY, tied=not TINY.tied)
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


def groups(size, kind=HostGroup):
    pairs = [Pipe() for _ in range(size - 1)]
    leader = kind(0, size, [near for near, _ in pairs])
    return [leader, *(kind(rank, size, [far]) for rank, (_, far) in enumerate(pairs, 1))]


def by_ranks(size, work, kind=HostGroup):
    """What `work` returns on each of so many ranks."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups(size, kind)))


def rows_of(config):
    tokens = np.random.default_rng(1).integers(0, 50, 1000).astype(np.int32)
    return TextStream(tokens, 8, 96, config.mtp_weights, 0, True, 1, "text").rows(0)


@pytest.mark.parametrize("count", [0, 1, 3, 7])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_all_values_in_order_and_computes_its_own(size, count):
    computed = [[] for _ in range(size)]

    def work(group):
        def square(number):
            computed[group.rank].append(number)
            return number**2

        return list(group.share(count, square))

    found = by_ranks(size, work)
    assert found == [[number**2 for number in range(count)]] * size
    assert computed == [list(range(rank, count, size)) for rank in range(size)]


def test_a_rank_alone_computes_each_when_it_is_asked_for():
    asked = []
    values = ALONE.share(3, asked.append)
    assert next(values) is None
    assert asked == [0]


@pytest.mark.parametrize("config", [TINY, OTHER, GPT2])
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
@pytest.mark.parametrize("config", [TINY, OTHER, GPT2])
def test_sums_during_the_backward_pass_have_the_bits_of_sums_behind_it(
    config, rows_at_once, monkeypatch
):
    rows = rows_of(config)

    def train(group):
        start = initial_parameters(config, 1)
        state = TrainingState(config, ReferenceBackend(), start, ADAMW, group=group)
        results = [state.train_step(rows, rows_at_once, 1e-2) for _ in range(2)]
        state.settle()
        return bool(state.shared.buckets.early), results, state.parameters.tobytes()

    during = by_ranks(2, train)
    monkeypatch.setattr(parameters, "BUCKETS", 0.5)  # none holds two of the model
    behind = by_ranks(2, train)
    assert [found[0] for found in (*during, *behind)] == [True, True, False, False]
    assert during[0][1:] == during[1][1:] == behind[0][1:] == behind[1][1:]


class Copying(ReferenceBackend):
    """An engine in float64 whose products read a copy of the parameters, rounded to float32."""

    def __init__(self):
        super().__init__(np.float64)
        self.copies = []

    def working_copy(self, parameters):
        if any(parameters is copy for copy in self.copies):
            return parameters
        self.copies.append(np.empty_like(parameters))
        self.refresh(self.copies[-1], parameters)
        return self.copies[-1]

    def refresh(self, working, parameters):
        working[...] = parameters.astype(np.float32)


def three_train_as_one(train, size):
    """`train` returns how many parameters a rank holds, its losses, its tensors and all weights.

    Returns the losses.
    """
    sizes, losses, *rest = zip(*by_ranks(3, train), strict=True)
    assert sum(sizes) == size
    assert losses[0] == losses[1] == losses[2]
    held, expected, *known = train(ALONE)
    assert held == size
    np.testing.assert_allclose(losses[0], expected, rtol=1e-9)
    for tensors, read in zip(*rest, strict=True):
        for name, array in tensors.items():
            np.testing.assert_allclose(array, known[0][name], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(read, known[1], rtol=1e-6, atol=1e-9)
    return losses[0]


@pytest.mark.parametrize("optimizer", [ADAMW, Muon(0.9, ADAMW)])
@pytest.mark.parametrize("config", [TINY, OTHER, GPT2])
def test_ranks_hold_their_part_of_the_parameters_and_train_as_one_does(config, optimizer):
    rows = rows_of(config)
    start = initial_parameters(config, 1)

    def train(group):
        state = TrainingState(config, Copying(), start, optimizer, group=group)
        state.stage(rows)
        state.rehearse(2)
        losses = [state.train_step(rows, 2, 1e-2).loss for _ in range(2)]
        halfway, size = state.tensors(), len(state.shared.own)
        losses.append(state.train_step(rows, 2, 1e-2).loss)
        state.settle()
        after = state.tensors()
        weights = state.model.weights
        norms = [*(block.norm for block in weights.blocks), weights.final_norm]
        read = np.concatenate([array.ravel() for array in (state.model.working, *norms)])
        state.load(halfway, 2)
        assert state.train_step(rows, 2, 1e-2).loss == losses[-1]
        assert all((a == after[name]).all() for name, a in state.tensors().items())
        return size, losses, after, read

    three_train_as_one(train, len(start))


def test_ranks_that_hold_a_part_of_the_adapters_train_as_one_does():
    config = adapted(TINY, Lora(rank=3))
    rows = rows_of(config)
    frozen, start = apart(config, initial_parameters(config, 1))

    def train(group):
        engine = Copying()
        base = Frozen(config, frozen.astype(np.float64), engine)
        state = TrainingState(config, engine, start, ADAMW, base=base, group=group)
        losses = [state.train_step(rows, 2, 1e-2).loss for _ in range(3)]
        state.settle()
        read = state.model.working.copy()
        state.load(state.tensors(), 3)
        assert np.array_equal(read, state.model.working)
        return len(state.shared.own), losses, state.tensors(), read

    losses = three_train_as_one(train, len(start))
    assert losses[2] < losses[0]


class Late(HostGroup):
    """Ranks whose weights arrive no sooner than they are waited for."""

    def begin_gather(self, array, cuts, parts):
        arriving = array.copy()
        super().begin_gather(arriving, cuts, parts)

        def arrive():
            for part in parts:
                array[part] = arriving[part]

        return arrive


@pytest.mark.parametrize("engine", [ReferenceBackend, Copying])
@pytest.mark.parametrize("config", [TINY, OTHER, GPT2])
def test_a_step_waits_for_all_weights_that_it_reads(config, engine):
    rows = rows_of(config)

    def train(group):
        state = TrainingState(config, engine(), initial_parameters(config, 1), ADAMW, group=group)
        assert state.shared.buckets.early
        losses = [state.train_step(rows, 2, 1e-2).loss for _ in range(3)]
        state.settle()
        return losses, state.model.working.tobytes()

    assert by_ranks(2, train, Late) == by_ranks(2, train)


@pytest.mark.parametrize("size", [2, 3])
def test_rounded_sums_differ_by_the_rounding_of_each_number_and_each_sum(size):
    random = np.random.default_rng(3)
    given = random.standard_normal((size, 1000)).astype(np.float32)
    ends = [1000 * rank // size for rank in range(size + 1)]
    parts = [slice(0, 100), slice(100, 990)]  # the rest is not summed

    def work(group):
        array = given[group.rank].copy()
        group.begin_reduce(array, ends, parts, rounded=True)
        group.finish_reduce()
        return array[ends[group.rank] : ends[group.rank + 1]]

    found = np.concatenate(by_ranks(size, work))
    exact = given.sum(axis=0)
    np.testing.assert_array_equal(found[990:], given[-1, 990:])
    error = np.abs(found - exact)[:990]
    rounded = (np.abs(given).sum(axis=0) + np.abs(exact))[:990]
    assert (error <= 2.0**-8 * (1 + 2.0**-7) * rounded).all()  # half of the last of 8 bits each
    assert 2.0**-10 < np.linalg.norm(error) / np.linalg.norm(exact) < 2.0**-8
    np.testing.assert_array_equal(found[:990].view(np.uint32) & 0xFFFF, 0)
