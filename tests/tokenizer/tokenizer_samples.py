"""Texts of the tokenizer tests, corpora in the layout of `nanoeuler assemble`, small tokenizers."""

import hashlib
import re
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from hypothesis import strategies as st

from nanoeuler.storage.files import canonical_json, sha256_file, sha256_text, write_json
from nanoeuler.system.compiling import compiled
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.scanner import (
    CLASSES,
    LENT,
    eight_bytes_at,
    mark_words,
    padded,
    read_ranges,
    word_end,
)
from nanoeuler.tokenizer.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

PROSE = """\
It isn't late; they're here, we've 3 or 12 rooms, I'll pay, he'd pay, and I'm sure of it. Don't!
    The naïve café — “Ωmega”, 東京, 12½ and ² — costs €9.99…  (see § 7)\t\tSo\u00a0it\u3000is.

\r\nהשלום नमस्ते สวัสดี 👩🏽\u200d🚀🇫🇷 e\u0301 x₁² ٣٤ Ⅷ 𝔘𝔫𝔦 𞤀 \x00\x1c\x85 \
'S 'T ''s 's's\n\n\n   end   """

CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]
ONE_OF_EACH_CLASS = [
    "a",
    "é",
    "東",
    "𝔘",
    "7",
    "²",
    "𞥐",
    " ",
    "\n",
    "\u00a0",
    "\u3000",
    "\x85",
    "\x1c",
    "!",
    "'",
    "\u0301",
    "😀",
    "\ue000",
    "\x00",
]
texts = st.text(
    st.one_of(
        st.sampled_from([*ONE_OF_EACH_CLASS, *"strevmld'"]),
        st.characters(exclude_categories=["Cs"]),
    )
)


def character_set(ranges: list[range]) -> str:
    """Return the inside of a regular expression's [] for ranges of code points."""
    return "".join(f"\\U{codes[0]:08x}-\\U{codes[-1]:08x}" for codes in ranges)


LETTERS, NUMBERS, SPACES = map(character_set, read_ranges().values())
WORD = re.compile(
    f"'s|'t|'re|'ve|'m|'ll|'d| ?[{LETTERS}]+| ?[{NUMBERS}]+| "
    f"?[^{SPACES}{LETTERS}{NUMBERS}]+|[{SPACES}]+(?![^{SPACES}])|[{SPACES}]+"
)


def regex_words(data: bytes) -> list[bytes]:
    """Split by GPT-2's pattern for `re`, the specification of the scanner.

    A byte that is not UTF-8 becomes a surrogate (PEP 383), and so is of class other.
    """
    return [
        word.encode("utf-8", "surrogateescape")
        for word in WORD.findall(data.decode("utf-8", "surrogateescape"))
    ]


def scanned_words(data: bytes) -> list[bytes]:
    """Return the words that the compiled scanner finds, one after another and all at once.

    The text stands within another one, of which it takes no notice.
    """
    around = b"it'", b"s \n"
    first, stop = len(around[0]), len(around[0]) + len(data)
    text = padded(stop + len(around[1]))
    text[: stop + len(around[1])] = np.frombuffer(data.join(around), np.uint8)
    eight = eight_bytes_at(text)
    ends = np.empty(len(data), np.int64)
    count = scan(text, eight, first, stop, CLASSES, ends)
    borders = [first, *ends[:count].tolist()]
    marks = np.full(len(text), 7, np.uint8)
    mark_words(text, eight, first, stop, CLASSES, np.empty_like(marks), marks)
    assert marks[first:stop].tolist() == np.isin(np.arange(first, stop), borders).tolist()
    return [bytes(text[start:stop]) for start, stop in pairwise(borders)]


@compiled(**LENT)
def scan(data, eight, at, stop, classes, ends):
    count = 0
    while at < stop:
        ends[count] = at = word_end(data, eight, at, stop, classes)
        count += 1
    return count


def tokenizer_of(texts: list[bytes], vocab_size: int) -> Tokenizer:
    return Tokenizer(build(learn(count_words(texts), vocab_size)))


def read_by_peer(tokenizer: Tokenizer, path: Path) -> tokenizers.Tokenizer:
    tokenizer.save(path)
    peer = tokenizers.Tokenizer.from_file(str(path))
    peer.encode_special_tokens = True  # a literal </s> is text, as in our encode
    return peer


def write_corpus(folder: Path, sources: dict[str, dict[str, list[bytes]]]) -> Path:
    """Write {source: {split: documents}} as a corpus. Returns the path of its manifest."""
    manifest: dict[str, Any] = {"version": 1, "name": folder.name, "sources": {}}
    for source, splits in sources.items():
        entries: dict[str, Any] = {"licence": "none"}
        for split, documents in splits.items():
            text, offsets = f"{split}/{source}.txt", f"{split}/{source}.offsets"
            (folder / split).mkdir(parents=True, exist_ok=True)
            (folder / text).write_bytes(b"".join(documents))
            np.array([0, *accumulate(map(len, documents))], "<u8").tofile(folder / offsets)
            size = sum(map(len, documents))
            entries[split] = {
                "documents": len(documents),
                "bytes": size,
                "sha256": sha256_file(folder / text),
                "text": text,
                "offsets": offsets,
            }
        manifest["sources"][source] = entries
    manifest["fingerprint"] = sha256_text(canonical_json(manifest["sources"]))
    write_json(folder / "manifest.json", manifest)
    return folder / "manifest.json"


def prose_documents(count: int, seed: int = 0) -> list[bytes]:
    """Return different documents of 3 to 60 words of the prose, the same for the same seed."""
    words = PROSE.split()
    documents = []
    for index in range(count):
        digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
        documents.append(
            " ".join(
                [
                    str(index),
                    *(words[byte % len(words)] for byte in digest[: 1 + digest[0] % 31] * 2),
                ]
            ).encode()
        )
    return documents


TIKTOKEN_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)


def read_by_tiktoken(tokenizer: Tokenizer) -> tiktoken.Encoding:
    """Convert a learned tokenizer for `tiktoken`, whose ranks are ids without the special ones."""
    tokens = tokenizer.vocabulary.tokens[len(tokenizer.special_ids) :]
    return tiktoken.Encoding(
        "ours",
        pat_str=TIKTOKEN_PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={},
    )


def encode_each(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of many short texts, encoded as pieces of one."""
    pieces = [text.encode() for text in texts]
    ids = tokenizer.encoder.encode(
        b"".join(pieces), np.array([0, *accumulate(map(len, pieces))]), frame=-1, framed=0
    )
    starts, listed = np.flatnonzero(ids == -1).tolist(), ids.tolist()
    return [listed[start + 1 : stop] for start, stop in pairwise([*starts, len(listed)])]
