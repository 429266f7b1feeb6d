"""MinHash: a few bytes of each document from which the likeness of any two can be estimated.

Two documents are as alike as their sets of shingles, all runs of `SHINGLE` words in them: the size of what both have over the size of what either has
(Jaccard). Under a random order of all shingles, that is how likely both sets have the same first one; `HASHES` orders are drawn, and a
signature keeps, of each order's first shingle, one byte of a hash (Broder 1997; Li and König 2010, "b-bit minwise hashing").
"""

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.words import finalise

SHINGLE = 5  # words; a shorter document is one shingle
HASHES = 128
CHANCE = 1 / 256  # that the lowest bytes of two different hashes are equal
ROLL = np.uint64(
    0x9E3779B97F4A7C15
)  # odd: base of the polynomial that a shingle's words are hashed by
ROLL_OUT = np.uint64(pow(int(ROLL), SHINGLE, 2**64))


def orders() -> tuple[np.ndarray, np.ndarray]:
    """Factors (odd) and summands of the orders x → factor·x + summand mod 2³², fixed for ever: the first numbers of a Weyl sequence, finalised."""
    numbers = np.array(
        [finalise(np.uint64(((index + 1) * int(ROLL)) % 2**64)) for index in range(HASHES)],
        np.uint64,
    )
    return (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1), (
        numbers >> np.uint64(32)
    ).astype(np.uint32)


def sign(hashes: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """The signatures (documents, HASHES) uint8 of documents whose words are hashes[borders[i]:borders[i + 1]]; of one without words, all zeros."""
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
        if (
            end - first <= SHINGLE
        ):  # 32 bits would be too few to tell millions of single shingles apart
            for order in range(HASHES):
                signatures[document, order] = finalise(rolling + np.uint64(order)) & np.uint64(0xFF)
            continue
        for order in range(
            HASHES
        ):  # a linear order's lowest byte hangs on that of the shingle's hash alone: mix it first
            lowest = lowest_of(shingles[SHINGLE - 1 : end - first], factors[order], summands[order])
            signatures[document, order] = finalise(np.uint64(lowest)) & np.uint64(0xFF)


@compiled()
def lowest_of(shingles, factor, summand):
    lowest = np.uint32(0xFFFFFFFF)
    for at in range(len(shingles)):
        lowest = min(lowest, np.uint32(factor * shingles[at] + summand))
    return lowest
