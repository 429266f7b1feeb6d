"""Encoding a corpus by several processes, with the same result for any number of them.

Text is cut into chunks where words surely end, so that chunks can be encoded apart; their ids come back in the order of the text.
Memory holds a few chunks for each process, however long the corpus or one of its documents.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.corpus_text import Corpus, CorpusText
from nanoeuler.tokenizer.pretokenizer import safe_cut
from nanoeuler.tokenizer.shards import token_dtype
from nanoeuler.tokenizer.tokenizer import Tokenizer

CHUNK = 1 << 20  # bytes that a process encodes at a time
AHEAD = 4  # chunks under way for each process, so that none waits for the writer


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
        self.frame = np.array([tokenizer.end_id], np.int32)

    def encode(self, chunk: Chunk) -> np.ndarray:
        """(tokens,) in the dtype of the shards."""
        text = self.corpus.texts[chunk.split][chunk.index]
        first, last = np.searchsorted(text.offsets, [chunk.start, chunk.stop])
        document_starts = set(text.offsets[first:last].tolist())
        parts = []
        for start, stop in pairwise(sorted(document_starts | {chunk.start, chunk.stop})):
            if start in document_starts:
                parts.append(self.frame)
            parts.append(self.tokenizer.encode(text.data[start:stop]))
        return np.concatenate(parts).astype(self.dtype)


def encode_in_processes(found: list[Chunk], corpus: Path, tokenizer: Path, processes: int) -> Iterator[np.ndarray]:
    """The ids of each chunk, in the order of `found`. Raises `UserError` when a process is killed."""
    context = multiprocessing.get_context("spawn")  # the same on every platform, and nothing of the parent is shared
    pool = ProcessPoolExecutor(processes, context, initializer=start_process, initargs=(corpus, tokenizer))
    under_way = deque()
    try:
        for chunk in found:
            under_way.append(pool.submit(encode_here, chunk))
            if len(under_way) >= AHEAD * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(f"{corpus}: one of {processes} tokenizing processes was killed, likely for lack of memory; give fewer --threads") from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_process(corpus: Path, tokenizer: Path) -> None:
    """Prepare a process of the pool. Ctrl-C is left to the parent, and a parent that was killed takes its processes along."""
    global process_encoder  # a pool's process has no other place for what outlives a task
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    process_encoder = ChunkEncoder(Corpus(corpus), Tokenizer.load(tokenizer))


def leave_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def encode_here(chunk: Chunk) -> np.ndarray:
    return process_encoder.encode(chunk)
