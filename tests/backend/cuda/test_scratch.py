"""Scratch memory, with NumPy's arrays in place of a device's: who may free what, and when."""

import weakref

import numpy as np
import pytest

from nanoeuler.backend.cuda.scratch import BORDER, Scratch


@pytest.fixture
def scratch():
    scratch = Scratch(lambda count: np.empty(count, np.uint8))
    scratch.allocate = remembering(scratch.allocate)
    return scratch


def remembering(allocate):
    """`allocate` with a weak reference to every array that it gave, in `taken`."""

    def remember(count):
        array = allocate(count)
        remember.taken.append(weakref.ref(array))
        return array

    remember.taken = []
    return remember


def alive(scratch):
    return [reference() is not None for reference in scratch.allocate.taken]


def address(array):
    return array.__array_interface__["data"][0]


def test_parts_have_their_shapes_and_types_and_do_not_overlap(scratch):
    first, second, third = scratch.take(
        "test", ((3, 5), np.float32), ((7,), np.float64), ((2, 2), np.uint8)
    )
    assert [part.shape for part in (first, second, third)] == [(3, 5), (7,), (2, 2)]
    assert [part.dtype for part in (first, second, third)] == [np.float32, np.float64, np.uint8]
    assert address(second) - address(first) == BORDER
    assert address(third) - address(second) == BORDER
    for number, part in enumerate((first, second, third)):
        part[...] = number
    assert (first == 0).all()
    assert (second == 1).all()


def test_calls_of_fewer_rows_take_the_same_memory_and_purposes_have_their_own(scratch):
    (many,) = scratch.take("rows", ((9, 100), np.float32))
    (few,) = scratch.take("rows", ((1, 100), np.float32))
    (other,) = scratch.take("other", ((1, 100), np.float32))
    assert address(few) == address(many)
    assert address(other) != address(many)
    assert len(scratch.allocate.taken) == 2


def test_memory_that_was_outgrown_is_given_back_at_once_when_no_graph_holds_it(scratch):
    scratch.take("rows", ((1, 100), np.float32))
    scratch.take("rows", ((9, 100), np.float32))
    assert alive(scratch) == [False, True]


def test_memory_that_a_graph_holds_stays_where_it_is_until_the_graph_is_gone(scratch):
    scratch.take("rows", ((1, 100), np.float32))
    with scratch.recording() as held:
        (recorded,) = scratch.take("rows", ((1, 100), np.float32))
        at = address(recorded)
        del recorded
    (larger,) = scratch.take("rows", ((9, 100), np.float32))
    assert alive(scratch) == [True, True]
    assert address(held[0]) == at
    assert not np.shares_memory(held[0], larger)
    held.clear()  # as when whoever keeps the graph is gone
    assert alive(scratch) == [False, True]


def test_what_grows_while_a_graph_is_recorded_is_held_too_and_each_buffer_once(scratch):
    with scratch.recording() as held:
        for rows in (1, 1, 9, 2):
            scratch.take("rows", ((rows, 100), np.float32))
    scratch.take("rows", ((20, 100), np.float32))
    assert len(held) == 2
    assert alive(scratch) == [True, True, True]


def test_what_is_taken_after_a_recording_is_not_part_of_it(scratch):
    with scratch.recording() as held:
        pass
    scratch.take("rows", ((1, 100), np.float32))
    assert held == []
