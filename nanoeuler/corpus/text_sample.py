"""The beginning of one's own text, from which its size in tokens is estimated before it is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nanoeuler.corpus.own_text import read_documents
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build

SAMPLE_BYTES = 4_000_000


def bytes_per_token(sample: Sequence[bytes], tokenizer: Tokenizer) -> float:
    return sum(map(len, sample)) / sum(len(tokenizer.encode(document)) for document in sample)


class OwnTextSize(NamedTuple):
    bytes: float  # without what is left out of the files
    bytes_per_token: float


def measure(files: Sequence[Path], vocab_size: int) -> OwnTextSize:
    """About the size of the text in `files`, for a tokenizer that is learned from it.

    Raises `UserError` when a file of the sample cannot be read.
    """
    sample: list[bytes] = []
    read = kept = 0  # bytes of the files that the sample was taken from, and of their text
    for file in files:
        documents = [text.encode("utf-8", "replace") for text in read_documents(file)]
        sample.append(b"\n\n".join(documents)[: SAMPLE_BYTES - kept])
        read += file.stat().st_size
        kept += sum(map(len, documents))
        if kept >= SAMPLE_BYTES:
            break
    tokenizer = Tokenizer(build(learn(count_words(sample), vocab_size)))
    total = sum(file.stat().st_size for file in files)
    return OwnTextSize(total * kept / read, bytes_per_token(sample, tokenizer))
