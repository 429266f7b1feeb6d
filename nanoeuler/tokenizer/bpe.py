"""Learn byte-pair encoding (Sennrich, Haddow and Birch 2016) from word counts.

The rule that decides every id: merge the pair of adjacent ids with the highest count; ties go to
the smallest left id, then to the smallest right id. Stop at the wanted vocabulary size, or when no
pair occurs at least twice. In "aaa" the pair "aa" is counted twice and merged once, from the left.

`nanoeuler/tokenizer/reference.py` does the same by counting all pairs anew for each merge. Here
counts are kept up to date, so that a merge touches only the positions of its pair.

All words lie one after another in `symbols`, with a slot for each byte and an END after each word.
A token of n bytes takes n slots: the first and the last hold its id, those between hold INSIDE. So
the neighbours of any token are found in O(1), and a merge writes four slots.

A pair is a record: its key (left id << 32 | right id), its total, and the newest of its segments.
The total is its count in the text: each position counts as often as its word. A segment is a range
of `positions`: slots where the pair's left token began when the segment was written. A later merge
may make a position stale, which is noticed when it is visited. All new positions of one merge are
written together, grouped by pair.

The heap holds (-count, key) for each pair. Its counts are never too low. A pair whose count is too
high is put back with the right one when it reaches the top.
"""

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.system.compiling import compiled
from nanoeuler.tokenizer.counting import COUNT, EMPTY, LENGTH, MULTIPLIER, START, WordTable
from nanoeuler.tokenizer.heap import push, remove_top, replace_top
from nanoeuler.tokenizer.scanner import LENT
from nanoeuler.tokenizer.vocabulary import BYTE_ORDER, SPECIALS

Pair = tuple[int, int]

KEY, TOTAL, SEGMENT = range(3)  # of a pair's record
FIRST, STOP, OLDER = range(3)  # of a segment's
END, INSIDE = -1, -2  # in `symbols`
NONE, MERGED = -1, -2  # in a pair's SEGMENT
LEAST_COUNT = 2  # a pair that occurs once is not worth an id
PAIRS, SEGMENTS, POSITIONS, HEAP = range(4)  # of `sizes`
BEFORE, AFTER = range(2)  # the two sides of a merged pair


def learn(counts: WordTable, vocab_size: int) -> list[Pair]:
    """Return the pairs of ids to merge, in order, for a vocabulary of `vocab_size` ids.

    There are fewer when the words do not yield that many.
    """
    tokens = [b""] * len(SPECIALS) + [bytes([byte]) for byte in BYTE_ORDER]
    ids = {token: index for index, token in enumerate(tokens) if token}
    id_of_byte = np.array([ids[bytes([byte])] for byte in range(256)], np.int32)
    pairs = PairTable(counts, id_of_byte, max(vocab_size, len(tokens)))
    merges: list[Pair] = []
    pair = pairs.most_frequent()
    with log.Progress("merge", vocab_size - len(tokens), "merges") as progress:
        while len(tokens) < vocab_size and pair is not None:
            left, right = pair
            token = tokens[left] + tokens[right]
            if token not in ids:
                ids[token] = len(tokens)
                tokens.append(token)
            merges.append(pair)
            pair = pairs.merge(ids[token], len(token))
            progress.update(1)
    return merges


class PairTable:
    """Merges one pair after another. Memory: about 40 bytes for each byte of the distinct words."""

    def __init__(self, counts: WordTable, id_of_byte: np.ndarray, most_ids: int):
        """`id_of_byte` is int32 (256,); no id will be as large as `most_ids`."""
        slots = int(counts.records[: len(counts), LENGTH].sum()) + len(counts) + 1
        if slots >= 1 << 31:
            raise UserError(
                f"{slots:,} bytes of distinct words are too many to learn from; "
                "lower tokenizer.sample_bytes"
            )
        self.symbols = np.empty(slots, np.int32)
        self.words = np.empty(slots, np.int32)  # the word that a slot belongs to
        self.counts = counts.records[: len(counts), COUNT].copy()
        lay_out(counts.text, counts.records[: len(counts)], id_of_byte, self.symbols, self.words)
        self.lengths = np.ones(most_ids, np.int32)  # of tokens, in bytes
        self.sizes = np.zeros(4, np.int64)
        self.pairs = np.empty((1 << 14, 3), np.int64)
        self.segments = np.empty((1 << 14, 3), np.int64)
        self.heap = np.empty((1 << 14, 2), np.int64)
        self.index = np.full(1 << 15, EMPTY, np.int32)
        # one per slot at the start, and two per merge at a slot, of which there is at most one
        self.positions = np.empty(3 * slots, np.int32)
        self.best = NONE
        ids = int(id_of_byte.max()) + 1
        totals = np.zeros((ids, ids), np.int64)
        numbers = np.zeros((ids, ids), np.int64)
        count_pairs(self.symbols, self.words, self.counts, totals, numbers)
        # scratch: position and neighbour of each new pair, on either side
        self.made = np.empty((2, 2, 0), np.int32)
        self.reserve(int(np.count_nonzero(numbers)), int(numbers.max()))
        start_pairs(
            self.symbols, totals, numbers, self.index, self.pairs, self.segments,
            self.positions, self.heap, self.sizes,
        )  # fmt: skip
        # scratch: the changes of a merge for each neighbour, on either side
        self.weights = np.zeros((2, most_ids), np.int64)
        self.numbers = np.zeros((2, most_ids), np.int64)
        self.touched = np.empty((2, most_ids), np.int32)
        self.noted = np.zeros((2, 2), np.int64)  # on either side: neighbours, pairs made

    def reserve(self, pairs: int, merges: int) -> None:
        """Make room for `pairs` new pairs, and for the notes of `merges` merges."""
        if self.sizes[PAIRS] + pairs > len(self.pairs):
            self.pairs = longer(self.pairs, self.sizes[PAIRS] + pairs)
            self.index = np.full(1 << (2 * len(self.pairs) - 1).bit_length(), EMPTY, np.int32)
            index_pairs(self.index, self.pairs, self.sizes[PAIRS])
        if self.sizes[SEGMENTS] + pairs > len(self.segments):
            self.segments = longer(self.segments, self.sizes[SEGMENTS] + pairs)
        if self.sizes[HEAP] + pairs > len(self.heap):
            self.heap = longer(self.heap, self.sizes[HEAP] + pairs)
        if merges > self.made.shape[2]:
            self.made = np.empty((2, 2, merges), np.int32)

    def most_frequent(self) -> tuple[int, int] | None:
        """Return the pair to merge next."""
        self.best = find_most_frequent(self.index, self.pairs, self.heap, self.sizes)
        return None if self.best == NONE else divmod(int(self.pairs[self.best, KEY]), 1 << 32)

    def merge(self, product: int, length: int) -> tuple[int, int] | None:
        """Replace the pair that was returned last by the id `product` everywhere.

        `product` is a token of `length` bytes. Returns the next pair.
        """
        self.lengths[product] = length
        positions = count_positions(self.pairs, self.segments, self.best)
        self.reserve(2 * min(positions, len(self.lengths)), positions)
        merge_pair(
            self.best, product, self.symbols, self.words, self.counts, self.lengths,
            self.index, self.pairs, self.segments, self.positions, self.heap, self.sizes,
            self.weights, self.numbers, self.touched, self.made, self.noted,
        )  # fmt: skip
        return self.most_frequent()


def longer(array: np.ndarray, least: int) -> np.ndarray:
    """Copy an array with room for `least` rows, or for half as many again as it had."""
    copy = np.empty((max(int(least), len(array) * 3 // 2), *array.shape[1:]), array.dtype)
    copy[: len(array)] = array
    return copy


@compiled(**LENT)
def lay_out(text, records, id_of_byte, symbols, words):
    symbols[0], words[0] = END, 0
    slot = 1
    for word in range(len(records)):
        for at in range(records[word, START], records[word, START] + records[word, LENGTH]):
            symbols[slot], words[slot] = id_of_byte[text[at]], word
            slot += 1
        symbols[slot], words[slot] = END, word
        slot += 1


@compiled(**LENT)
def count_pairs(symbols, words, counts, totals, numbers):
    for slot in range(len(symbols) - 1):
        left, right = symbols[slot], symbols[slot + 1]
        if left != END and right != END:
            totals[left, right] += counts[words[slot]]
            numbers[left, right] += 1


@compiled(**LENT)
def start_pairs(symbols, totals, numbers, index, pairs, segments, positions, heap, sizes):
    """Make the records, segments and heap of the pairs of bytes. Overwrites `numbers`."""
    for left in range(len(totals)):
        for right in range(len(totals)):
            if numbers[left, right]:
                pair = pair_record(index, pairs, sizes, np.int64(left) << 32 | right)
                pairs[pair, TOTAL] = totals[left, right]
                first = new_segment(pairs, segments, sizes, pair, numbers[left, right])
                numbers[left, right] = first
                sizes[HEAP] = push(heap, sizes[HEAP], -totals[left, right], pairs[pair, KEY])
    for slot in range(len(symbols) - 1):
        left, right = symbols[slot], symbols[slot + 1]
        if left != END and right != END:
            positions[numbers[left, right]] = slot
            numbers[left, right] += 1


@compiled(**LENT)
def slot_of_pair(index, pairs, key):
    """Return the slot of the pair in `index`, or the empty slot for it."""
    value = np.uint64(key) * MULTIPLIER
    slot = np.int64(value >> np.uint64(32)) & (len(index) - 1)
    while index[slot] != EMPTY and pairs[index[slot], KEY] != key:
        slot = (slot + 1) & (len(index) - 1)
    return slot


@compiled(**LENT)
def pair_record(index, pairs, sizes, key):
    """Return the record of a pair, and make it if there is none."""
    slot = slot_of_pair(index, pairs, key)
    if index[slot] == EMPTY:
        index[slot] = pair = sizes[PAIRS]
        sizes[PAIRS] += 1
        pairs[pair, KEY], pairs[pair, TOTAL], pairs[pair, SEGMENT] = key, 0, NONE
    return index[slot]


@compiled(**LENT)
def index_pairs(index, pairs, size):
    for pair in range(size):
        index[slot_of_pair(index, pairs, pairs[pair, KEY])] = pair


@compiled(**LENT)
def new_segment(pairs, segments, sizes, pair, number):
    """Reserve `number` positions for a pair. Returns the index of the first."""
    segment, first = sizes[SEGMENTS], sizes[POSITIONS]
    sizes[SEGMENTS] += 1
    sizes[POSITIONS] += number
    segments[segment, FIRST], segments[segment, STOP] = first, first + number
    segments[segment, OLDER] = pairs[pair, SEGMENT]
    pairs[pair, SEGMENT] = segment
    return first


@compiled(**LENT)
def count_positions(pairs, segments, pair):
    number = 0
    segment = pairs[pair, SEGMENT]
    while segment != NONE:
        number += segments[segment, STOP] - segments[segment, FIRST]
        segment = segments[segment, OLDER]
    return number


@compiled(**LENT)
def find_most_frequent(index, pairs, heap, sizes):
    """Return the record of the pair with the highest total that is not merged yet.

    Returns NONE when no pair occurs often enough.
    """
    while sizes[HEAP]:
        pair = index[slot_of_pair(index, pairs, heap[0, 1])]
        total = pairs[pair, TOTAL]
        if pairs[pair, SEGMENT] == MERGED or total < LEAST_COUNT:
            sizes[HEAP] = remove_top(heap, sizes[HEAP])
        elif total != -heap[0, 0]:
            replace_top(heap, sizes[HEAP], -total, heap[0, 1])
        else:
            return pair
    return NONE


@compiled(**LENT)
def merge_pair(
    best, product, symbols, words, counts, lengths, index, pairs, segments, positions, heap, sizes,
    weights, numbers, touched, made, noted,
):  # fmt: skip
    """Merge a pair at all its positions; then update each pair with a neighbour once.

    At adjacent positions, a neighbour may be merged by the next merge, or be the product of the one
    before. For such a pair, which exists only during the merge, the same count is added and
    subtracted. So the order of the positions does not matter.
    """
    left, right = pairs[best, KEY] >> 32, pairs[best, KEY] & 0xFFFFFFFF
    noted[:] = 0
    segment = pairs[best, SEGMENT]
    pairs[best, SEGMENT] = MERGED
    notes = weights, numbers, touched, made, noted
    while segment != NONE:
        for number in range(segments[segment, FIRST], segments[segment, STOP]):
            slot = np.int64(positions[number])
            if left == right and symbols[slot - 1] == left:
                continue  # inside a run, which is merged from its start
            while symbols[slot] == left and symbols[slot + lengths[left]] == right:
                partner = slot + lengths[left]
                following = partner + lengths[right]
                weight = counts[words[slot]]
                symbols[partner - 1] = symbols[partner] = INSIDE
                symbols[slot] = symbols[following - 1] = product
                neighbour = symbols[slot - 1]
                if neighbour != END:
                    note(BEFORE, neighbour, slot - lengths[neighbour], weight, *notes)
                neighbour = symbols[following]
                if neighbour != END:
                    note(AFTER, neighbour, slot, weight, *notes)
                if left != right:
                    break
                slot = following
        segment = segments[segment, OLDER]
    table = weights, numbers, index, pairs
    for side in range(2):
        neighbours, new = touched[side, : noted[side, 0]], made[side, :, : noted[side, 1]]
        add_pairs(side, product, neighbours, new, *table, segments, positions, sizes)
    for side in range(2):
        for neighbour in touched[side, : noted[side, 0]]:
            key = key_of(side, left if side == BEFORE else right, neighbour)
            pairs[index[slot_of_pair(index, pairs, key)], TOTAL] -= weights[side, neighbour]
    for side in range(2):
        push_pairs(side, product, touched[side, : noted[side, 0]], *table, heap, sizes)


@compiled(**LENT)
def note(side, neighbour, position, weight, weights, numbers, touched, made, noted):
    """Note a pair of the product, at `position`, with the neighbour on one side."""
    if numbers[side, neighbour] == 0:
        touched[side, noted[side, 0]] = neighbour
        noted[side, 0] += 1
    weights[side, neighbour] += weight
    numbers[side, neighbour] += 1
    made[side, 0, noted[side, 1]], made[side, 1, noted[side, 1]] = position, neighbour
    noted[side, 1] += 1


@compiled(**LENT)
def key_of(side, product, neighbour):
    product, neighbour = np.int64(product), np.int64(neighbour)
    return neighbour << 32 | product if side == BEFORE else product << 32 | neighbour


@compiled(**LENT)
def add_pairs(
    side, product, touched, made, weights, numbers, index, pairs, segments, positions, sizes
):
    """Add totals and positions of the pairs of `product` with the neighbours on one side."""
    for neighbour in touched:
        pair = pair_record(index, pairs, sizes, key_of(side, product, neighbour))
        if pairs[pair, SEGMENT] == MERGED:
            numbers[side, neighbour] = NONE
        else:
            pairs[pair, TOTAL] += weights[side, neighbour]
            first = new_segment(pairs, segments, sizes, pair, numbers[side, neighbour])
            numbers[side, neighbour] = first
    for number in range(made.shape[1]):
        neighbour = made[1, number]
        if numbers[side, neighbour] != NONE:
            positions[numbers[side, neighbour]] = made[0, number]
            numbers[side, neighbour] += 1


@compiled(**LENT)
def push_pairs(side, product, touched, weights, numbers, index, pairs, heap, sizes):
    """Put the pairs that grew onto the heap, and clear the scratch."""
    for neighbour in touched:
        key = key_of(side, product, neighbour)
        pair = index[slot_of_pair(index, pairs, key)]
        if pairs[pair, SEGMENT] != MERGED and pairs[pair, TOTAL] >= LEAST_COUNT:
            sizes[HEAP] = push(heap, sizes[HEAP], -pairs[pair, TOTAL], key)
        weights[side, neighbour] = numbers[side, neighbour] = 0
