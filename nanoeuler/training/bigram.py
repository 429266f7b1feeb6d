"""How well pairs of tokens alone foretell a text: what a language model has to get below."""

import math
from collections.abc import Mapping

import numpy as np

from nanoeuler.model.documents import TokenSlices
from nanoeuler.system.compiling import compiled

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
CHUNK = 1 << 22
EMPTY = -1


def bigram_bits_per_byte(
    train: TokenSlices,
    held_out: Mapping[str, tuple[TokenSlices, int]],
    vocab_size: int,
    end_id: int,
    limit: int = 100_000_000,
) -> dict[str, float]:
    """Bits per byte of each held-out source under the bigram model of `train`: a model's floor.

    p(b | a) = (count(a b) + μ p(b)) / (count(a) + μ), where p(b) is the add-one unigram model. μ is
    the best of a few values on the held-out text itself, which makes the bigram model as good as it
    can be.

    At most the first `limit` tokens of `train` are counted, and only the pairs that occur in the
    held-out text. `held_out` maps a source's name to its tokens and the UTF-8 bytes of their text.
    Like the model, the bigram model predicts every token except the first `</s>`, and the `</s>`
    that follows the last token.
    """
    pairs = {}
    for name, (tokens, text_bytes) in held_out.items():
        sequence = np.append(np.asarray(tokens[0 : len(tokens)], np.int64), end_id)
        pairs[name] = (sequence[:-1] * vocab_size + sequence[1:], text_bytes)
    asked = np.unique(np.concatenate([keys for keys, _ in pairs.values()]))
    table = np.full(1 << (4 * len(asked)).bit_length(), EMPTY)
    slots, counts = np.empty_like(asked), np.zeros(len(table), np.int64)
    enter(asked, table, slots)
    token_counts = np.zeros(vocab_size, np.int64)
    total = min(len(train), limit)
    for start in range(0, total, CHUNK):
        part = train[start : min(start + CHUNK + 1, total)]
        token_counts += np.bincount(part[:CHUNK], minlength=vocab_size)
        count_pairs(part, vocab_size, table, counts)
    pair_counts = counts[slots]
    unigram = (token_counts + 1) / (token_counts.sum() + vocab_size)
    first, second = asked // vocab_size, asked % vocab_size
    best: dict[str, float] = {}
    for strength in STRENGTHS:
        smoothed = pair_counts + strength * unigram[second]
        nats = -np.log(smoothed / (token_counts[first] + strength))
        for name, (keys, text_bytes) in pairs.items():
            bits = float(nats[np.searchsorted(asked, keys)].sum()) / math.log(2) / text_bytes
            best[name] = min(best.get(name, math.inf), bits)
    return best


@compiled()
def enter(keys, table, slots):
    """Put each key into the table, whose size is a power of two, and note its slot."""
    for number, key in enumerate(keys):
        slots[number] = slot_of(table, key)
        table[slots[number]] = key


@compiled()
def count_pairs(tokens, vocab_size, table, counts):
    """Add to `counts` how often each pair of the table occurs in the tokens."""
    for at in range(1, len(tokens)):
        key = np.int64(tokens[at - 1]) * vocab_size + tokens[at]
        slot = slot_of(table, key)
        counts[slot] += table[slot] == key


@compiled(inline="always")
def slot_of(table, key):
    """The slot that holds the key, or the empty one where it would be: linear probing."""
    slot = (key * 0x9E3779B1 >> 16) & (len(table) - 1)
    while table[slot] != key and table[slot] != EMPTY:
        slot = (slot + 1) & (len(table) - 1)
    return slot
