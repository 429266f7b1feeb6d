"""What requests have in front in common is read once: a system prompt, a conversation that grows.

A prompt is read in pieces, and what a piece leaves in the cache depends on the tokens up to its end
alone. So its rows are kept by these tokens, and the next prompt that begins with them takes a copy
and reads from there on, in the pieces in which it would have been read: to the same bits.
"""

from itertools import takewhile

import numpy as np

from nanoeuler.backend.records import Array
from nanoeuler.model.cache import Cache


class Prefixes:
    """Cache rows of prompts' beginnings, in whole pieces; the least recently used go first."""

    def __init__(self, piece: int, most_bytes: float):
        """Pieces of so many tokens. `most_bytes`: what all that is kept may take."""
        self.piece, self.most_bytes = piece, most_bytes
        self.kept: dict[bytes, Array] = {}
        """Keys and values of a piece, (arrays, piece, kv_heads, head_size), by all tokens up to its
        end; used longest ago first. A piece is used no later than those in front of it, so that
        none stays that cannot be reached."""
        self.bytes = 0

    def begin(self, prompt: list[int], cache: Cache) -> int:
        """Put what is kept of a prompt's beginning into row 0 of `cache`, but for its last token at
        least, whose logits are wanted. Returns how many tokens that is."""
        text = np.array(prompt, np.int32).tobytes()
        ends = range(self.piece, len(prompt), self.piece)
        known = list(takewhile(lambda end: text[: 4 * end] in self.kept, ends))
        for end in reversed(known):
            rows = self.kept.pop(text[: 4 * end])
            self.kept[text[: 4 * end]] = rows
            cache.memory.all_bits[:, 0, end - self.piece : end] = rows
        cache.lengths[0] = len(known) * self.piece
        return len(known) * self.piece

    def keep(self, prompt: list[int], cache: Cache) -> None:
        """Keep the piece of a prompt that was just read into row 0 of `cache`."""
        end = int(cache.lengths[0])
        text = np.array(prompt[:end], np.int32).tobytes()
        rows = cache.memory.all_bits[:, 0, end - self.piece : end]
        if text in self.kept or rows.nbytes > self.most_bytes:
            return
        while self.bytes + rows.nbytes > self.most_bytes:
            oldest = next(iter(self.kept))
            if text.startswith(oldest):  # all others are in front of it, too
                return
            self.bytes -= self.kept.pop(oldest).nbytes
        self.kept[text] = rows.copy()
        self.bytes += rows.nbytes
        for front in range(end - self.piece, 0, -self.piece):
            self.kept[text[: 4 * front]] = self.kept.pop(text[: 4 * front])
