"""Encode text, in compiled code: words, a cache of recent words, and two forms of the merge loop.

Text repeats its words (Zipf's law), so that nearly every word is found in the cache, in a slot of
the size of a processor's cache line. A slot is 64 bytes: the word in 24, its length and number of
ids in 8, up to eight ids in 32. A word that does not fit is merged whenever it occurs. A word may
be in either of two adjacent slots. A new word replaces the older of the two, so that memory is
bounded and the cache is never cleared.
"""

import numpy as np

from nanoeuler.system.compiling import compiled
from nanoeuler.tokenizer.counting import HALF, MULTIPLIER
from nanoeuler.tokenizer.heap import push, remove_top
from nanoeuler.tokenizer.scanner import CLASSES, FIRST_BYTES, LENT, eight_bytes_at, padded, word_end
from nanoeuler.tokenizer.vocabulary import Vocabulary

CACHE_SLOTS = 1 << 17  # 8 MB
LONGEST_CACHED = 24  # bytes of a word
MOST_CACHED = 8  # ids of a word
LENGTHS = 3  # column of the lengths in a slot of uint64
IDS = 8  # first column of the ids in a slot of int32
SHORT = 64  # bytes: in words up to this size, a scan of all pairs is faster than a heap
NOT_MERGED = (1 << 63) - 1  # the rank of a pair that is no merge
NO_KEY = -1
MERGED_AWAY = -1
PIECE, OFFSET, WRITTEN = range(3)  # of `progress`
OTHER_MULTIPLIERS = np.array([0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd


class Workspace:
    """The memory of one encoding thread: the cache, and buffers for a word being merged."""

    def __init__(self, cache_slots: int):
        self.cache = np.zeros((cache_slots, 8), np.uint64)
        self.grow(1 << 10)

    def grow(self, longest: int) -> None:
        """Make room for words of up to `longest` bytes."""
        self.links = np.empty((3, longest), np.int32)  # symbols, indices before and after each
        self.heap = np.empty((2 * longest, 2), np.int64)


class Encoder:
    """Encodes with one vocabulary, in any number of threads at once."""

    def __init__(self, vocabulary: Vocabulary, cache_slots: int = CACHE_SLOTS):
        self.cache_slots = cache_slots
        special = set(vocabulary.specials.values())
        bytes_to_id = {
            token: index
            for index, token in enumerate(vocabulary.tokens)
            if len(token) == 1 and index not in special
        }
        self.id_of_byte = np.array([bytes_to_id[bytes([byte])] for byte in range(256)], np.int32)
        merges = np.array(vocabulary.merges, np.int64).reshape(-1, 3)  # left, right, product
        self.merges = np.full((1 << (2 * len(merges)).bit_length(), 2), NO_KEY, np.int64)
        index_merges(self.merges, merges)
        self.idle: list[Workspace] = []

    def encode(self, content: bytes, borders: np.ndarray, frame: int, framed: int) -> np.ndarray:
        """Return the ids of the pieces of `content` between `borders`: int32 (ids,).

        `borders` is int64 (pieces + 1,). The id `frame` precedes each piece from number `framed`
        on.
        """
        text = padded(len(content))
        text[: len(content)] = np.frombuffer(content, np.uint8)
        ids = np.empty(len(content) + len(borders), np.int32)
        progress = np.array([0, borders[0], 0])
        try:
            workspace = self.idle.pop()
        except IndexError:
            workspace = Workspace(self.cache_slots)
        while True:
            longer = encode_pieces(
                text, eight_bytes_at(text), borders, framed, frame, CLASSES,
                self.id_of_byte, self.merges, workspace.cache, workspace.cache.view(np.int32),
                workspace.links, workspace.heap, ids, progress,
            )  # fmt: skip
            if not longer:
                break
            workspace.grow(longer)
        if workspace.links.shape[1] < 1 << 20:  # memory for a word of megabytes is freed
            self.idle.append(workspace)
        return ids[: progress[WRITTEN]].copy()


@compiled(**LENT)
def slot_of_merge(merges, key):
    """Return the slot of the pair `key`, or the empty slot for it."""
    slot = np.int64(np.uint64(key) * MULTIPLIER >> HALF) & (len(merges) - 1)
    while merges[slot, 0] != key and merges[slot, 0] != NO_KEY:
        slot = (slot + 1) & (len(merges) - 1)
    return slot


@compiled(**LENT)
def index_merges(merges, listed):
    for rank in range(len(listed)):
        key = listed[rank, 0] << 32 | listed[rank, 1]
        slot = slot_of_merge(merges, key)
        merges[slot, 0], merges[slot, 1] = key, rank << 32 | listed[rank, 2]


@compiled(**LENT)
def merge_of(merges, left, right):
    """Return rank << 32 | product of a pair; `NOT_MERGED` when it is no merge."""
    slot = slot_of_merge(merges, np.int64(left) << 32 | np.int64(right))
    return merges[slot, 1] if merges[slot, 0] != NO_KEY else NOT_MERGED


@compiled(**LENT)
def merge_short(symbols, ranks, count, merges):
    """Merge the leftmost pair of the lowest rank until no adjacent pair is a merge.

    Returns the number of symbols left.
    """
    for index in range(count - 1):
        ranks[index, 0] = merge_of(merges, symbols[index], symbols[index + 1])
    while count > 1:
        best = 0
        for index in range(1, count - 1):
            if ranks[index, 0] < ranks[best, 0]:
                best = index
        if ranks[best, 0] == NOT_MERGED:
            break
        symbols[best] = ranks[best, 0] & 0xFFFFFFFF
        count -= 1
        for index in range(best + 1, count):
            symbols[index], ranks[index, 0] = symbols[index + 1], ranks[index + 1, 0]
        if best > 0:
            ranks[best - 1, 0] = merge_of(merges, symbols[best - 1], symbols[best])
        if best < count - 1:
            ranks[best, 0] = merge_of(merges, symbols[best], symbols[best + 1])
    return count


@compiled(**LENT)
def merge_long(links, heap, count, merges):
    """Do the same in O(n log n).

    The heap holds rank and index of every pair that arose. An entry is stale if its pair has
    changed since.
    """
    symbols, before, after = links[0], links[1], links[2]
    size = 0
    for index in range(count):
        before[index], after[index] = index - 1, index + 1
    for index in range(count - 1):
        rank = merge_of(merges, symbols[index], symbols[index + 1])
        if rank != NOT_MERGED:
            size = push(heap, size, rank, index)
    while size:
        rank, index = heap[0, 0], heap[0, 1]
        size = remove_top(heap, size)
        partner = np.int64(after[index])
        if (
            symbols[index] == MERGED_AWAY
            or partner == count
            or merge_of(merges, symbols[index], symbols[partner]) != rank
        ):
            continue
        symbols[index], symbols[partner] = rank & 0xFFFFFFFF, MERGED_AWAY
        following, previous = np.int64(after[partner]), np.int64(before[index])
        after[index] = following
        if following < count:
            before[following] = index
            new = merge_of(merges, symbols[index], symbols[following])
            if new != NOT_MERGED:
                size = push(heap, size, new, index)
        if previous >= 0:
            new = merge_of(merges, symbols[previous], symbols[index])
            if new != NOT_MERGED:
                size = push(heap, size, new, previous)
    left = 0
    for index in range(count):
        if symbols[index] != MERGED_AWAY:
            symbols[left] = symbols[index]
            left += 1
    return left


@compiled(**LENT)
def merge_word(data, at, length, id_of_byte, merges, links, heap):
    """Write the ids of a word to the front of `links[0]`. Returns their number."""
    for index in range(length):
        links[0, index] = id_of_byte[data[at + index]]
    if length <= SHORT:
        return merge_short(links[0], heap, length, merges)
    return merge_long(links, heap, length, merges)


@compiled(**LENT)
def copy_ids(source, ids, written, count):
    for index in range(count):
        ids[written + index] = source[index]
    return written + count


@compiled(**LENT)
def encode_pieces(
    data, eight, borders, framed, frame, classes, id_of_byte, merges, cache, cached,
    links, heap, ids, progress,
):  # fmt: skip
    """Continue encoding from `progress`.

    Returns 0 at the end, or the length of a word that is too long for `links`: the caller makes
    them longer and calls again.
    """
    piece, at, written = progress[PIECE], progress[OFFSET], progress[WRITTEN]
    longer = 0
    while longer == 0 and piece < len(borders) - 1:
        if at == borders[piece] and piece >= framed:
            ids[written] = frame
            written += 1
        stop = borders[piece + 1]
        while at < stop:
            end = word_end(data, at, stop, classes)
            length = end - at
            if length > links.shape[1]:
                longer = length
                written -= at == borders[piece] and piece >= framed  # the frame is written again
                break
            if length > LONGEST_CACHED:
                count = merge_word(data, at, length, id_of_byte, merges, links, heap)
                written = copy_ids(links[0], ids, written, count)
            else:
                first = eight[at] & FIRST_BYTES[min(length, 8)]
                second = eight[at + 8] & FIRST_BYTES[min(max(length - 8, 0), 8)]
                third = eight[at + 16] & FIRST_BYTES[max(length - 16, 0)]
                value = (
                    first ^ second * OTHER_MULTIPLIERS[0] ^ third * OTHER_MULTIPLIERS[1]
                ) * MULTIPLIER
                home = np.int64(value >> HALF) & (len(cache) - 2)
                for slot in range(home, home + 2):
                    lengths = np.int64(cache[slot, LENGTHS])
                    if (
                        cache[slot, 0] == first
                        and cache[slot, 1] == second
                        and cache[slot, 2] == third
                        and lengths & 0xFF == length
                    ):
                        written = copy_ids(cached[slot, IDS:], ids, written, lengths >> 8)
                        break
                else:
                    count = merge_word(data, at, length, id_of_byte, merges, links, heap)
                    written = copy_ids(links[0], ids, written, count)
                    if count <= MOST_CACHED:
                        for column in range(8):
                            cache[home + 1, column] = cache[home, column]
                        cache[home, 0], cache[home, 1], cache[home, 2] = first, second, third
                        cache[home, LENGTHS] = np.uint64(length | count << 8)
                        copy_ids(links[0], cached[home], IDS, count)
            at = end
        if longer == 0:
            piece += 1
    progress[PIECE], progress[OFFSET], progress[WRITTEN] = piece, at, written
    return longer
