"""Learn byte-pair encoding (Sennrich, Haddow and Birch 2016) from word counts.

The rule that decides every id: merge the pair of adjacent ids with the highest count; ties go to
the smallest left id, then to the smallest right id. Stop at the wanted vocabulary size, or when no
pair occurs at least twice. In "aaa" the pair "aa" is counted twice and merged once, from the left.

`nanoeuler/tokenizer/reference.py` does the same by counting all pairs anew for each merge. Here
`pair_table.py` keeps the counts up to date, so that a merge touches only the positions of its pair.
"""

import numpy as np

from nanoeuler import log
from nanoeuler.tokenizer.pair_table import PairTable
from nanoeuler.tokenizer.vocabulary import BYTE_ORDER, SPECIALS
from nanoeuler.tokenizer.word_table import WordTable

Pair = tuple[int, int]


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
