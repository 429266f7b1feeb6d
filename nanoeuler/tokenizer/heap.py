"""A compiled binary heap of pairs of numbers, int64 (capacity, 2), with the smallest pair on top.

Pairs are compared by their first number, ties by the second.
"""

from nanoeuler.system.compiling import compiled
from nanoeuler.tokenizer.scanner import LENT


@compiled(**LENT)
def is_before(heap, index, first, second):
    return heap[index, 0] < first or (heap[index, 0] == first and heap[index, 1] < second)


@compiled(**LENT)
def push(heap, size, first, second):
    """Add a pair to a heap of `size` pairs, which must have room for it. Returns the new size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if is_before(heap, parent, first, second):
            break
        heap[hole, 0], heap[hole, 1] = heap[parent, 0], heap[parent, 1]
        hole = parent
    heap[hole, 0], heap[hole, 1] = first, second
    return size + 1


@compiled(**LENT)
def replace_top(heap, size, first, second):
    """Replace the smallest pair by another."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and is_before(heap, child + 1, heap[child, 0], heap[child, 1]):
            child += 1
        if not is_before(heap, child, first, second):
            break
        heap[hole, 0], heap[hole, 1] = heap[child, 0], heap[child, 1]
        hole = child
    heap[hole, 0], heap[hole, 1] = first, second


@compiled(**LENT)
def remove_top(heap, size):
    """Remove the smallest pair. Returns the new size."""
    replace_top(heap, size - 1, heap[size - 1, 0], heap[size - 1, 1])
    return size - 1
