"""Cut a corpus into chunks that can be encoded separately, with the same result for any chunks.

Text is cut where words are sure to end. Memory holds a few chunks, however long the corpus or one
of its documents is.
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
    source: int  # index of the text among those of the split
    start: int
    stop: int


def chunks(corpus: Corpus, size: int = CHUNK) -> Iterator[Chunk]:
    """Cut a corpus into chunks of about `size` bytes that end with a document or a word."""
    for texts in corpus.texts.values():
        for source, text in enumerate(texts):
            start = 0
            while start < len(text.data):
                stop = chunk_end(text, start + size)
                yield Chunk(text.split, source, start, stop)
                start = stop


def chunk_end(text: CorpusText, target: int) -> int:
    """Return the first offset from `target` on where the text may be cut."""
    if target >= len(text.data):
        return len(text.data)
    document_end = int(text.offsets[np.searchsorted(text.offsets, target)])
    return safe_cut(text.data, target, document_end)


class ChunkEncoder:
    """Encodes chunks: `</s>` before each document that starts in the chunk, and the text's ids."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer):
        self.corpus, self.tokenizer = corpus, tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, chunk: Chunk) -> np.ndarray:
        """Return the ids of a chunk: (tokens,) in the dtype of the shards."""
        text = self.corpus.texts[chunk.split][chunk.source]
        first, last = np.searchsorted(text.offsets, [chunk.start, chunk.stop])
        starts = text.offsets[first:last] - chunk.start  # of the documents that start in the chunk
        unframed = int(len(starts) == 0 or starts[0] != 0)  # 1 if it begins within a document
        borders = np.concatenate([[0] * unframed, starts, [chunk.stop - chunk.start]])
        content = text.data[chunk.start : chunk.stop]
        ids = self.tokenizer.encoder.encode(
            content, borders.astype(np.int64), frame=self.tokenizer.end_id, framed=unframed
        )
        return ids.astype(self.dtype)
