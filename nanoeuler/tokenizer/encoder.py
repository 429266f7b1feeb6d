"""From a word to its ids: the merge loop, and the memory of words already seen in front of it.

Text repeats its words (Zipf's law), so that nearly every word is one dictionary lookup, which runs in C from end to end.
"""

import heapq
from array import array
from itertools import pairwise

from nanoeuler.tokenizer.pretokenizer import word_bytes
from nanoeuler.tokenizer.vocabulary import Vocabulary

MOST_WORDS = 1 << 18  # about 60 MB
LONGEST_WORD = 64  # characters; longer ones are rare and do not come back
MERGED_AWAY = -1


class Encoder(dict[str, bytes]):
    """`encoder[word]` is the word's ids as the bytes of an int32 array. Remembers up to `most` words, then starts afresh."""

    def __init__(self, vocabulary: Vocabulary, most: int = MOST_WORDS):
        super().__init__()
        self.most = most
        special = set(vocabulary.specials.values())
        bytes_to_id = {token: index for index, token in enumerate(vocabulary.tokens) if len(token) == 1 and index not in special}
        self.id_of_byte = [bytes_to_id[bytes([byte])] for byte in range(256)]
        self.ranks = {(left, right): rank for rank, (left, right, _) in enumerate(vocabulary.merges)}
        self.products = [product for _, _, product in vocabulary.merges]

    def __missing__(self, word: str) -> bytes:
        symbols = [self.id_of_byte[byte] for byte in word_bytes(word)]
        ids = array("i", self.merge(symbols)).tobytes()
        if len(word) <= LONGEST_WORD:
            if len(self) >= self.most:
                self.clear()
            self[word] = ids
        return ids

    def merge(self, symbols: list[int]) -> list[int]:
        """Merge the pair of lowest rank, of several the leftmost, until no pair of neighbours is a merge: O(n log n).

        The heap holds rank and place of every pair seen, as one number. An entry whose pair has changed since is stale.
        """
        ranks, count = self.ranks, len(symbols)
        before, after = list(range(-1, count - 1)), list(range(1, count + 1))
        heap = [ranks[pair] * count + place for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        heapq.heapify(heap)
        while heap:
            rank, place = divmod(heapq.heappop(heap), count)
            partner = after[place]
            if partner == count or ranks.get((symbols[place], symbols[partner])) != rank:
                continue
            symbols[place], symbols[partner] = self.products[rank], MERGED_AWAY
            following = after[place] = after[partner]
            if following < count:
                before[following] = place
                new = ranks.get((symbols[place], symbols[following]))
                if new is not None:
                    heapq.heappush(heap, new * count + place)
            previous = before[place]
            if previous >= 0:
                new = ranks.get((symbols[previous], symbols[place]))
                if new is not None:
                    heapq.heappush(heap, new * count + previous)
        return [symbol for symbol in symbols if symbol != MERGED_AWAY]
