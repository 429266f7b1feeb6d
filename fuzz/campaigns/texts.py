"""Files of one's own text: white space, markers and repetitions, in all encodings, up to 10 MB."""

import bz2
import gzip
import json
import lzma
import time
from pathlib import Path

from fuzz.campaigns.base import LARGEST_FILE, BrokenPromise, Campaign
from fuzz.mutation import Mutator
from nanoeuler.corpus.document_sources import OwnText
from nanoeuler.corpus.gutenberg import clean, join_lines
from nanoeuler.corpus.sources.registry import choose_readers
from nanoeuler.corpus.text_files import read_documents

PIECES = (
    *("\n", " ", "\r", "\r\n", "\t", "  \n", "\f", "\u00a0", "\u2028", "\ufeff", "\0", "\n\n\n"),
    *("*", "*** ", "-----", "_", "```\n", "|", "[", "<!-- -->", "<|endoftext|>\n", "{", "é", "Ã©"),
    *(
        "word ",
        "a b c\n",
        "CHAPTER I\n\n",
        "Produced by ",
        "Transcriber's Note\n\n",
        "日本語。",
        "й",
    ),
    "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n",
    "*** END OF THE PROJECT GUTENBERG EBOOK X ***\n\n",
    "End of the Project Gutenberg Etext of X\n",
    "*** START: FULL LICENSE ***\n",
    "***START**THE SMALL PRINT!**\n",
    "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*\n",
    "The Project Gutenberg eBook of X, by Y\n\n",
    "This eBook is for the use of anyone anywhere at no cost\n\n",
    "Title:   \nAuthor: Y\n\n",
    "Project Gutenberg ",
    "Updated editions will replace the previous one.\n\n",
    "In the morning the fog lay on the river, and the ferryman did not dare to leave\n",
)
ENCODINGS = ("utf-8", "utf-8", "utf-16", "cp1252", "cp1251", "gb18030", "shift-jis", "euc-kr")
SIZES = (0, 10, 1_000, 100_000, 100_000, 1_000_000, 10_000_000)  # bytes
SECONDS, SECONDS_PER_BYTE = 1.0, 1e-6


class Texts(Campaign):
    def run(self, mutate: Mutator, folder: Path) -> None:
        raw = self.content(mutate).encode(mutate.rng.choice(ENCODINGS), "replace")
        if mutate.chance(0.3) and len(raw) < 2_000_000:
            raw = mutate.bytes(raw)
        kind, pack = mutate.rng.choice(
            (
                *((".txt", bytes), (".md", bytes), (".rst", bytes), (".txt", bytes)),
                *(
                    (".txt.gz", gzip.compress),
                    (".txt.bz2", bz2.compress),
                    (".md.xz", lzma.compress),
                ),
            )
        )
        if mutate.chance(0.1):
            lines: list[object] = [
                {"text": raw.decode("utf-8", "replace")},
                mutate.rng.choice(([], {}, "x")),
            ]
            raw, kind, pack = "\n".join(map(json.dumps, lines)).encode(), ".jsonl", bytes
        packed = pack(raw)
        if mutate.chance(0.1):
            packed = mutate.bytes(packed)
        file = folder / f"notes/text{kind}"
        file.parent.mkdir()
        file.write_bytes(packed[:LARGEST_FILE])
        began = time.process_time()
        try:
            (source,) = choose_readers([str(file.parent)])
            assert isinstance(source, OwnText)
            size = sum(len(text) for _, text in source.read())
            if kind == ".txt" and size < 1_000_000:
                for text in read_documents(file):
                    join_lines(clean(b"x" + text.encode("utf-8", "replace")).text)
        finally:
            seconds = time.process_time() - began
            if seconds > SECONDS + 3 * SECONDS_PER_BYTE * len(raw):
                raise BrokenPromise(f"{seconds:.1f} s for {len(raw):,} bytes")

    def content(self, mutate: Mutator) -> str:
        """Runs of a few pieces, one after another or in turns."""
        chosen = mutate.rng.sample(PIECES, mutate.rng.choice((1, 2, 3, 6)))
        size = mutate.rng.choice(SIZES)
        if mutate.chance(0.5):
            unit = "".join(piece * mutate.rng.choice((1, 1, 2, 9)) for piece in chosen)
            return unit * (size // len(unit.encode()) + 1)
        return "".join(piece * (size // len(chosen) // len(piece.encode()) + 1) for piece in chosen)
