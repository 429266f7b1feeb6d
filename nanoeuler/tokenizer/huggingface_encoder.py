"""Encode with the `tokenizers` library, for imported models whose words are not GPT-2's.

Slower than our encoder, and with the same contract.
"""

import itertools
import json
import re
from collections.abc import Iterator

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.tokenizer import sentencepiece
from nanoeuler.tokenizer.vocabulary import Vocabulary

BROKEN = re.compile("([\udc80-\udcff]+)")
"""Bytes that are no UTF-8, as Python's surrogateescape writes them."""


class HuggingFaceEncoder:
    """Encodes with one vocabulary, in any number of threads at once."""

    def __init__(self, vocabulary: Vocabulary):
        """Raises `UserError` without the library, or for a tokenizer that it does not read."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(
                "this tokenizer cuts words in another way than GPT-2's, which the tokenizers "
                "library does; install it with pip install 'nanoeuler[tokenizers]'"
            ) from error
        assert vocabulary.foreign is not None
        contents = [vocabulary.foreign]
        if vocabulary.adds_space:
            contents.append(sentencepiece.continuing(vocabulary.foreign))
        try:
            made = [Tokenizer.from_str(json.dumps(content)) for content in contents]
        except Exception as error:  # the library raises no other
            raise UserError(
                f"the tokenizers library does not read this tokenizer ({brief(str(error))}); "
                "give another one, or fetch it again"
            ) from error
        for each in made:
            each.encode_special_tokens = True  # "</s>" in a text is text
        self.of_starts, self.of_rest = made[0], made[-1]
        """For the start of a text, and for what continues it."""
        self.id_of_byte = {
            token[0]: index for index, token in enumerate(vocabulary.tokens) if len(token) == 1
        }

    def encode(self, content: bytes, borders: np.ndarray, frame: int, framed: int) -> np.ndarray:
        """Return the ids of the pieces of `content` between `borders`: int32 (ids,).

        The id `frame` precedes each piece from number `framed` on, where a text starts; the pieces
        before continue one.
        """
        ids: list[int] = []
        for number, (start, end) in enumerate(itertools.pairwise(borders.tolist())):
            ids += [frame] * (number >= framed)
            ids += self.ids(content[start:end], starts=number >= framed)
        return np.array(ids, np.int32)

    def ids(self, piece: bytes, *, starts: bool) -> Iterator[int]:
        tokenizer = self.of_starts if starts else self.of_rest
        for part in BROKEN.split(piece.decode("utf-8", errors="surrogateescape")):
            if BROKEN.match(part):
                yield from (self.id_of_byte[byte] for byte in part.encode(errors="surrogateescape"))
            elif part:
                yield from tokenizer.encode(part, add_special_tokens=False).ids
            tokenizer = self.of_rest
