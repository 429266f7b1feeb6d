"""A sample of one's own text, from which its size in tokens is estimated before it is prepared."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nanoeuler.corpus.text_files import PIECE, Reading, read_documents, read_opening
from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.corpus_text import blocks
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build

SAMPLE_BYTES = 4_000_000
BLOCK = 1 << 14  # bytes: blocks of about this size are taken or passed over


class Sample:
    """Blocks from all parts of texts that are read once, about `most` bytes of all.

    A log of as many bytes that sorts first would otherwise be all of the sample. Less text than
    that is taken whole.
    """

    def __init__(self, available: float, most: float = SAMPLE_BYTES):
        """`available`: bytes of all texts."""
        self.share = min(1.0, most / max(1.0, available))
        self.seen = 0.0
        self.taken = 0.0
        self.blocks: list[bytes] = []

    def wants(self, size: float) -> bool:
        """Whether something of the next `size` bytes is to be taken."""
        return self.taken < (self.seen + size) * self.share

    def takes(self, size: float) -> bool:
        """Whether the next `size` bytes are taken as a whole, which are counted."""
        taken = self.wants(size)
        self.seen += size
        self.taken += size if taken else 0.0
        return taken

    def add(self, text: bytes, weight: float = 1.0) -> None:
        """Show the sample the next text, each byte of which stands for `weight` bytes."""
        for start, stop in blocks(text, 0, len(text), BLOCK):
            self.seen += weight * (stop - start)
            if self.taken < self.seen * self.share:
                self.blocks.append(text[start:stop])
                self.taken += stop - start


def bytes_per_token(sample: Sequence[bytes], tokenizer: Tokenizer) -> float:
    return sum(map(len, sample)) / sum(len(tokenizer.encode(document)) for document in sample)


class OwnTextSize(NamedTuple):
    bytes: float  # without what is left out of the files
    bytes_per_token: float


def measure(files: Sequence[tuple[Path, Reading]], vocab_size: int) -> OwnTextSize:
    """About the size of the text in `files`, for a tokenizer that is learned from it.

    Of a file above `PIECE` bytes only so many are read. Raises `UserError` when a file of the
    sample cannot be read, or none has text.
    """
    total = sum(file.stat().st_size for file, _ in files)
    sample = Sample(total)
    read = kept = 0.0  # bytes of the files that the sample was taken from, and of their text
    for file, reading in files:
        size = file.stat().st_size
        if not sample.wants(size):
            sample.seen += size
            continue
        large = size > PIECE
        texts, times = read_opening(file, reading) if large else (read_documents(file, reading), 1)
        for text in texts:
            document = text.encode("utf-8", "replace")
            sample.add(document, times)
            kept += times * len(document)
        read += size
    if not kept:
        raise UserError("corpus.sources: there is no text of your own in its files; add some")
    tokenizer = Tokenizer(build(learn(count_words(sample.blocks), vocab_size)))
    return OwnTextSize(total * kept / read, bytes_per_token(sample.blocks, tokenizer))
