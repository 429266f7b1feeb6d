"""MinHash signatures of documents: 128 bytes, which agree in as many as the documents are similar.

The shingles of a document are all its runs of `SHINGLE` words. The similarity of two documents is
the Jaccard index of their sets of shingles: the size of the intersection over that of the union.
Under a random order of all shingles, it is the probability that both sets have the same first
shingle. `HASHES` orders are drawn, and a signature keeps one byte of the hash of each order's first
shingle (Broder 1997; Li and König 2010, "b-bit minwise hashing").
"""

import functools
import unicodedata

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.characters import comparable
from nanoeuler.corpus.word_hashes import finalise, hash_words
from nanoeuler.system.compiling import compiled

SHINGLE = 5  # words; a shorter document is one shingle
HASHES = 128
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
    if document.isascii():
        for operator in OPERATORS:
            document = document.replace(operator.encode(), chr(alone(ord(operator))).encode())
        return document
    codes = np.frombuffer(
        comparable(document).decode("utf-8", "replace").encode("utf-32-le"), "<u4"
    )
    return operator_table()[codes].tobytes().decode("utf-32-le").encode("utf-8")


@functools.cache
def operator_table() -> np.ndarray:
    """Return for each code point (uint32) itself, or what an operator is replaced by."""
    table = np.arange(0x110000, dtype="<u4")
    for code in [*map(ord, OPERATORS), *range(0x80, 0x10000)]:
        if code < 0x80 or unicodedata.category(chr(code)) == "Sm":
            table[code] = alone(code)
    return table


def alone(code: int) -> int:
    """A code point that stands for another one, and is a word by itself (word_hashes.py)."""
    return 0x40000 + code


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
