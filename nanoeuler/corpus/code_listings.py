"""Signatures of documents, in which operators are words where a document is code.

In prose only letters and digits make words: copies may differ in quotation marks and dashes. In a
listing or a table of formulas that would make a + b, a - b and a <= b the same text.
"""

import functools
import unicodedata

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.minhash import sign
from nanoeuler.corpus.unicode_forms import comparable
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.system.compiling import compiled

WORDS_OF_A_SYMBOL = 16  # at most, on average, in a document that counts as code
OPERATORS = "!#$%&*+-./:<=>?@\\^|~"


def signatures(batch: Batch, hashes: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return the signatures (minhash.py) of a batch, whose words `hash_words` has found."""
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
