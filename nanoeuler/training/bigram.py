"""The floor for a language model: a bigram model of the training tokens, on held-out text.

p(b | a) = (count(a b) + μ p(b)) / (count(a) + μ), where p(b) is the add-one unigram model. μ is the
best of a few values on the held-out text itself, which makes the bigram model as good as it can be.
"""

import math
from collections.abc import Mapping

import numpy as np

from nanoeuler.training.streams import Tokens

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
CHUNK = 1 << 22


def bigram_bits_per_byte(
    train: Tokens,
    held_out: Mapping[str, tuple[Tokens, int]],
    vocab_size: int,
    end_id: int,
    limit: int = 100_000_000,
) -> dict[str, float]:
    """Bits per byte of each held-out source under the bigram model of `train`.

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
    pair_counts, token_counts = np.zeros(len(asked), np.int64), np.zeros(vocab_size, np.int64)
    total = min(len(train), limit)
    for start in range(0, total, CHUNK):
        part = np.asarray(train[start : min(start + CHUNK + 1, total)], np.int64)
        token_counts += np.bincount(part[:CHUNK], minlength=vocab_size)
        keys = part[:-1] * vocab_size + part[1:]
        slot = np.minimum(np.searchsorted(asked, keys), len(asked) - 1)
        pair_counts += np.bincount(slot[asked[slot] == keys], minlength=len(asked))
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
