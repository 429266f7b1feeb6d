"""The floor that a language model must beat: a bigram model of the training tokens, scored on the held-out ones.

p(b | a) = (count(a b) + μ p(b)) / (count(a) + μ), with p(b) the add-one unigram model and μ the best of a few values on
the held-out text itself, which makes the floor as high as a bigram model can be.
"""

import math
from typing import Any

import numpy as np

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
CHUNK = 1 << 22


def bigram_bits_per_byte(
    train: Any,
    held_out: dict[str, tuple[Any, int]],
    vocab_size: int,
    end_id: int,
    limit: int = 100_000_000,
) -> dict[str, float]:
    """Bits per byte of each held-out source under the bigram model of (at most the first `limit` tokens of) `train`.

    `held_out` maps a source's name to its tokens and the UTF-8 bytes of their text; like the model, the bigram model predicts
    every token but the first `</s>`, and the `</s>` behind the last. Only pairs that the held-out text asks for are counted.
    """
    pairs = {}
    for name, (tokens, text_bytes) in held_out.items():
        sequence = np.append(np.asarray(tokens[0 : len(tokens)], np.int64), end_id)
        pairs[name] = (sequence[:-1] * vocab_size + sequence[1:], text_bytes)
    asked = np.unique(np.concatenate([keys for keys, _ in pairs.values()]))
    pair_counts, token_counts = np.zeros(len(asked), np.int64), np.zeros(vocab_size, np.int64)
    total = min(len(train), limit)
    for start in range(0, total, CHUNK):
        part = np.asarray(train[start : min(start + CHUNK + 1, total)], np.int64)
        token_counts += np.bincount(part[:CHUNK], minlength=vocab_size)
        keys = part[:-1] * vocab_size + part[1:]
        place = np.minimum(np.searchsorted(asked, keys), len(asked) - 1)
        pair_counts += np.bincount(place[asked[place] == keys], minlength=len(asked))
    unigram = (token_counts + 1) / (token_counts.sum() + vocab_size)
    first, second = asked // vocab_size, asked % vocab_size
    best: dict[str, float] = {}
    for strength in STRENGTHS:
        nats = -np.log(
            (pair_counts + strength * unigram[second]) / (token_counts[first] + strength)
        )
        for name, (keys, text_bytes) in pairs.items():
            bits = float(nats[np.searchsorted(asked, keys)].sum()) / math.log(2) / text_bytes
            best[name] = min(best.get(name, math.inf), bits)
    return best
