"""Which documents are held out: decided by hashes, so that it is the same everywhere and for ever, and every source has some.

Each document has a key, and its place is the sha256 of that key: a source's documents with the lowest places are its validation text, up to the
share of bytes that the configuration asks for. Documents with one key are never parted: a book's key is its title, so that two editions of a
book are on one side, and a web page's or an own file's key is its content, so that copies are. A document keeps its side when others
are added, as long as the share leaves it room.

A source of one key (a novel, a title) can't be parted between documents: the end of each document is held out instead.
"""

import hashlib
import re
import unicodedata

import numpy as np

from nanoeuler.errors import UserError

MANY = 10  # from so many keys on at least two are held out, before at least one
SMALLEST_END = 4_096  # bytes held out of a single document whatever the share, where that is no more than a tenth of it


def place(key: str) -> int:
    """A key's place in the order in which documents are held out: the first 8 bytes of its sha256."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def check_share(share: float) -> None:
    if not 0 < share <= 0.5:
        raise UserError(
            f"corpus.validation_share is {share:g}; it must be above 0 and at most 0.5, "
            "for example 0.01"
        )


def last_held_out_place(places: np.ndarray, sizes: np.ndarray, share: float) -> int | None:
    """The place up to which documents are held out, given each document's place and bytes (uint64, int64); None when there is just one key.

    The held-out keys are the lowest that together have at most `share` of the bytes; at least one, at least two of `MANY` or more, never all.
    """
    keys, key_of = np.unique(places, return_inverse=True)
    if len(keys) < 2:
        return None
    held_out = np.cumsum(
        np.bincount(key_of, weights=sizes)
    )  # bytes, were the lowest 1, 2, … keys held out
    count = int(np.searchsorted(held_out, share * held_out[-1], side="right"))
    return int(keys[max(2 if len(keys) >= MANY else 1, min(count, len(keys) - 1)) - 1])


def title_key(title: str) -> str:
    """The same for all editions of a title: without subtitle, volume, article, case, accents or punctuation; empty if nothing is left.

    Authors are left out: two books of one title on one side do no harm, two editions on two sides would.
    """
    main = re.split(
        r"[;:,(\[\n—]|\s-+\s|\s+or,?\s|\s+vol(?:ume|\.)", title.strip().casefold(), maxsplit=1
    )[0]
    letters = unicodedata.normalize("NFKD", re.sub("['’]", "", main))
    words = re.sub(
        r"[\W_]+", " ", "".join(letter for letter in letters if not unicodedata.combining(letter))
    ).split()
    return " ".join(
        words[1:] if words[:1] in (["the"], ["a"], ["an"]) and len(words) > 1 else words
    )


def cut_end(text: bytes, share: float) -> int:
    """Where to cut UTF-8 `text` so that the last `share` of it can be held out: at the paragraph border before that, else a line's, else a space.

    At least `SMALLEST_END` bytes are held out, or a tenth of a text that is too short for that. Returns 0 where there is no place to cut.
    """
    size = len(text.rstrip())
    target = size - round(max(share * size, min(SMALLEST_END, size / 10)))
    for border in (b"\n\n", b"\n", b" "):
        found = text.rfind(border, size // 2, target)
        if found > 0 and text[:found].strip():
            return found + len(border)
    return 0
