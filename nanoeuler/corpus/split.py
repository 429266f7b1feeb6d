"""Choose the held-out documents of each source by hashes, so that the choice never changes.

Each document has a key, and the sha256 of the key is its position in the order of holding out. The
documents with the lowest positions are the source's validation text, up to the share of bytes that
the configuration asks for. A document keeps its side when others are added, as long as the share
leaves it room.

Documents with the same key are always on one side. The key of a book is its title, so that two
editions of a book stay together. The key of a web page or an own file is its content, so that
copies do. A source with a single key (one novel, one title) cannot be split between documents: the
end of each document is held out instead. So it is with one's own text where whole documents would
take more from training than the ends do: mostly below twenty documents, of which two are a tenth.
"""

import hashlib
import re
import unicodedata

import numpy as np

from nanoeuler.errors import UserError

MANY = 10  # keys: a source with as many holds out two at least, with fewer one at least
SMALLEST_END = 4_096  # bytes: the least that is held out of a single document, or a tenth of it


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
    `MANY` or more, never all.
    """
    keys, key_of = np.unique(positions, return_inverse=True)
    if len(keys) < 2:
        return None
    held_out = np.cumsum(np.bincount(key_of, weights=sizes))  # bytes of the lowest 1, 2, … keys
    count = int(np.searchsorted(held_out, share * held_out[-1], side="right"))
    return int(keys[max(least_held_out(len(keys)), min(count, len(keys) - 1)) - 1])


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


def bytes_of_ends(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return about how many bytes are held out where the end of each document is (float64).

    That is `share` of them, but at least `SMALLEST_END`, or a tenth of a document that is too short
    for that.
    """
    return np.maximum(share * sizes, np.minimum(SMALLEST_END, sizes / 10))


def cut_end(text: bytes, share: float) -> int:
    """Return where to cut UTF-8 `text` so that the last `share` of it can be held out.

    The cut moves back to the end of a paragraph, else of a line, else to a space. Returns 0 where
    the text cannot be cut.
    """
    size = len(text.rstrip())
    target = size - round(bytes_of_ends(np.array([size]), share)[0])
    for border in (b"\n\n", b"\n", b" "):
        found = text.rfind(border, size // 2, target)
        if found > 0 and text[:found].strip():
            return found + len(border)
    return 0
