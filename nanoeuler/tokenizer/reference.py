"""Byte-pair encoding in its simplest form: the specification of the fast learner and encoder.

(Sennrich, Haddow and Birch 2016, algorithm 1, over the bytes of GPT-2's words.)

**Learning**: a word is a list of ids. Count every adjacent pair in every word ("aa" occurs twice in
"aaa"), times the count of the word. Merge the pair of the highest count; ties go to the smallest
left id, then to the smallest right id. Replace its occurrences in each word from left to right.
Stop when the vocabulary has the wanted size, or no pair occurs at least twice. If the product is a
token already, it keeps its id; a pair is merged once.

**Encoding**: of all adjacent pairs in a word that are merges, merge the leftmost one of the lowest
rank; repeat until none is left.
"""

from collections import Counter
from itertools import pairwise

from nanoeuler.tokenizer.vocabulary import BYTE_ORDER, SPECIALS, Vocabulary, build


def replace(symbols: list[int], pair: tuple[int, int], product: int) -> list[int]:
    """The symbols with every occurrence of the pair merged into its product, from the left."""
    result = []
    while symbols:
        found = tuple(symbols[:2]) == pair
        result.append(product if found else symbols[0])
        symbols = symbols[2 if found else 1 :]
    return result


def learn(counts: dict[bytes, int], vocab_size: int) -> list[tuple[int, int]]:
    words = [
        ([len(SPECIALS) + BYTE_ORDER.index(byte) for byte in word], count)
        for word, count in counts.items()
    ]
    pairs: list[tuple[int, int]] = []
    while len(build(pairs).tokens) < vocab_size:
        totals: Counter[tuple[int, int]] = Counter()
        for symbols, count in words:
            for pair in pairwise(symbols):
                totals[pair] += count
        candidates = [
            (-total, pair) for pair, total in totals.items() if total >= 2 and pair not in pairs
        ]
        if not candidates:
            break
        pairs.append(min(candidates)[1])
        product = build(pairs).merges[-1][2]
        words = [(replace(symbols, pairs[-1], product), count) for symbols, count in words]
    return pairs


def encode(word: bytes, vocabulary: Vocabulary) -> list[int]:
    ranks = {(left, right): rank for rank, (left, right, _) in enumerate(vocabulary.merges)}
    symbols = [vocabulary.tokens.index(bytes([byte]), len(SPECIALS)) for byte in word]
    while True:
        found = [
            (ranks[pair], position)
            for position, pair in enumerate(pairwise(symbols))
            if pair in ranks
        ]
        if not found:
            return symbols
        rank, position = min(found)
        symbols[position : position + 2] = [vocabulary.merges[rank][2]]
