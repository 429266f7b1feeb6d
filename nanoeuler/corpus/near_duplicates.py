"""Which documents repeat an earlier one, word for word or nearly: locality-sensitive hashing of their MinHash signatures.

A signature is cut into bands of a few rows. Documents that agree in a whole band are compared; those whose signatures agree in enough places are duplicates. An
earlier document only counts while it is kept itself, so that a chain of small changes does not carry away what is unlike all that stays,
and each one dropped has its like among the kept.

Memory per document: 128 bytes of signature, and 4 bytes for its place in each band's chains and 4 to 8 for its share of that band's table: with the
16 bands of a threshold of 0.8 less than 350 bytes.
"""

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.minhash import CHANCE, HASHES
from nanoeuler.corpus.words import SEED, finalise, mix

FOUND = 0.99  # of the pairs at the threshold that share a band
LONGEST_WALK = (
    256  # documents with one band that are compared; of pages made from one template, the latest
)


def bands_and_rows(threshold: float) -> tuple[int, int]:
    """The bands and their rows: as many rows as can be while a pair at the threshold still has a band in common with probability `FOUND`."""
    for rows in range(HASHES, 0, -1):
        bands = (
            int(np.ceil(np.log(1 - FOUND) / np.log1p(-(threshold**rows)))) if threshold < 1 else 1
        )
        if bands * rows <= HASHES:
            return bands, rows
    raise ValueError(f"no bands for a threshold of {threshold}")


def needed_agreement(threshold: float) -> int:
    """Places in which the signatures of two documents agree at least when they are as alike as `threshold`, chance agreement included."""
    return int(np.ceil(HASHES * (threshold + (1 - threshold) * CHANCE) - 1e-9))


def find_copies(identities: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Marks (bool, per document) those whose identity (a hash of the text) came before, in the given order of documents."""
    copies = np.ones(len(identities), bool)
    _, first = np.unique(identities[order], return_index=True)
    copies[order[first]] = False
    return copies


class NearDuplicates:
    """Marks in `near` (bool, per document) those that are about as alike as `threshold`, or more, to one kept before them in the given order.

    Documents that are not in `order` are not looked at; those without words (signature all zeros) are all kept.
    """

    def __init__(self, signatures: np.ndarray, order: np.ndarray, threshold: float):
        bands, self.rows = bands_and_rows(threshold)
        self.needed = needed_agreement(threshold)
        self.signatures, self.order = signatures, order
        self.heads = np.full((bands, 1 << max(4, len(order).bit_length())), -1, np.int32)
        self.chains = np.empty((len(order), bands), np.int32)
        self.near = np.zeros(len(signatures), bool)

    def compare(self, first: int, end: int) -> None:
        """Go on with ranks first to end of the order."""
        walk_chains(
            self.signatures,
            self.order,
            first,
            end,
            self.rows,
            self.needed,
            self.heads,
            self.chains,
            self.near,
        )


@compiled()
def walk_chains(signatures, order, first, end, rows, needed, heads, chains, near):
    """heads[band, slot] is the latest kept document of a slot (its rank in `order`), chains[rank, band] the one kept before it there; -1 ends."""
    bands, size = heads.shape
    slots = np.empty(bands, np.int64)
    for rank in range(first, end):
        signature = signatures[order[rank]]
        if not signature.any():
            continue
        found = False
        for band in range(bands):
            key = SEED
            for row in range(band * rows, (band + 1) * rows):
                key = mix(key, np.uint64(signature[row]))
            slots[band] = np.int64(finalise(key) & np.uint64(size - 1))
            earlier, walked = heads[band, slots[band]], 0
            while earlier >= 0 and walked < LONGEST_WALK:
                if agreement(signature, signatures[order[earlier]]) >= needed:
                    found = True
                    break
                earlier = chains[earlier, band]
                walked += 1
            if found:
                break
        if found:
            near[order[rank]] = True
            continue
        for band in range(bands):
            chains[rank, band] = heads[band, slots[band]]
            heads[band, slots[band]] = rank


@compiled()
def agreement(one, other):
    equal = 0
    for place in range(len(one)):
        equal += one[place] == other[place]
    return equal
