"""Find documents that nearly repeat an earlier one, by their MinHash signatures.

Locality-sensitive hashing cuts a signature into bands of a few rows. Documents that agree in a
whole band are compared; they are duplicates if their signatures agree in enough bytes. A document
is only compared with earlier ones that are kept. So each dropped document has a similar one among
the kept, and a chain of small changes cannot drop a document that is unlike all of them.

Memory does not grow with the documents, nor with those that are alike: all is sorted on disk
(spilled.py). That takes 24 bytes of each document for each of the bands, which are 16 at a
threshold of 0.8, and 24 for each similar pair in a band.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from nanoeuler.corpus.signatures import HASHES
from nanoeuler.corpus.word_hashes import SEED, finalise, mix
from nanoeuler.errors import UserError
from nanoeuler.storage.spilled import COLUMNS, RUN, SortedRuns, disk_array, release
from nanoeuler.system.compiling import compiled
from nanoeuler.system.threads import ordered_map

CHANCE = 1 / 256  # that the lowest bytes of two different hashes are equal
FOUND = 0.99  # share of the pairs at the threshold that agree in a band
LONGEST_WALK = 256  # documents of one band that are compared: the latest, for pages of a template
MOST_THREADS = 6  # that sort at a time, in less than 4 GB
LINKS = 1 << 20  # that are written at a time; at least the pairs of a walk
PAIR, LONG = range(2)  # kinds of links


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


def find_near_copies(
    signatures: np.ndarray, threshold: float, threads: int, folder: Path
) -> np.ndarray:
    """Mark (bool, on disk) the documents that are similar to an earlier one that is kept.

    Similar means about `threshold` or more. Documents without words (signature all zeros) are all
    kept. `signatures` may lie on disk; what does not fit into memory is put into `folder`.

    Documents are sorted by their slot in each band. All pairs of a slot are links, if the lowest
    bits of their signatures' bytes differ in no more places than bytes of similar ones may. A slot
    with more documents than a walk is a link of each of them. Links are sorted by their (later)
    document. So all documents are decided in their order: one is dropped if it is linked with a
    similar one that is kept, or similar to one of the latest that are kept in its long slots.
    """
    bits = len(signatures).bit_length()  # of the number of a document
    if bits > 32:
        raise UserError(
            f"{len(signatures):,} documents are too many to find near-duplicates among them; "
            "take fewer shards, or set corpus.deduplicate to exact"
        )
    bands, rows = bands_and_rows(threshold)
    needed, size = needed_agreement(threshold), table_size(len(signatures))
    slot_bits = size.bit_length() - 1
    of_bands = [SortedRuns(folder / f"band-{i}", slot_bits + bits, bits) for i in range(bands)]
    links, numbers = SortedRuns(folder / "links", bits), itertools.count()
    parted: dict[tuple[SortedRuns, int], int] = {}  # numbers of slots that are read in parts

    def fill_band(band: int) -> None:
        records = np.empty((len(documents), COLUMNS), np.uint64)
        fill_slots(chosen, band * rows, rows, size, records[:, 0])
        records[:, 0] = records[:, 0] << np.uint64(bits) | documents
        records[:, 1:] = sketches
        of_bands[band].add(records)
        of_bands[band].finish()

    def link(band: SortedRuns, part: tuple[int, int]) -> None:
        records = band.read(part)
        slots = records[:, 0] >> np.uint64(bits)
        records[:, 0] &= np.uint64((1 << bits) - 1)
        if any(key % (1 << bits) for key in part):  # it is of one slot, which has other parts, too
            records[:, 1:] = parted.setdefault((band, part[0] >> bits), next(numbers)), LONG
            links.add(records)
            return
        starts = np.flatnonzero(np.diff(slots, prepend=~slots[:1]))
        sizes = np.diff(starts, append=len(slots))
        for long in np.flatnonzero(sizes > LONGEST_WALK + 1):
            members = records[starts[long] :][: sizes[long]].copy()
            members[:, 1:] = next(numbers), LONG
            links.add(members)
        found, slot = np.empty((LINKS, COLUMNS), np.uint64), 0
        while slot < len(starts):
            slot, count = link_pairs(records, starts, sizes, slot, HASHES - needed, found)
            links.add(found[:count].copy())

    def similar_links(part: tuple[int, int]) -> np.ndarray:
        records = links.read(part)
        return records[are_similar(records, signatures, needed)]

    threads = min(threads, MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(signatures), RUN):
            chosen = np.array(signatures[first : first + RUN])
            release(signatures)
            worded = np.flatnonzero(chosen.any(axis=1))
            chosen, documents = chosen[worded], np.uint64(first) + worded.astype(np.uint64)
            sketches = np.packbits(chosen & 1, axis=1).view(np.uint64)
            list(pool.map(fill_band, range(bands)))
    for band in of_bands:
        list(ordered_map(partial(link, band), band.parts(), threads))
        band.remove()
    links.finish()
    near = disk_array(folder / "near", len(signatures), bool)
    long = next(numbers)
    counts = disk_array(folder / "counts", long, np.int64)
    latest = disk_array(folder / "latest", (long, LONGEST_WALK, COLUMNS), np.uint64)
    for records in ordered_map(similar_links, links.parts(), threads):
        decide(records, signatures, needed, near, counts, latest)
        release(signatures)
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
        slots[document] = finalise(key) & np.uint64(size - 1)


@compiled()
def link_pairs(records, starts, sizes, slot, most, links):
    """Write a link for each pair of documents of a slot whose sketches differ in `most` bits.

    Begins with `slot`, and leaves out long ones. Returns the first slot whose links may have no
    room, and the number of links.
    """
    count = 0
    while slot < len(starts):
        start, size = starts[slot], sizes[slot]
        if size <= LONGEST_WALK + 1:
            if count + size * (size - 1) // 2 > len(links):
                break
            for one in range(start + 1, start + size):
                for other in range(start, one):
                    if differing_bits(records[one, 1:], records[other, 1:]) <= most:
                        links[count, 0], links[count, 1] = records[one, 0], records[other, 0]
                        links[count, 2] = PAIR
                        count += 1
        slot += 1
    return slot, count


@compiled()
def differing_bits(one, other):
    count = np.uint64(0)
    for index in range(len(one)):
        bits = one[index] ^ other[index]
        bits -= bits >> np.uint64(1) & np.uint64(0x5555555555555555)
        pairs = np.uint64(0x3333333333333333)
        bits = (bits & pairs) + (bits >> np.uint64(2) & pairs)
        bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
        count += bits * np.uint64(0x0101010101010101) >> np.uint64(56)
    return count


@compiled()
def are_similar(links, signatures, needed):
    """Whether (bool) the documents of each pair are similar; true for slots."""
    similar = np.ones(len(links), np.bool_)
    for at in range(len(links)):
        if links[at, 2] == PAIR:
            one, other = signatures[links[at, 0]], signatures[links[at, 1]]
            similar[at] = agreement(one, other) >= needed
    return similar


@compiled()
def decide(links, signatures, needed, near, counts, latest):
    """Enter in `near` (bool) which documents are dropped, of those that have `links`.

    counts[slot] is the number of documents that have been kept in a long slot, latest[slot] has the
    latest of them, each with its sketch.
    """
    first = 0
    while first < len(links):
        document, stop = links[first, 0], first
        while stop < len(links) and links[stop, 0] == document:
            near[document] |= links[stop, 2] == PAIR and not near[links[stop, 1]]
            stop += 1
        signature = signatures[document]
        sketch = np.zeros(2, np.uint64)
        for index in range(HASHES):
            sketch[index // 64] |= np.uint64(signature[index] & 1) << np.uint64(index % 64)
        for at in range(first, stop):
            if links[at, 2] == LONG and not near[document]:
                of_slot = latest[links[at, 1]]
                for place in range(min(counts[links[at, 1]], LONGEST_WALK)):
                    if differing_bits(sketch, of_slot[place, 1:]) <= HASHES - needed:
                        other = signatures[of_slot[place, 0]]
                        near[document] |= agreement(signature, other) >= needed
        for at in range(first, stop):
            if links[at, 2] == LONG and not near[document]:
                slot = links[at, 1]
                latest[slot, counts[slot] % LONGEST_WALK, 0] = document
                latest[slot, counts[slot] % LONGEST_WALK, 1:] = sketch
                counts[slot] += 1
        first = stop


@compiled()
def agreement(one, other):
    equal = 0
    for index in range(len(one)):
        equal += one[index] == other[index]
    return equal
