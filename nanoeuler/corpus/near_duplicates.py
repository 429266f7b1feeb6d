"""Find documents that repeat an earlier one, exactly or nearly, by their MinHash signatures.

Locality-sensitive hashing cuts a signature into bands of a few rows. Documents that agree in a
whole band are compared; they are duplicates if their signatures agree in enough bytes. A document
is only compared with earlier ones that are kept. So each dropped document has a similar one among
the kept, and a chain of small changes cannot drop a document that is unlike all of them.

Memory per document: 128 bytes of signature, and for each band 4 bytes in its chains and 4 to 8 in
its table. With the 16 bands of a threshold of 0.8 that is less than 350 bytes.
"""

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.minhash import CHANCE, HASHES
from nanoeuler.corpus.word_hashes import SEED, finalise, mix

FOUND = 0.99  # share of the pairs at the threshold that agree in a band
LONGEST_WALK = 256  # documents of one band that are compared: the latest, for pages of a template


def bands_and_rows(threshold: float) -> tuple[int, int]:
    """Return the number of bands and of rows in each.

    There are as many rows as possible while a pair at the threshold still agrees in some band with
    probability `FOUND`.
    """
    for rows in range(HASHES, 0, -1):
        bands = 1
        if threshold < 1:
            bands = int(np.ceil(np.log(1 - FOUND) / np.log1p(-(threshold**rows))))
        if bands * rows <= HASHES:
            return bands, rows
    raise ValueError(f"no bands for a threshold of {threshold}")


def needed_agreement(threshold: float) -> int:
    """Return the bytes in which signatures of similarity `threshold` agree, including by chance."""
    return int(np.ceil(HASHES * (threshold + (1 - threshold) * CHANCE) - 1e-9))


def find_copies(identities: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Mark (bool, per document) the documents whose identity occurs earlier in `order`.

    An identity is a hash of the text.
    """
    copies = np.ones(len(identities), bool)
    _, first = np.unique(identities[order], return_index=True)
    copies[order[first]] = False
    return copies


class NearDuplicates:
    """Marks in `near` (bool, per document) those similar to a document kept earlier in `order`.

    Similar means about `threshold` or more. Documents outside `order` are ignored; those without
    words (signature all zeros) are all kept.
    """

    def __init__(self, signatures: np.ndarray, order: np.ndarray, threshold: float):
        bands, self.rows = bands_and_rows(threshold)
        self.needed = needed_agreement(threshold)
        self.signatures, self.order = signatures, order
        self.heads = np.full((bands, 1 << max(4, len(order).bit_length())), -1, np.int32)
        self.chains = np.empty((len(order), bands), np.int32)
        self.near = np.zeros(len(signatures), bool)

    def compare(self, first: int, end: int) -> None:
        """Compare the documents of ranks first to end, which must follow those compared before."""
        documents = self.signatures, self.order, first, end
        walk_chains(*documents, self.rows, self.needed, self.heads, self.chains, self.near)


@compiled()
def walk_chains(signatures, order, first, end, rows, needed, heads, chains, near):
    """Compare documents with the kept ones of their slots, and mark the duplicates in `near`.

    heads[band, slot] is the latest kept document of a slot (its rank in `order`), chains[rank,
    band] the one kept before it there, -1 the end of the chain.
    """
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
    for index in range(len(one)):
        equal += one[index] == other[index]
    return equal
