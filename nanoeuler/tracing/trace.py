"""The longest spans of a text that stand word for word in what a model learned from.

A span is as long as it can be to both sides. Of each it is told how often it stands in the training
text, in held-out text, and in instructions and preferences, in which documents, and at which steps
the model read them.
"""

import time
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.config.paths import Paths
from nanoeuler.corpus.origins import Origins
from nanoeuler.errors import UserError
from nanoeuler.model.files import TOKENIZER, read_description, usable
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.tracing.index import MEMORISED, Index, Part, matches, memorised
from nanoeuler.tracing.lessons import Lesson, lessons
from nanoeuler.tracing.runs import configuration_of

TRAINED, HELD_OUT = "training text", "held-out text"
SPLITS = {"train": TRAINED, "validation": HELD_OUT}
EXCERPT = 100
"""Characters of a record that are shown."""


class Span(NamedTuple):
    """`length` tokens of the text, which begin at each of `firsts`, and where they stand in each
    collection."""

    firsts: list[int]
    length: int
    found: dict[str, list[tuple[Part, np.ndarray]]]
    """Parts, and the tokens of their sources at which the span begins, by collection."""

    @property
    def counts(self) -> dict[str, int]:
        return {
            name: sum(len(places) for _, places in places_in)
            for name, places_in in self.found.items()
        }


class Tracer:
    """A model, what it learned from, and the index of that."""

    def __init__(self, folder: Path):
        """`folder` is that of a model in a run. Raises `UserError` where no index is there."""
        self.folder = usable(folder)
        self.description = read_description(self.folder)[1]
        self.config = configuration_of(folder)
        self.paths = Paths(self.config)
        self.tokenizer = Tokenizer.load(self.folder / TOKENIZER)
        self.index = open_index(self.paths)
        self.index.store.check_tokenizer(self.tokenizer, self.folder / TOKENIZER)
        found = lessons(folder.absolute(), self.config, self.index.store)
        self.learned = {each.records.kind if each.records else None: each for each in found}
        """Lessons by the kind of their records; that of the corpus has none."""

    @cached_property
    def collections(self) -> dict[str, list[Part]]:
        """What is searched, by its name."""
        found: dict[str, list[Part]] = {TRAINED: [], HELD_OUT: []}
        for part in self.index.parts:
            found[SPLITS[part.split]].append(part)
        learned = [lesson.records for lesson in self.learned.values() if lesson.records]
        return found | {records.kind: [records.part] for records in learned}

    @property
    def parts(self) -> list[Part]:
        return [part for parts in self.collections.values() for part in parts]

    @cached_property
    def origins(self) -> Origins:
        return Origins(Path(self.paths.corpus_manifest))

    def encode(self, text: str) -> np.ndarray:
        """The tokens of `text`, int32 (tokens,): as in the middle of a text, if that matches more.

        Raises `UserError` for an empty text.
        """
        alone = self.tokenizer.encode(text)
        if not len(alone):
            raise UserError("the text is empty; give some words of a reply")
        if text[0].isspace():
            return alone
        inside = self.tokenizer.encode(f" {text}", continues=True)
        return max(alone, inside, key=lambda ids: int(self.lengths(ids)[0]))

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """The longest beginning of each ids[i:] that stands somewhere, int64 (tokens,)."""
        return matches(self.parts, ids)

    def spans(self, ids: np.ndarray, least: int) -> list[Span]:
        """The longest spans of `ids` of at least `least` tokens, the rarest first."""
        found: dict[bytes, Span] = {}
        for first, stop in self.whole_words(ids):
            if stop - first < least:
                continue
            tokens = ids[first:stop]
            if same := found.get(tokens.tobytes()):
                same.firsts.append(first)
                continue
            places = {
                name: [(part, part.find(tokens)) for part in parts]
                for name, parts in self.collections.items()
            }
            found[tokens.tobytes()] = Span([first], len(tokens), places)
        return sorted(found.values(), key=lambda each: (sum(each.counts.values()), -each.length))

    def whole_words(self, ids: np.ndarray) -> list[tuple[int, int]]:
        """First token and end of the longest spans that stand somewhere, without cut words.

        A word's tokens are the same wherever it stands; those of a part of it are not.
        """
        texts = [self.tokenizer.token_bytes(int(each)) for each in ids]
        borders = [in_word(a[-1]) and in_word(b[0]) for a, b in pairwise(texts)]
        within = [False, *borders, False]
        spans: list[tuple[int, int]] = []
        for first, length in enumerate(self.lengths(ids).tolist()):
            stop = first + length
            while stop > first and (within[stop] or texts[stop - 1].isspace()):
                stop -= 1
            if not within[first] and stop > max(first, spans[-1][1] if spans else 0):
                spans.append((first, stop))
        return spans

    def trace(self, text: str, least: int, most: int, documents: int) -> dict[str, Any]:
        """All that `nanoeuler trace --json` prints: up to `most` spans of at least `least` tokens,
        with up to `documents` documents of each collection."""
        ids = self.encode(text)
        began = time.perf_counter()
        spans = self.spans(ids, least)
        seconds = time.perf_counter() - began
        by_heart = memorised([part for part in self.parts if part.split == "train"], ids)
        return {
            "model": str(self.folder),
            "text": text,
            "tokens": len(ids),
            "search_seconds": seconds,
            "memorised": {"least_tokens": MEMORISED, "tokens": by_heart}
            | {"share": by_heart / len(ids)},
            "spans_found": len(spans),
            "spans": [
                {
                    "text": self.tokenizer.decode(
                        ids[span.firsts[0] :][: span.length], continues=True
                    ),
                    "first_tokens": span.firsts,
                    "characters": self.characters(text, ids, span),
                    "tokens": span.length,
                    "times": span.counts,
                    "documents": self.documents(span, documents),
                }
                for span in spans[:most]
            ],
        }

    def characters(self, text: str, ids: np.ndarray, span: Span) -> list[tuple[int, int]]:
        """First and end of the characters of `text`, whose tokens are `ids`, at each place of a
        span, without white space before them."""
        content = text.encode()
        sizes = [len(self.tokenizer.token_bytes(id)) for id in ids.tolist()]
        ends = np.cumsum([len(content) - sum(sizes), *sizes])  # less a space in front of the text
        found = []
        for first in span.firsts:
            start, stop = (
                len(content[: max(0, end)].decode(errors="ignore"))
                for end in ends[[first, first + span.length]].tolist()
            )
            found.append((stop - len(text[start:stop].lstrip()), stop))
        return found

    # ---- where a span is from

    def documents(self, span: Span, most: int) -> list[dict[str, Any]]:
        """Up to `most` places of a span in each collection, and when they were read; held-out ones
        last."""
        found: list[dict[str, Any]] = []
        order = [
            TRAINED,
            *(name for name in span.found if name not in (TRAINED, HELD_OUT)),
            HELD_OUT,
        ]
        for collection in order:
            before = len(found)
            for part, places in span.found[collection]:
                for first in np.sort(places)[: before + most - len(found)].tolist():
                    found.append(
                        {"in": collection} | self.document(collection, part, first, span.length)
                    )
        return found

    def document(self, collection: str, part: Part, first: int, length: int) -> dict[str, Any]:
        if collection in SPLITS.values():
            place = self.index.place(part, first)
            origin = self.origins.of(part.split, part.source, place.document)
            told = origin._asdict()
            lesson = self.learned.get(None) if collection == TRAINED else None
            first += self.index.offset(part.source) if collection == TRAINED else 0
        else:
            lesson = self.learned[collection]
            told = self.record(lesson, first)
        readings = lesson.readings(first, length) if lesson else []
        return told | {"readings": [reading._asdict() for reading in readings]}

    def record(self, lesson: Lesson, first: int) -> dict[str, Any]:
        """What is told of a record, given one of its tokens."""
        assert lesson.records is not None
        starts, tokens = lesson.records.starts, lesson.records.part.tokens
        number = int(np.searchsorted(starts, first, side="right")) - 1
        stop = starts[number + 1] if number + 1 < len(starts) else len(tokens)
        ids = [id for id in tokens[starts[number] : stop].tolist() if id != self.tokenizer.end_id]
        text = " ".join(self.tokenizer.decode_reply(ids).split())
        shown = text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…"
        return {"number": number, "title": shown, "licence": lesson.records.licence}


def open_index(paths: Paths) -> Index:
    """The index of a run's tokens. Raises `UserError` where there is none."""
    path = Path(paths.index)
    if not path.exists():
        raise UserError(
            f"{path}: no such file; set `index: true` in the configuration and run it again, or "
            f"run `nanoeuler index --tokens {paths.tokens} --tokenizer {paths.tokenizer} "
            f"--output {path.parent}`"
        )
    return Index(path.parent, TokenStore.open(paths.tokens))


def in_word(byte: int) -> bool:
    """Whether a byte of UTF-8 is of a letter or a digit."""
    return byte >= 0x80 or chr(byte).isalnum()
