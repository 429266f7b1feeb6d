"""Make web text of any size from a little: variants that repeat each other to a known degree.

    python benchmarks/web_variants.py --pages 'pages/*.parquet' --bytes 1e9 --output /tmp/variants

writes parquet files of about 250 MB of text each in FineWeb-Edu's schema (text, id, url, language,
language_score, int_score). The pages are repeated, each time under another substitution of letters:
the rounds have no words in common, but keep the lengths, spaces and word frequencies of real text.

Every tenth page comes again with words replaced, at a similarity of 0.82 to 0.98; the id of this
copy begins with near-. Every twentieth page has a copy of similarity 0.3 to 0.7 (far-). For every
twentieth page, the sentences of four pages are mixed to a new one (mix-).
"""

import argparse
import glob
import json
import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
from texts import write_parquet

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
SHARD = 250_000_000  # bytes of text
SHINGLE = 5


def read_pages(pattern: str) -> list[bytes]:
    query = "select encode(text) from read_parquet(?) where ltrim(text) <> ''"
    with duckdb.connect() as connection:
        return [text for (text,) in connection.execute(query, [pattern]).fetchall()]


def substitution(number: int) -> bytes:
    """Return a table for `bytes.translate` that permutes lower and upper case letters alike."""
    if not number:
        return bytes(range(256))
    to = bytearray(LETTERS)
    random.Random(number).shuffle(to)
    return bytes.maketrans(LETTERS + LETTERS.upper(), bytes(to) + bytes(to).upper())


def edited(text: bytes, similarity: float, dice: random.Random) -> bytes:
    """Replace m words of `text` at even distances.

    Of its n runs of five words 5·m change, so that the similarity is (n - 5m) / (n + 5m).
    """
    words = text.split(b" ")
    changes = round(len(words) * (1 - similarity) / (1 + similarity) / SHINGLE)
    for change in range(changes):
        words[(2 * change + 1) * len(words) // (2 * changes)] = b"z%d" % dice.randrange(10**9)
    return b" ".join(words)


def variants(pages: list[bytes], wanted: int) -> Iterator[tuple[str, bytes]]:
    """Yield documents and their ids, until there are `wanted` bytes."""
    dice = random.Random(1)
    made = number = 0
    while True:
        table = substitution(number)
        for index, page in enumerate(pages):
            text = page.translate(table)
            documents = [(f"page-{number}-{index}", text)]
            if index % 10 == 3:
                near = edited(text, dice.uniform(0.82, 0.98), dice)
                documents.append((f"near-{number}-{index}", near))
            if index % 20 == 7:
                far = edited(text, dice.uniform(0.3, 0.7), dice)
                documents.append((f"far-{number}-{index}", far))
            if index % 20 == 11:
                others = [other.translate(table) for other in dice.sample(pages, 4)]
                sentences = [sentence for other in others for sentence in other.split(b". ")]
                dice.shuffle(sentences)
                mixed = b". ".join(sentences[: len(sentences) // 4 + 1])
                documents.append((f"mix-{number}-{index}", mixed))
            for document in documents:
                yield document
                made += len(document[1])
                if made >= wanted:
                    return
        number += 1


def write(folder: Path, pages: list[bytes], wanted: int) -> list[Path]:
    """Write parquet files with `wanted` bytes of text to `folder`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = variants(pages, wanted)
    lines = folder / "lines.json"
    paths: list[Path] = []
    more = True
    while more:
        path = folder / f"{len(paths):03d}.parquet"
        size = 0
        with open(lines, "w", encoding="utf-8") as file:
            for name, text in documents:
                file.write(json.dumps({"id": name, "text": text.decode("utf-8", "replace")}) + "\n")
                size += len(text)
                if size >= SHARD:
                    break
            else:
                more = False
        if size:
            write_parquet(lines, path)
            paths.append(path)
        lines.unlink()
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", required=True, help="parquet files with a column text, a glob")
    parser.add_argument("--bytes", required=True, type=float, help="bytes of text to make")
    parser.add_argument("--output", required=True, type=Path, help="folder to write")
    options = parser.parse_args()
    if not glob.glob(options.pages):
        parser.error(f"--pages: no file is called {options.pages}")
    for path in write(options.output, read_pages(options.pages), int(options.bytes)):
        print(path)
