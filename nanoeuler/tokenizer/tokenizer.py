"""The tokenizer that other packages use: text to ids and back.

tokenizer = Tokenizer.load("data/corpora/sample/tokenizer-512/tokenizer.json")
tokenizer.decode(tokenizer.encode("a book"))
"""

import codecs
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json, sha256_text
from nanoeuler.tokenizer import tokenizer_json
from nanoeuler.tokenizer.vocabulary import CALL, CALL_END, Vocabulary

if TYPE_CHECKING:
    from nanoeuler.tokenizer.encoder import Encoder
    from nanoeuler.tokenizer.huggingface_encoder import HuggingFaceEncoder


class Tokenizer:
    """Byte-level BPE over GPT-2's words, or over those of an imported model.

    `decode_bytes(encode(data)) == data` holds for every byte string, but where an imported model
    normalizes its text.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.special_ids = vocabulary.specials
        self.end_id = vocabulary.end_id
        self.adds_space = vocabulary.adds_space
        self._special = frozenset(vocabulary.specials.values())
        self.call_ids: tuple[int, int] | None = None
        """The tokens around an expression for the calculator, where there are any."""
        if CALL in vocabulary.specials and CALL_END in vocabulary.specials:
            self.call_ids = vocabulary.specials[CALL], vocabulary.specials[CALL_END]

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json. Raises `UserError` when it is missing, damaged or unsupported."""
        return cls(tokenizer_json.read(path))

    def save(self, path: str | Path) -> None:
        tokenizer_json.write(path, self.vocabulary)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @cached_property
    def encoder(self) -> "Encoder | HuggingFaceEncoder":
        if self.vocabulary.foreign is not None:
            from nanoeuler.tokenizer.huggingface_encoder import HuggingFaceEncoder

            return HuggingFaceEncoder(self.vocabulary)
        from nanoeuler.tokenizer.encoder import Encoder  # loads Numba, which decoding does not need

        return Encoder(self.vocabulary)

    @cached_property
    def longest_token(self) -> float:
        """The most bytes of a text that an id stands for, infinite where text is normalized."""
        if self.vocabulary.foreign is not None:
            return math.inf
        return max(map(len, self.vocabulary.tokens))

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the vocabulary, whatever the layout of its file.

        Tokenizers of equal fingerprints give equal ids.
        """
        return sha256_text(canonical_json(tokenizer_json.to_json(self.vocabulary)))

    def encode(self, text: str | bytes, *, continues: bool = False) -> np.ndarray:
        """Return the ids of `text`, int32 (tokens,), never special ones: "</s>" is text here.

        Some imported models put a space in front of a text, but not of what `continues` one.
        Raises `UserError` for a str with a lone surrogate.
        """
        content = to_bytes(text)
        borders = np.array([0, len(content)])
        if continues or not self.adds_space:
            return self.encoder.encode(content, borders, frame=self.end_id, framed=1)
        return self.encoder.encode(content, borders, frame=self.end_id, framed=0)[1:]

    def decode_bytes(self, ids: Iterable[int] | np.ndarray, *, continues: bool = False) -> bytes:
        """Return the bytes that `ids` stand for, special tokens as their literals.

        The space that `encode` put in front of a text is dropped, unless they `continues` one.
        Raises `ValueError` for an id outside the vocabulary.
        """
        tokens = self.vocabulary.tokens
        listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if listed and not 0 <= min(listed) <= max(listed) < len(tokens):
            raise ValueError(
                f"ids from {min(listed)} to {max(listed)} "
                f"do not fit a vocabulary of {len(tokens)} ids"
            )
        content = b"".join(map(tokens.__getitem__, listed))
        if not continues and self.adds_space:
            return content.removeprefix(b" ")
        return content

    def decode(self, ids: Iterable[int] | np.ndarray, *, continues: bool = False) -> str:
        """Return the text that `ids` stand for; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, continues=continues).decode("utf-8", errors="replace")

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, without its calls of the calculator."""
        decoder = StreamDecoder(self)
        return decoder.push(*ids) + decoder.flush()

    def token_bytes(self, index: int) -> bytes:
        return self.vocabulary.tokens[index]

    def is_special(self, index: int) -> bool:
        return index in self._special


class StreamDecoder:
    """Decodes the ids of a reply, which arrive one by one, or several at a time.

    The joined results of `push` and `flush` are `tokenizer.decode` of all ids but those of calls
    of the calculator, up to the first of the strings `stops`. Text appears once it cannot be the
    beginning of one.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self.tokenizer, self.stops = tokenizer, stops
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.held = ""
        """Text that a stop string may yet turn out to begin with."""
        self.stopped = False
        """Was there a stop string?"""
        self.calls = False
        """Was the last token within a call?"""

    def push(self, *ids: int) -> str:
        """Return the text that `ids` complete, empty while bytes of a character are missing."""
        read = ids if self.tokenizer.call_ids is None else self.without_calls(ids)
        text = self.decoder.decode(self.tokenizer.decode_bytes(read, continues=True))
        return self.until_stop(text) if self.stops else text

    def without_calls(self, ids: Sequence[int]) -> list[int]:
        assert self.tokenizer.call_ids is not None
        read = []
        for id in ids:
            if id in self.tokenizer.call_ids:
                self.calls = id == self.tokenizer.call_ids[0]
            elif not self.calls:
                read.append(id)
        return read

    def flush(self) -> str:
        """Return what was held back after the last id, bytes as U+FFFD, and reset the decoder."""
        text = self.decoder.decode(b"", final=True)
        if self.stopped or not self.stops:
            return "" if self.stopped else text
        text = self.until_stop(text)
        rest, self.held = self.held, ""
        return text + rest

    def until_stop(self, text: str) -> str:
        self.held += text
        found = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            certain, self.held, self.stopped = self.held[: min(found)], "", True
            return certain
        border = len(self.held) - self.possible_start()
        certain, self.held = self.held[:border], self.held[border:]
        return certain

    def possible_start(self) -> int:
        """Characters at the end of `held` with which a stop string begins."""
        longest = min(len(self.held), max(map(len, self.stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stops):
                return length
        return 0


def to_bytes(text: str | bytes) -> bytes:
    """Return the bytes of `text`. Raises `UserError` for a str with a lone surrogate."""
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, "
            "a lone surrogate that UTF-8 cannot carry; remove it or give bytes"
        ) from None
