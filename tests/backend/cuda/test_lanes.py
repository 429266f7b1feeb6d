"""Sums in one order: any number of GPUs would have computed the same bits."""

import itertools

import numpy as np
import pytest

from nanoeuler.backend.records import FlatState
from nanoeuler.backend.runtime import Runtime
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.distributed.parameters import cuts
from nanoeuler.training.lanes import cells_of
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

pytestmark = pytest.mark.gpu
CONFIG = ModelConfig.from_dict(
    {"vocab_size": 512, "dim": 256, "layers": 5, "heads": 4, "kv_heads": 2, "ffn": 512}
    | {"context": 128, "mtp_heads": 2, "qk_norm": "rms"}
)
ROWS = 16


@pytest.fixture(params=["bf16", "fp8", "fp32"])
def backend(request):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(request.param)


@pytest.fixture
def rows():
    tokens = np.random.default_rng(1).integers(1, 512, 9000).astype(np.int32)
    length = CONFIG.context
    stream = TextStream(tokens, length, ROWS * length, CONFIG.mtp_weights, 0, True, 5, "lanes")
    return stream.rows


def state_of(backend, lanes, parameters=None):
    given = initial_parameters(CONFIG, 3) if parameters is None else parameters
    return TrainingState(CONFIG, backend, given, Muon(0.95, AdamW()), lanes=lanes)


def bits(backend, array):
    return backend.to_host(array).view(np.uint32)


def test_neighbours_are_added_first(backend):
    numbers = np.random.default_rng(2).normal(size=(8, 1 << 14)).astype(np.float32)
    for count in (2, 4, 8):
        ours, known = backend.from_host(numbers[:count]), numbers[:count].copy()
        backend.runtime.add_neighbours(list(ours))
        Runtime().add_neighbours(list(known))
        np.testing.assert_array_equal(backend.to_host(ours[0]), known[0])


def test_the_squares_of_a_cell_do_not_depend_on_the_others(backend):
    values = np.random.default_rng(3).normal(size=1 << 16).astype(np.float32)
    array, cells = backend.from_host(values), [slice(0, 1024), slice(1024, 40_000)]
    cells.append(slice(40_000, len(values)))
    sums, alone = (backend.zeros((3,), np.float64) for _ in range(2))
    backend.squares_of_cells(array, cells, sums)
    for number, cell in enumerate(cells):
        backend.squares_of_cells(array, [cell], alone[number : number + 1])
    np.testing.assert_array_equal(backend.to_host(sums), backend.to_host(alone))
    expected = [np.square(values[cell], dtype=np.float64).sum() for cell in cells]
    np.testing.assert_allclose(backend.to_host(sums), expected, rtol=1e-13)


@pytest.mark.parametrize("backend", ["bf16", "fp32"], indirect=True)  # ranks agree on fp8's scales
def test_two_ranks_would_add_up_the_same_gradients(backend, rows):
    step = rows(0)
    sums = []
    for share, ranks, lanes in ((0, 1, 8), (0, 2, 4), (1, 2, 4)):
        state = state_of(backend, lanes)
        state.stage(step.share(share, ranks))
        state.rehearse(2)
        backend.runtime.add_neighbours(state.portions.to_sum)
        sums.append(state.gradients.copy())
    whole, *halves = sums
    backend.runtime.add_neighbours(halves)
    np.testing.assert_array_equal(bits(backend, whole), bits(backend, halves[0]))


def test_parts_of_the_update_are_those_of_the_whole(backend, rows):
    whole = state_of(backend, 8)
    for step in range(4):  # the third one is recorded
        whole.stage(rows(step))
        before = backend.to_host(whole.parameters).copy()
        moments = {name: each.copy() for name, each in whole.optimizer.tensors.items()}
        whole.start(2, 3e-3)
        whole.finish()
    report, feed = backend.zeros((2,), np.float64), backend.runtime.feed([np.zeros(2)])
    feed.load(np.array([3e-3, 3.0]))
    given = whole.portions.cell_squares, feed.arrays[0], whole.results[:2], report
    clip_norm = whole.optimizer_settings.adamw.clip_norm

    def updated(part):
        """Part of the parameters, as a rank that has it alone would update it."""
        own = backend.from_host(before[part])
        optimizer = Muon(0.95, AdamW()).make(CONFIG, backend, part)
        for name, array in optimizer.tensors.items():
            array[...] = moments[name][part]
        flat = FlatState(own, own, whole.gradients[part])
        backend.runtime.program(
            lambda: optimizer.update(flat, backend.begin_update(*given, clip_norm)),
            training=True,
            untimed=True,
        ).run()
        return bits(backend, own)

    for ends in itertools.pairwise(cuts(CONFIG, 2, cells_of(CONFIG))):
        part = slice(*ends)
        np.testing.assert_array_equal(updated(part), bits(backend, whole.parameters[part]))
