"""Find documents that repeat an earlier one, exactly or nearly, by their MinHash signatures.

Locality-sensitive hashing cuts a signature into bands of a few rows. Documents that agree in a
whole band are compared; they are duplicates if their signatures agree in enough bytes. A document
is only compared with earlier ones that are kept. So each dropped document has a similar one among
the kept, and a chain of small changes cannot drop a document that is unlike all of them.

Memory per document: 128 bytes of signature, and for each band 4 bytes in its chains and 4 to 8 in
its table. With the 16 bands of a threshold of 0.8 that is less than 350 bytes.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nanoeuler.corpus.minhash import CHANCE, HASHES
from nanoeuler.corpus.word_hashes import SEED, finalise, mix
from nanoeuler.system.compiling import compiled

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
        self.bands, self.rows = bands_and_rows(threshold)
        self.needed = needed_agreement(threshold)
        self.signatures, self.order = signatures, order
        self.heads = np.full((self.bands, table_size(len(order))), -1, np.int32)
        self.chains = np.empty((len(order), self.bands), np.int32)
        self.near = np.zeros(len(signatures), bool)

    def compare(self, first: int, end: int) -> None:
        """Compare the documents of ranks first to end, which must follow those compared before."""
        slots = np.empty((end - first, self.bands), np.int32)
        signatures, size = self.signatures[self.order[first:end]], self.heads.shape[1]
        for band in range(self.bands):
            fill_slots(signatures, band * self.rows, self.rows, size, slots[:, band])
        documents = self.signatures, self.order, first, slots
        walk_chains(*documents, self.needed, self.heads, self.chains, self.near)


def table_size(documents: int) -> int:
    """Return the number of slots of a band."""
    return 1 << max(4, documents.bit_length())


def find_near_copies(signatures: np.ndarray, threshold: float, threads: int) -> np.ndarray:
    """Mark (bool) what `NearDuplicates` marks among documents whose signatures are in its order.

    One band at a time is searched, in each thread, for documents that are similar to any other of
    their slot. All others are kept, and no document is dropped for their sake. So it is enough to
    walk the chains of the suspects, and of slots with so many documents that a walk may end early.
    Memory per document, besides the signature: 20 bytes a thread.
    """
    bands, rows = bands_and_rows(threshold)
    needed, size = needed_agreement(threshold), table_size(len(signatures))
    suspect = np.zeros(len(signatures), bool)

    def search(band: int) -> None:
        slots = np.empty(len(signatures), np.int32)
        fill_slots(signatures, band * rows, rows, size, slots)
        heads = np.full(size, -1, np.int32)
        chains = np.empty(len(signatures), np.int32)
        mark_suspects(signatures, slots, needed, heads, chains, np.zeros(size, bool), suspect)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(search, range(bands)))
    ranks = np.flatnonzero(suspect)
    chosen = signatures[ranks]
    slots, most = np.empty((len(ranks), bands), np.int32), 1
    for band in range(bands):
        fill_slots(chosen, band * rows, rows, size, slots[:, band])
        used, slots[:, band] = np.unique(slots[:, band], return_inverse=True)
        most = max(most, len(used))
    heads = np.full((bands, most), -1, np.int32)
    near = np.zeros(len(ranks), bool)
    walk_chains(chosen, np.arange(len(ranks)), 0, slots, needed, heads, slots.copy(), near)
    marked = np.zeros(len(signatures), bool)
    marked[ranks] = near
    return marked


@compiled()
def fill_slots(signatures, first, rows, size, slots):
    """Fill in the slot of each document in the band of bytes first to first + rows."""
    for document in range(len(signatures)):
        key = SEED
        for row in range(first, first + rows):
            key = mix(key, np.uint64(signatures[document, row]))
        slots[document] = np.int32(finalise(key) & np.uint64(size - 1))


@compiled()
def mark_suspects(signatures, slots, needed, heads, chains, crowded, suspect):
    """Mark documents similar to one of their slot, and all of slots longer than a walk.

    heads[slot] is the latest document of a slot, chains[rank] the one before it there, -1 the end.
    """
    for rank in range(len(signatures)):
        signature = signatures[rank]
        if not signature.any():
            continue
        slot = slots[rank]
        earlier, walked = heads[slot], 0
        chains[rank], heads[slot] = earlier, rank
        if crowded[slot]:
            suspect[rank] = True
            continue
        while earlier >= 0:
            known = suspect[rank] and suspect[earlier]
            if not known and agreement(signature, signatures[earlier]) >= needed:
                suspect[rank] = suspect[earlier] = True
            earlier = chains[earlier]
            walked += 1
        if walked > LONGEST_WALK:
            crowded[slot] = True
            earlier = rank
            while earlier >= 0:
                suspect[earlier] = True
                earlier = chains[earlier]


@compiled()
def walk_chains(signatures, order, first, slots, needed, heads, chains, near):
    """Compare documents with the kept ones of their slots, and mark the duplicates in `near`.

    slots[i, band] is the slot of rank first + i. heads[band, slot] is the latest kept document of a
    slot (its rank in `order`), chains[rank, band] the one kept before it there, -1 the end of the
    chain.
    """
    bands = len(heads)
    for rank in range(first, first + len(slots)):
        signature = signatures[order[rank]]
        if not signature.any():
            continue
        found = False
        for band in range(bands):
            earlier, walked = heads[band, slots[rank - first, band]], 0
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
            slot = slots[rank - first, band]
            chains[rank, band] = heads[band, slot]
            heads[band, slot] = rank


@compiled()
def agreement(one, other):
    equal = 0
    for index in range(len(one)):
        equal += one[index] == other[index]
    return equal
