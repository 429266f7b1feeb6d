"""The tokenizer as everything else uses it: text to ids and back.

tokenizer = Tokenizer.load("data/corpora/sample/tokenizer-512/tokenizer.json")
tokenizer.decode(tokenizer.encode("a book"))
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.files import canonical_json, sha256_text
from nanoeuler.tokenizer import tokenizer_json
from nanoeuler.tokenizer.pretokenizer import to_bytes
from nanoeuler.tokenizer.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nanoeuler.tokenizer.encoder import Encoder


class Tokenizer:
    """Byte-level BPE over GPT-2's words. `decode_bytes(encode(data)) == data` for every byte string."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.special_ids = vocabulary.specials
        self.end_id = vocabulary.end_id
        self._special = frozenset(vocabulary.specials.values())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json. Raises `UserError` when it is missing, damaged, or of a kind that this project does not know."""
        return cls(tokenizer_json.read(path))

    def save(self, path: str | Path) -> None:
        tokenizer_json.write(path, self.vocabulary)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @cached_property
    def encoder(self) -> "Encoder":
        from nanoeuler.tokenizer.encoder import (
            Encoder,
        )  # loads Numba, which nothing else here needs

        return Encoder(self.vocabulary)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of what the tokenizer is, however its file was laid out: equal fingerprints give equal ids."""
        return sha256_text(canonical_json(tokenizer_json.to_json(self.vocabulary)))

    def encode(self, text: str | bytes) -> np.ndarray:
        """The ids of `text`, int32 (tokens,). Never a special one: a literal "</s>" is text like any other.

        Raises `UserError` for a str with a lone surrogate.
        """
        content = to_bytes(text)
        return self.encoder.encode(
            content, np.array([0, len(content)]), frame=self.end_id, framed=1
        )

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The bytes that `ids` stand for, special tokens as their literals. Raises `ValueError` for an id outside the vocabulary."""
        tokens = self.vocabulary.tokens
        listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if listed and not 0 <= min(listed) <= max(listed) < len(tokens):
            raise ValueError(
                f"ids from {min(listed)} to {max(listed)} do not fit a vocabulary of {len(tokens)} "
                "ids"
            )
        return b"".join(map(tokens.__getitem__, listed))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text that `ids` stand for; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, index: int) -> bytes:
        return self.vocabulary.tokens[index]

    def is_special(self, index: int) -> bool:
        return index in self._special
