"""Encode text, in compiled code: words, a cache of recent words, and two forms of the merge loop.

First all words of a text are marked (scanner.py). Then some hundred at a time are looked up,
without a branch for each, so that a processor works on many at once.

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
from nanoeuler.tokenizer.scanner import (
    CLASSES,
    FIRST_BYTES,
    LENT,
    PADDING,
    eight_bytes_at,
    mark_words,
    padded,
)
from nanoeuler.tokenizer.vocabulary import Vocabulary

CACHE_SLOTS = 1 << 19  # 32 MB
LONGEST_CACHED = 24  # bytes of a word
MOST_CACHED = 8  # ids of a word
LENGTHS = 3  # column of the lengths in a slot of uint64
IDS = 8  # first column of the ids in a slot of int32
SHORT = 64  # bytes: in words up to this size, a scan of all pairs is faster than a heap
NOT_MERGED = (1 << 63) - 1  # the rank of a pair that is no merge
NO_KEY = -1
MERGED_AWAY = -1
WORDS = 512  # that are looked up together
PIECE, OFFSET, WRITTEN = range(3)  # of `progress`
BITS_TOGETHER = np.uint64(0x0102040810204080)  # multiplied by bytes of 0 or 1, has them on top
PLACES = np.array(
    [
        [*ones, *[0] * (8 - len(ones)), len(ones)]
        for bits in range(256)
        for ones in [[place for place in range(8) if bits >> place & 1]]
    ],
    np.uint8,
)
"""For each byte, which of its bits are 1, and at last how many: (256, 9)."""
OTHER_MULTIPLIERS = np.array([0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd


class Workspace:
    """The memory of one encoding thread: the cache, and buffers for a word being merged."""

    def __init__(self, cache_slots: int):
        self.cache = np.zeros((cache_slots, 8), np.uint64)
        self.ends = np.empty(WORDS + 8, np.int64)
        self.homes = np.empty(WORDS + 8, np.int64)
        self.keys = np.empty((WORDS + 8, 4), np.uint64)
        self.text = self.kinds = self.starts = np.empty(0, np.uint8)
        self.ids = np.empty(0, np.int32)
        self.grow(1 << 10)

    def room_for(self, size: int, pieces: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a text of `size` bytes followed by zeros, and an array for the most ids of it.

        There is room for classes and marks of its bytes, too.
        """
        if size + PADDING > len(self.text):
            self.text = padded(size)
            self.kinds, self.starts = np.empty((2, len(self.text) + 7 & ~7), np.uint8)
        if size + pieces + 1 > len(self.ids):
            self.ids = np.empty(size + pieces + 1, np.int32)
        self.text[size : size + PADDING] = 0
        return self.text[: size + PADDING], self.ids

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
        try:
            workspace = self.idle.pop()
        except IndexError:
            workspace = Workspace(self.cache_slots)
        text, ids = workspace.room_for(len(content), len(borders))
        text[: len(content)] = np.frombuffer(content, np.uint8)
        eight = eight_bytes_at(text)
        progress = np.array([0, borders[0], 0])
        mark_pieces(text, eight, borders, CLASSES, workspace.kinds, workspace.starts)
        while True:
            longer = encode_pieces(
                text, eight, borders, framed, frame, workspace.starts.view(np.uint64),
                self.id_of_byte, self.merges, workspace.cache, workspace.cache.view(np.int32),
                workspace.ends, workspace.keys, workspace.homes,
                workspace.links, workspace.heap, ids, progress,
            )  # fmt: skip
            if not longer:
                break
            workspace.grow(longer)
        found = ids[: progress[WRITTEN]].copy()
        if max(workspace.links.shape[1], len(text) >> 2) < 1 << 20:  # else its memory is freed
            self.idle.append(workspace)
        return found


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
def mark_pieces(data, eight, borders, classes, kinds, starts):
    """Mark where the words of all pieces start, and the end of the last piece."""
    for piece in range(len(borders) - 1):
        mark_words(data, eight, borders[piece], borders[piece + 1], classes, kinds, starts)
    end = borders[-1]
    starts[end] = 1
    starts[end + 1 : end + 8] = 0


@compiled(**LENT)
def next_words(marked_8, at, end, ends):
    """Fill `ends` with the ends of the words behind `at`, the start of one. Returns their number.

    `marked_8` has the marks of `mark_words`, eight bytes each, up to `end`. There is no branch for
    a word: of eight marks, all places are written, and those that are none are written over.
    """
    count, block = 0, (at + 1) >> 3
    marks = marked_8[block] >> np.uint64(8 * ((at + 1) & 7)) << np.uint64(8 * ((at + 1) & 7))
    while True:
        which = np.int64(marks * BITS_TOGETHER >> np.uint64(56))
        for number in range(8):
            ends[count + number] = 8 * block + PLACES[which, number]
        count += PLACES[which, 8]
        block += 1
        if 8 * block > end or count > len(ends) - 8:
            return count
        marks = marked_8[block]


@compiled(**LENT)
def look_up(eight, at, ends, count, cache, keys, homes):
    """Fill in bytes and slots of words that follow one another from `at` on.

    Something of each slot is read, too: so the processor waits for many of them at a time.
    """
    for word in range(count):
        length = ends[word] - at
        first = eight[at] & FIRST_BYTES[min(length, 8)]
        second = eight[at + 8] & FIRST_BYTES[min(max(length - 8, 0), 8)]
        third = eight[at + 16] & FIRST_BYTES[min(max(length - 16, 0), 8)]
        value = (first ^ second * OTHER_MULTIPLIERS[0] ^ third * OTHER_MULTIPLIERS[1]) * MULTIPLIER
        home = np.int64(value >> HALF) & (len(cache) - 2)
        keys[word, 0], keys[word, 1], keys[word, 2] = first, second, third
        keys[word, 3] = cache[home, LENGTHS]
        homes[word] = home
        at = ends[word]


@compiled(**LENT)
def encode_pieces(
    data, eight, borders, framed, frame, marked_8, id_of_byte, merges, cache, cached,
    ends, keys, homes, links, heap, ids, progress,
):  # fmt: skip
    """Continue encoding from `progress`, where words are marked.

    Returns 0 at the end, or the length of a word that is too long for `links`: the caller makes
    them longer and calls again.
    """
    piece, at, written = progress[PIECE], progress[OFFSET], progress[WRITTEN]
    longer, stop = 0, borders[-1]
    while longer == 0 and at < stop:
        words = next_words(marked_8, at, stop, ends)
        look_up(eight, at, ends, words, cache, keys, homes)
        for word in range(words):
            length = ends[word] - at
            if length > links.shape[1]:
                longer = length
                break
            while at == borders[piece]:
                if piece >= framed:
                    ids[written] = frame
                    written += 1
                piece += 1
            home = homes[word]
            first, second, third = keys[word, 0], keys[word, 1], keys[word, 2]
            for slot in range(home, home + 2):
                lengths = np.int64(cache[slot, LENGTHS])
                if (
                    cache[slot, 0] == first
                    and cache[slot, 1] == second
                    and cache[slot, 2] == third
                    and lengths & 0xFF == length
                ):
                    # mostly one or two
                    ids[written], ids[written + 1] = cached[slot, IDS], cached[slot, IDS + 1]
                    for index in range(2, lengths >> 8):
                        ids[written + index] = cached[slot, IDS + index]
                    written += lengths >> 8
                    break
            else:
                count = merge_word(data, at, length, id_of_byte, merges, links, heap)
                written = copy_ids(links[0], ids, written, count)
                if length <= LONGEST_CACHED and count <= MOST_CACHED:
                    for column in range(8):
                        cache[home + 1, column] = cache[home, column]
                    cache[home, 0], cache[home, 1], cache[home, 2] = first, second, third
                    cache[home, LENGTHS] = np.uint64(length | count << 8)
                    copy_ids(links[0], cached[home], IDS, count)
            at = ends[word]
    while longer == 0 and piece < len(borders) - 1:  # without text
        if piece >= framed:
            ids[written] = frame
            written += 1
        piece += 1
    progress[PIECE], progress[OFFSET], progress[WRITTEN] = piece, at, written
    return longer
