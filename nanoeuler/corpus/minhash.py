"""MinHash signatures: a few bytes per document that estimate the similarity of any two.

The shingles of a document are all its runs of `SHINGLE` words. The similarity of two documents is
the Jaccard index of their sets of shingles: the size of the intersection over that of the union.
Under a random order of all shingles, it is the probability that both sets have the same first
shingle. `HASHES` orders are drawn, and a signature keeps one byte of the hash of each order's first
shingle (Broder 1997; Li and König 2010, "b-bit minwise hashing").
"""

import numpy as np

from nanoeuler.corpus.word_hashes import finalise
from nanoeuler.system.compiling import compiled

SHINGLE = 5  # words; a shorter document is one shingle
HASHES = 128
CHANCE = 1 / 256  # that the lowest bytes of two different hashes are equal
ROLL = np.uint64(0x9E3779B97F4A7C15)  # odd: base of the polynomial that hashes a shingle's words
ROLL_OUT = np.uint64(pow(int(ROLL), SHINGLE, 2**64))


def orders() -> tuple[np.ndarray, np.ndarray]:
    """Return the factors (odd) and summands (uint32) of the orders x → factor·x + summand mod 2³².

    They are fixed for ever: the first numbers of a Weyl sequence, finalised.
    """
    sequence = [np.uint64((index * int(ROLL)) % 2**64) for index in range(1, HASHES + 1)]
    numbers = np.array([finalise(number) for number in sequence], np.uint64)
    factors = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1)
    return factors, (numbers >> np.uint64(32)).astype(np.uint32)


def sign(hashes: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return the signatures, uint8 (documents, HASHES), of documents of hashed words.

    The words of document i are hashes[borders[i]:borders[i + 1]]. A document without words has a
    signature of zeros.
    """
    signatures = np.zeros((len(borders) - 1, HASHES), np.uint8)
    shingles = np.empty(int(np.diff(borders).max(initial=0)), np.uint32)
    fill_signatures(hashes, borders, *orders(), shingles, signatures)
    return signatures


@compiled()
def fill_signatures(hashes, borders, factors, summands, shingles, signatures):
    for document in range(len(borders) - 1):
        first, end = borders[document], borders[document + 1]
        if first == end:
            continue
        rolling = np.uint64(0)
        for at in range(first, end):
            rolling = rolling * ROLL + hashes[at]
            if at - first >= SHINGLE:
                rolling -= hashes[at - SHINGLE] * ROLL_OUT
            shingles[at - first] = finalise(rolling)
        if end - first <= SHINGLE:
            # a single shingle: 32 bits would be too few to tell millions of them apart
            for order in range(HASHES):
                signatures[document, order] = finalise(rolling + np.uint64(order)) & np.uint64(0xFF)
            continue
        for order in range(HASHES):
            # finalised, because the lowest byte of factor·x + summand depends on that of x alone
            lowest = lowest_of(shingles[SHINGLE - 1 : end - first], factors[order], summands[order])
            signatures[document, order] = finalise(np.uint64(lowest)) & np.uint64(0xFF)


@compiled()
def lowest_of(shingles, factor, summand):
    lowest = np.uint32(0xFFFFFFFF)
    for at in range(len(shingles)):
        lowest = min(lowest, np.uint32(factor * shingles[at] + summand))
    return lowest
