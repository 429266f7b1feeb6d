"""A corpus in chunks that are encoded apart, with the same result for any cutting.

Text is cut where words surely end, so that memory holds a few chunks, however long the corpus or one of its documents.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nanoeuler.tokenizer.corpus_text import Corpus, CorpusText
from nanoeuler.tokenizer.pretokenizer import safe_cut
from nanoeuler.tokenizer.shards import token_dtype
from nanoeuler.tokenizer.tokenizer import Tokenizer

CHUNK = 1 << 20  # bytes that a thread encodes at a time


class Chunk(NamedTuple):
    """Bytes [start, stop) of one text: some documents, or a piece of a long one."""

    split: str
    index: int  # of the text among the split's
    start: int
    stop: int


def chunks(corpus: Corpus, size: int = CHUNK) -> Iterator[Chunk]:
    """Cut a corpus into chunks of about `size` bytes, each ending with a document or else with a word."""
    for texts in corpus.texts.values():
        for index, text in enumerate(texts):
            start = 0
            while start < len(text.data):
                stop = chunk_end(text, start + size)
                yield Chunk(text.split, index, start, stop)
                start = stop


def chunk_end(text: CorpusText, target: int) -> int:
    """The first place from `target` on where text may be cut."""
    if target >= len(text.data):
        return len(text.data)
    document_end = int(text.offsets[np.searchsorted(text.offsets, target)])
    return safe_cut(text.data, target, document_end)


class ChunkEncoder:
    """Turns chunks into ids: `</s>` before each document that starts in the chunk, then the ids of its text."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer):
        self.corpus, self.tokenizer = corpus, tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, chunk: Chunk) -> np.ndarray:
        """(tokens,) in the dtype of the shards."""
        text = self.corpus.texts[chunk.split][chunk.index]
        first, last = np.searchsorted(text.offsets, [chunk.start, chunk.stop])
        starts = text.offsets[first:last]  # of documents
        goes_on = len(starts) == 0 or starts[0] != chunk.start  # it begins within a document
        borders = (
            np.concatenate([[chunk.start] * int(goes_on), starts, [chunk.stop]]).astype(np.int64)
            - chunk.start
        )
        ids = self.tokenizer.encoder.encode(
            text.data[chunk.start : chunk.stop],
            borders,
            frame=self.tokenizer.end_id,
            framed=int(goes_on),
        )
        return ids.astype(self.dtype)
