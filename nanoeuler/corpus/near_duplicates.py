"""Find documents that repeat an earlier one, exactly or nearly, by their MinHash signatures.

Locality-sensitive hashing cuts a signature into bands of a few rows. Documents that agree in a
whole band are compared; they are duplicates if their signatures agree in enough bytes. A document
is only compared with earlier ones that are kept. So each dropped document has a similar one among
the kept, and a chain of small changes cannot drop a document that is unlike all of them.

Memory per document: 128 bytes of signature, and 20 bytes a thread; of one that is suspected another
signature, and 8 bytes for each of the bands, which are 16 at a threshold of 0.8.

The shingles of a document are all its runs of `SHINGLE` words. The similarity of two documents is
the Jaccard index of their sets of shingles: the size of the intersection over that of the union.
Under a random order of all shingles, it is the probability that both sets have the same first
shingle. `HASHES` orders are drawn, and a signature keeps one byte of the hash of each order's first
shingle (Broder 1997; Li and König 2010, "b-bit minwise hashing").
"""

import functools
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.characters import comparable
from nanoeuler.corpus.word_hashes import SEED, finalise, hash_words, mix
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


def find_near_copies(signatures: np.ndarray, threshold: float, threads: int) -> np.ndarray:
    """Mark (bool) the documents that are similar to an earlier one that is kept.

    Similar means about `threshold` or more. Documents without words (signature all zeros) are all
    kept.

    One band at a time is searched, in each thread, for documents that are similar to any other of
    their slot. All others are kept, and no document is dropped for their sake. So it is enough to
    walk the chains of the suspects, and of slots with so many documents that a walk may end early.
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
    near = np.zeros(len(signatures), bool)
    near[ranks] = walk_chains(chosen, slots, needed, np.full((bands, most), -1, np.int32))
    return near


def table_size(documents: int) -> int:
    """Return the number of slots of a band."""
    return 1 << max(4, documents.bit_length())


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
def walk_chains(signatures, slots, needed, heads):
    """Compare documents with the kept ones of their slots; return which (bool) are duplicates.

    slots[document, band] is the slot of a document. heads[band, slot] is the latest kept document
    of a slot, chains[document, band] the one kept before it there, -1 the end of the chain.
    """
    bands = len(heads)
    near, chains = np.zeros(len(slots), np.bool_), np.empty(slots.shape, np.int32)
    for document in range(len(slots)):
        signature = signatures[document]
        if not signature.any():
            continue
        for band in range(bands):
            earlier, walked = heads[band, slots[document, band]], 0
            while earlier >= 0 and walked < LONGEST_WALK and not near[document]:
                near[document] = agreement(signature, signatures[earlier]) >= needed
                earlier = chains[earlier, band]
                walked += 1
            if near[document]:
                break
        if near[document]:
            continue
        for band in range(bands):
            slot = slots[document, band]
            chains[document, band] = heads[band, slot]
            heads[band, slot] = document
    return near


@compiled()
def agreement(one, other):
    equal = 0
    for index in range(len(one)):
        equal += one[index] == other[index]
    return equal


WORDS_OF_A_SYMBOL = 16  # at most, on average, in a document that counts as code
OPERATORS = "!#$%&*+-./:<=>?@\\^|~"


def sign_documents(batch: Batch, hashes: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return the signatures of a batch, whose words `hash_words` has found.

    In prose only letters and digits make words: copies may differ in quotation marks and dashes. In
    a listing or a table of formulas that would make a + b, a - b and a <= b the same text. So
    operators are words in a document that is code.
    """
    signed = sign(hashes, borders)
    symbols = count_symbols(batch.text, batch.starts, batch.stops)
    words = np.diff(borders)
    code = np.flatnonzero((symbols * WORDS_OF_A_SYMBOL > words) & (words > 0))
    if len(code):
        documents = map(bytes, batch.take(code).documents())
        signed[code] = sign(*hash_words(Batch.of(list(map(with_operators, documents)))))
    return signed


def with_operators(document: bytes) -> bytes:
    """Replace each operator by a character that is a word."""
    if not document.isascii():
        text = comparable(document).decode("utf-8", "replace")
        document = text.translate(mathematical_operators()).encode("utf-8", "replace")
    for operator in OPERATORS:
        document = document.replace(operator.encode(), alone(ord(operator)).encode())
    return document


@functools.cache
def mathematical_operators() -> dict[int, str]:
    codes = range(0x80, 0x10000)
    return {code: alone(code) for code in codes if unicodedata.category(chr(code)) == "Sm"}


def alone(code: int) -> str:
    """A code point that stands for another one, and is a word by itself (word_hashes.py)."""
    return chr(0x40000 + code)


@compiled()
def count_symbols(text, starts, stops):
    """Return the number (int64) of each document's characters that are rare in prose.

    Sums of bytes in blocks, without a branch, so that the processor does many at once.
    """
    counts = np.zeros(len(starts), np.int64)
    for document in range(len(starts)):
        first, stop = starts[document] + 1, stops[document]
        for block in range(first, stop, 128):
            counts[document] += count_in_block(
                text[block : min(block + 128, stop)], text[block - 1 : stop]
            )
    return counts


@compiled()
def count_in_block(text, before):
    count = np.uint8(0)
    for at in range(len(text)):
        byte, last = text[at], before[at]
        # [ \\ ] ^ { | } ~, # $ % &, * +, < = >
        symbol = np.uint8((byte | np.uint8(0x20)) - np.uint8(0x7B)) < np.uint8(4)
        symbol |= np.uint8(byte - np.uint8(0x23)) < np.uint8(4)
        symbol |= np.uint8(byte - np.uint8(0x2A)) < np.uint8(2)
        symbol |= np.uint8(byte - np.uint8(0x3C)) < np.uint8(3)
        # - and / after ( ) * + < = > [ { |: not in words, lists, dashes and addresses
        minus = (byte == np.uint8(0x2D)) | (byte == np.uint8(0x2F))
        operator = np.uint8(last - np.uint8(0x28)) < np.uint8(4)
        operator |= np.uint8(last - np.uint8(0x3C)) < np.uint8(3)
        operator |= np.uint8((last | np.uint8(0x20)) - np.uint8(0x7B)) < np.uint8(2)
        symbol |= minus & operator
        # arrows and operators of mathematics, × and ÷
        symbol |= (last == np.uint8(0xE2)) & (np.uint8(byte - np.uint8(0x86)) < np.uint8(6))
        symbol |= (last == np.uint8(0xC3)) & ((byte == np.uint8(0x97)) | (byte == np.uint8(0xB7)))
        count = np.uint8(count + symbol)  # a uint8 again, of which vectors hold the most
    return np.int64(count)
