"""Choose the held-out documents of each source by hashes, so that the choice never changes.

Each document has a key, and the sha256 of the key is its position in the order of holding out. The
documents with the lowest positions are the source's validation text, up to the share of bytes that
the configuration asks for. A document keeps its side when others are added, as long as the share
leaves it room.

Documents with the same key are always on one side. The key of a book is its title, so that two
editions of a book stay together. The key of a web page or an own file is its content, so that
copies do. A source with a single key (one novel, one title) cannot be split between documents:
stretches of each document are held out instead, one in each of a number of equal parts, so that
beginning, middle and end, dialogue and glossary all have their share. So it is with one's own text
where whole documents would take more from training than the stretches do (mostly below twenty
documents, of which two are a tenth), or less than half the share.

Where a stretch begins is drawn by hashes of the paragraphs themselves. So two drafts or editions of
a text mostly hold out the same passages.
"""

import hashlib
import itertools
import re
import unicodedata

import numpy as np

from nanoeuler.corpus.characters import (
    LINES,
    PARAGRAPHS,
    SENTENCES,
    WORDS,
    borders,
    comparable,
    cut,
    last_character,
    whole_characters,
)
from nanoeuler.errors import UserError
from nanoeuler.storage.spilled import blocks

MANY = 10  # keys: a source with as many holds out two at least, with fewer one at least
SMALLEST_PART = 4_096  # bytes: the least that is held out of a single document, or a tenth of it
SHORTEST_CUT = 200  # bytes: a shorter document is trained on whole
SMALLEST_STRETCH, MOST_STRETCHES = 1_024, 16  # bytes; stretches of a document
FEW = 3  # places from which one is drawn
HASHED = 64  # bytes, of which each eight are a number: they decide whether a stretch begins there
BUCKET_BITS = 12  # of a position
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def position(key: str) -> int:
    """Return a key's position in the order of holding out: the first 8 bytes of its sha256."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def check_share(share: float) -> None:
    if not 0 < share <= 0.5:
        raise UserError(
            f"corpus.validation_share is {share:g}; it must be above 0 and at most 0.5, "
            "for example 0.01"
        )


def last_held_out_position(positions: np.ndarray, sizes: np.ndarray, share: float) -> int | None:
    """Return the position up to which documents are held out; None when there is just one key.

    `positions` (uint64) and `sizes` (int64, bytes) are those of the documents. The held-out keys
    are the lowest that together have at most `share` of the bytes: at least one, at least two of
    `MANY` or more, never all. Of arrays on disk, memory holds those of a few buckets.
    """
    bytes_of = np.zeros(1 << BUCKET_BITS)  # of the documents whose positions have the same top bits
    for rows in blocks(positions, sizes):
        bytes_of += np.bincount(bucket_of(positions[rows]), sizes[rows], len(bytes_of))
    allowed = share * bytes_of.sum()
    used = np.flatnonzero(bytes_of)
    looked_at = np.full(len(bytes_of), len(used) < MANY)
    if len(used) >= MANY:
        # the buckets of the keys that are held out at least, that where the share is passed, and
        # the one before
        edge = np.searchsorted(np.cumsum(bytes_of), allowed, side="right")
        looked_at[[*used[:MANY], *used[used < edge][-1:], edge]] = True
    others = np.cumsum(np.where(looked_at, 0, bytes_of))
    found = [
        rows.start + np.flatnonzero(looked_at[bucket_of(positions[rows])])
        for rows in blocks(positions)
    ]
    chosen = np.concatenate([np.zeros(0, np.int64), *found])
    keys, key_of = np.unique(positions[chosen], return_inverse=True)
    if len(keys) < 2:
        return None
    # bytes of the lowest 1, 2, … keys
    held_out = np.cumsum(np.bincount(key_of, sizes[chosen])) + others[bucket_of(keys)]
    count = int(np.searchsorted(held_out, allowed, side="right"))
    return int(keys[max(least_held_out(len(keys)), min(count, len(keys) - 1)) - 1])


def bucket_of(positions: np.ndarray) -> np.ndarray:
    return (positions >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


def last_of_own_text(positions: np.ndarray, sizes: np.ndarray, share: float) -> int | None:
    """Last held-out position of one's own text; None also where stretches are held out."""
    last = last_held_out_position(positions, sizes, share)
    if last is None:
        return None
    whole = parts = total = 0.0
    for rows in blocks(positions, sizes):
        whole += float(sizes[rows][positions[rows] <= np.uint64(last)].sum())
        parts += float(bytes_of_stretches(sizes[rows], share).sum())
        total += float(sizes[rows].sum())
    # of a novel and a note of five bytes, the note would be all
    too_little = whole < share * total / 2
    return None if parts and (parts < whole or too_little) else last


def least_held_out(keys: int) -> int:
    """Return how many of a source's keys are held out at least."""
    return 2 if keys >= MANY else 1


def title_key(title: str) -> str:
    """Return a key that all editions of a title share; empty if nothing is left of the title.

    Subtitle, volume, article, case, accents and punctuation are dropped. Authors do not count: two
    books of one title on one side do no harm, two editions on two sides would.
    """
    main = re.split(
        r"[;:,(\[\n—]|\s-+\s|\s+or,?\s|\s+vol(?:ume|\.)", title.strip().casefold(), maxsplit=1
    )[0]
    decomposed = unicodedata.normalize("NFKD", re.sub("['’]", "", main))
    letters = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    words = re.sub(r"[\W_]+", " ", letters).split()
    if words[:1] in (["the"], ["a"], ["an"]) and len(words) > 1:
        words = words[1:]
    return " ".join(words)


def bytes_of_stretches(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return about how many bytes are held out where stretches of each document are (float64).

    That is `share` of them, but at least `SMALLEST_PART`, or a tenth of a document that is too
    short for that; of one below `SHORTEST_CUT` nothing.
    """
    wanted = np.maximum(share * sizes, np.minimum(SMALLEST_PART, sizes / 10))
    return np.where(sizes < SHORTEST_CUT, 0.0, wanted)


def choose_stretches(text: bytes, share: float) -> np.ndarray:
    """Return the stretches of UTF-8 `text` that are held out: int64 (stretches, 2), places in it.

    There are none where it is too short. They are apart, and each has some text, as has what is
    between them.
    """
    size = len(text.rstrip())
    wanted = float(bytes_of_stretches(np.array([size]), share)[0])
    if not wanted:
        return np.zeros((0, 2), np.int64)
    count = int(np.clip(wanted // SMALLEST_STRETCH, 1, MOST_STRETCHES))
    of_equal_size = np.linspace(0, size, count + 1).astype(int).tolist()
    found = [
        stretch(text, first, end, int(wanted / count))
        for first, end in itertools.pairwise(of_equal_size)
    ]
    with_text: list[list[int]] = []
    before = 0
    for start, stop in found:
        if not text[start:stop].strip():
            continue
        if text[before:start].strip():
            with_text.append([start, stop])
        elif with_text:
            with_text[-1][1] = stop  # nothing but space is between the two
        else:
            with_text.append([0, stop])
        before = stop
    if with_text and not text[before:].strip():
        with_text[-1][1] = len(text)
    if with_text == [[0, len(text)]]:
        with_text = []
    return np.array(with_text, np.int64).reshape(-1, 2)


def stretch(text: bytes, first: int, end: int, length: int) -> tuple[int, int]:
    """Choose a stretch of about `length` bytes (at most half of them) in text[first:end].

    It begins at a border of the coarsest kind of which there are a few. One is drawn by a hash of
    what follows it, with a probability that is proportional to the bytes up to the next one: so all
    parts of the text have the same chance.
    """
    first, last = whole_characters(text, first, end - length)
    window = text[first:last]
    for kind in (PARAGRAPHS, LINES, SENTENCES, WORDS):
        places = borders(window, kind)
        places = places[places < len(window)]
        if first == 0:
            places = np.append(0, places)
        if len(places) >= FEW:
            weights = np.diff(places, append=len(window))
            # the lowest of exponential variables, whose rates are the weights
            waits = -np.log(uniform_hashes(*as_compared(window, kind, places))) / weights
            start = first + int(places[np.argmin(waits)])
            room = min(length, len(window) // len(places)) // 2
            return start, cut(text, start + length // 2, min(start + length + room, end))
    start = first + int(uniform_hashes(window, np.zeros(1, np.int64))[0] * len(window))
    start = last_character(text, first, start) if start > first else first
    return start, last_character(text, start, start + length)


def as_compared(text: bytes, kind: int, places: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return a text as it is compared, and the places of its borders in it, if they are as many."""
    compared = comparable(text)
    if compared is text:
        return text, places
    moved = borders(compared, kind)
    moved = np.append(places[:1][places[:1] == 0], moved[moved < len(compared)])
    return (compared, moved) if len(moved) == len(places) else (text, places)


def uniform_hashes(text: bytes, places: np.ndarray) -> np.ndarray:
    """Hash the `HASHED` bytes from each of the places on to numbers between 0 and 1 (float64)."""
    padded = np.frombuffer(text + bytes(HASHED), np.uint8)
    parts = np.lib.stride_tricks.sliding_window_view(padded, HASHED)[places].view("<u8")
    mixed = np.zeros(len(places), np.uint64)
    for column in parts.T:
        mixed = (mixed ^ column) * MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
