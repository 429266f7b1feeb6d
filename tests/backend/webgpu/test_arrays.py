"""Arrays on the device do what NumPy's do: views, copies, fills, and numbers of both types."""

import weakref

import numpy as np
import pytest

from nanoeuler.backend.webgpu.arrays import decode, encode
from nanoeuler.model.buffers import Arena

VALUES = np.arange(2 * 6 * 8 * 3, dtype=np.float32).reshape(2, 6, 8, 3)
VIEWS = {
    "slices": lambda x: x[1:, 2:5, ::2],
    "a number": lambda x: x[0, 3],
    "columns as heads": lambda x: x.reshape(12, 24)[:, 8:20].reshape(12, 3, 4),
    "another type": lambda x: x.view(np.int32)[:, :, 1],
    "an ellipsis": lambda x: x[..., 1:],
    "a new dimension": lambda x: x[:, None, 2],
    "transposed": lambda x: x.reshape(12, 24).T,
    "a half of all": lambda x: x[::2][0],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_elements_of_numpys(engine, name):
    view = VIEWS[name]
    expected, found = view(VALUES), view(engine.from_host(VALUES))
    assert (found.shape, found.dtype, found.nbytes) == (
        expected.shape,
        expected.dtype,
        expected.nbytes,
    )
    assert np.array_equal(engine.to_host(found), expected)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_to_a_view_is_in_the_array(engine, name):
    view = VIEWS[name]
    expected, found = VALUES.copy(), engine.from_host(VALUES)
    view(expected)[...] = 7
    view(found)[...] = 7
    assert np.array_equal(engine.to_host(found), expected)
    source = -view(VALUES)
    view(expected)[...] = source
    view(found)[...] = engine.from_host(source)
    assert np.array_equal(engine.to_host(found), expected)


@pytest.mark.parametrize("name", [each for each in VIEWS if each != "another type"])
def test_numbers_of_16_bits_are_copied_and_become_those_of_32(halves, name):
    view = VIEWS[name]
    expected, found = VALUES.astype(np.float16), halves.from_host(VALUES, np.float16)
    assert np.array_equal(halves.to_host(view(found)), view(expected))
    assert np.array_equal(halves.to_host(view(found).copy()), view(expected))
    view(found)[...] = 7
    view(expected)[...] = 7
    assert np.array_equal(halves.to_host(found), expected)
    wide = halves.from_host(-VALUES / 3)
    view(found)[...] = view(wide)
    view(expected)[...] = view(-VALUES / 3)
    assert np.array_equal(halves.to_host(found), expected)
    view(wide)[...] = view(found)
    assert np.array_equal(halves.to_host(view(wide)), view(expected))


def test_float16_is_copied_bit_by_bit_as_whole_numbers(halves):
    bits = np.arange(1 << 16, dtype=np.uint16)[:, None]
    source, target = halves.from_host(bits), halves.zeros(bits.shape, np.uint16)
    target[...] = source
    is_number = ~np.isnan(bits.view(np.float16))
    assert np.array_equal(halves.to_host(target)[is_number], bits[is_number])


def test_a_reshape_that_would_take_a_copy_is_refused(engine):
    with pytest.raises(ValueError, match="copy"):
        engine.from_host(VALUES)[:, 1:].reshape(-1)


def test_an_array_is_not_indexed_by_an_array(engine):
    with pytest.raises(TypeError, match="slices"):
        engine.from_host(VALUES)[np.array([0, 1])]


def test_an_array_is_iterated_over_by_its_rows(engine):
    rows = list(engine.from_host(VALUES))
    assert len(rows) == 2
    assert np.array_equal(engine.to_host(rows[1]), VALUES[1])


def test_an_arena_hands_out_parts_of_its_memory(engine):
    arena = Arena(engine.zeros((4096,), np.uint8))
    first, second = arena.empty((3, 5), np.dtype(np.float32)), arena.empty((7,), np.dtype(np.int32))
    first[...] = 2
    second[...] = engine.from_host(np.arange(7, dtype=np.int32))
    assert np.array_equal(engine.to_host(first), np.full((3, 5), 2))
    assert np.array_equal(engine.to_host(second), np.arange(7))


def test_a_float64_keeps_48_bits_and_infinities():
    values = np.array([0.1, -1e-3, 3.0, 1 + 2.0**-40, np.inf, -np.inf])
    found = decode(encode(values).tobytes(), values.shape, values.dtype)
    assert np.allclose(found, values, rtol=2.0**-47, atol=0)
    assert np.isnan(decode(encode(np.array([np.nan])).tobytes(), (1,), values.dtype)).all()


def test_a_feed_hands_over_arrays_of_several_types_and_a_shorter_last_one(engine):
    given = [np.array([0.1, 5.0]), np.arange(3, dtype=np.int32), np.zeros((4, 2), np.float32)]
    feed = engine.runtime.feed(given)
    last = np.ones((2, 2), np.float32)
    feed.load(np.array([0.25, 1 / 3]), np.array([4, 5, 6]), last)
    numbers, ids, rows = map(engine.to_host, feed.arrays)
    assert np.allclose(numbers, [0.25, 1 / 3], rtol=2.0**-47, atol=0)
    assert ids.tolist() == [4, 5, 6]
    assert np.array_equal(rows[:2], last)


def test_a_program_is_recorded_once_and_replayed_on_what_it_is_fed(engine):
    feed, out, calls = engine.runtime.feed([np.zeros((2, 3), np.float32)]), engine.zeros((2, 3)), []

    def work():
        calls.append(1)
        out[...] = feed.arrays[0]
        engine.scale(out, 2.0)

    program = engine.runtime.program(work)
    for number in range(1, 6):
        feed.load(np.full((2, 3), number, np.float32))
        program.run()
        assert np.array_equal(engine.to_host(out), np.full((2, 3), 2 * number))
    assert len(calls) == 1
    # while the host waited, the launches were made ready for the next run, and go with the program
    ready = weakref.ref(program.commands.ahead)
    assert ready()
    assert np.array_equal(engine.to_host(out[1:]), np.full((1, 3), 10))
    engine.scale(out, 3.0)
    assert np.array_equal(engine.to_host(out), np.full((2, 3), 30))
    engine.kernels.write(out, np.full((2, 3), 7, np.float32))
    assert np.array_equal(engine.to_host(out), np.full((2, 3), 7))
    program.run()
    program.run()
    assert np.array_equal(engine.to_host(out), np.full((2, 3), 10))
    assert not ready()
    ready = weakref.ref(program.commands.ahead)
    del program
    assert not ready()


def test_programs_that_take_turns_are_each_made_ready(engine):
    out = engine.from_host(np.ones((1, 4), np.float32))
    programs = [
        engine.runtime.program(lambda factor=factor: engine.scale(out, factor))
        for factor in (2.0, 3.0)
    ]
    for turn in range(1, 4):
        for program in programs:
            program.run()
            found = engine.to_host(out)
        assert np.array_equal(found, np.full((1, 4), 6.0**turn))
    assert all(program.commands.ahead for program in programs)
