"""Learning byte-pair encoding (Sennrich, Haddow and Birch 2016) from word counts, with pair counts kept up to date.

The rule, which decides every id: merge the pair of neighbours with the highest count; of equal counts the one with the smallest left
id, then the smallest right id; stop at the wanted vocabulary size, or when no pair occurs at least twice. In "aaa" the pair "aa" is
counted twice and merged once, from the left. `tests/tokenizer/slow_bpe.py` says the same without the bookkeeping below.

Recounting after each merge would cost (merges x text). Here a merge touches only the places where its pair stands:

- all words lie one after another in `symbols`, each symbol linked to the neighbours in its word, so that merging two is O(1);
- `places[pair]` lists where a pair was seen. A merge beside a place makes it stale, which shows when it is visited;
- a heap holds each pair with a count that is never too low. One that is too high is put back when it comes up.
"""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from nanoeuler import log
from nanoeuler.tokenizer.pretokenizer import word_bytes, words_of_bytes
from nanoeuler.tokenizer.vocabulary import BYTE_ORDER, SPECIALS

LEAST_COUNT = 2  # a pair that stands in one place only teaches nothing
MOST_WORDS = 1_000_000  # distinct words held at a time: learning from so many takes about 1 GB
NOWHERE = -1

Pair = tuple[int, int]


def count_words(texts: Iterable[bytes], most: int = MOST_WORDS, progress: log.Progress | None = None) -> dict[str, int]:
    """How often each word occurs in `texts`, in bounded memory.

    Past `most` distinct words the rarest are forgotten, by lossy counting (Manku and Motwani 2002, section 4.2): counts then are
    too low by at most the number of times that this happened, and what is frequent enough to be merged early stays.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        for words in words_of_bytes(text):
            counts.update(words)
            while len(counts) > most:
                counts = Counter({word: count - 1 for word, count in counts.items() if count > 1})
        if progress:
            progress.update(len(text))
    return dict(counts)


def learn(counts: Mapping[str, int], vocab_size: int) -> list[Pair]:
    """The pairs of ids to merge, in order, for a vocabulary of `vocab_size` ids; fewer when the words do not yield so many."""
    words = Words(counts)
    tokens = [b""] * len(SPECIALS) + [bytes([byte]) for byte in BYTE_ORDER]
    ids = {token: index for index, token in enumerate(tokens) if token}
    heap = [(-total, pair) for pair, total in words.totals.items()]
    heapq.heapify(heap)
    merges: dict[Pair, None] = {}
    with log.Progress("merge", vocab_size - len(tokens), "merges") as progress:
        while len(tokens) < vocab_size and heap:
            negative, pair = heapq.heappop(heap)
            total = words.totals.get(pair, 0)
            if total < LEAST_COUNT or pair in merges:
                continue
            if total != -negative:
                heapq.heappush(heap, (-total, pair))
                continue
            token = tokens[pair[0]] + tokens[pair[1]]
            if token not in ids:
                ids[token] = len(tokens)
                tokens.append(token)
            merges[pair] = None
            for changed in words.merge(pair, ids[token]):
                heapq.heappush(heap, (-words.totals[changed], changed))
            progress.update(1)
    return list(merges)


class Words:
    """Distinct words as one array of linked symbols, with the counts and places of their pairs.

    `totals[pair]` is how often the pair occurs in the text: the sum over its places of `weights`, the count of the word there.
    """

    def __init__(self, counts: Mapping[str, int]):
        id_of_byte = bytearray(256)
        for index, byte in enumerate(BYTE_ORDER):
            id_of_byte[byte] = index
        self.symbols = array("i")
        self.weights = array("q")
        self.before = array("i")
        self.after = array("i")
        self.totals: defaultdict[Pair, int] = defaultdict(int)
        self.places: defaultdict[Pair, array[int]] = defaultdict(lambda: array("i"))
        for word, count in counts.items():
            symbols = [index + len(SPECIALS) for index in word_bytes(word).translate(id_of_byte)]
            self.append(symbols, count)

    def append(self, symbols: list[int], count: int) -> None:
        first, last = len(self.symbols), len(self.symbols) + len(symbols) - 1
        for place, pair in enumerate(pairwise(symbols), first):
            self.totals[pair] += count
            self.places[pair].append(place)
        self.symbols.extend(symbols)
        self.weights.extend([count] * len(symbols))
        self.before.extend([NOWHERE, *range(first, last)])
        self.after.extend([*range(first + 1, last + 1), NOWHERE])

    def merge(self, pair: Pair, product: int) -> set[Pair]:
        """Replace `pair` by `product` wherever it stands, from left to right. Returns the pairs whose totals grew."""
        symbols, before, after, totals, places = self.symbols, self.before, self.after, self.totals, self.places
        left, right = pair
        grown = set()
        for place in sorted(places.pop(pair)):
            partner = after[place]
            if symbols[place] != left or partner == NOWHERE or symbols[partner] != right:
                continue  # stale: a merge took one of the two
            weight = self.weights[place]
            previous, following = before[place], after[partner]
            totals[pair] -= weight
            if previous != NOWHERE:
                totals[symbols[previous], left] -= weight
                made = symbols[previous], product
                totals[made] += weight
                places[made].append(previous)
                grown.add(made)
            if following != NOWHERE:
                totals[right, symbols[following]] -= weight
                made = product, symbols[following]
                totals[made] += weight
                places[made].append(place)
                grown.add(made)
                before[following] = place
            symbols[place], symbols[partner] = product, NOWHERE
            after[place] = following
        del totals[pair]
        return grown
