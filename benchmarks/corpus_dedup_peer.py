"""The peer of corpus_dedup.py: deduplication with the usual libraries, as fast as they allow.

    python benchmarks/corpus_dedup_peer.py rensa|datasketch folder-with-parquet output-folder

corpus_dedup.py runs it in an environment of its own. pyarrow reads the pages by row groups. Two
processes filter them, take a SHA-256 for exact copies, and make a MinHash of 128 permutations over
the runs of five words. The library's LSH at a threshold of 0.8 keeps the first of similar pages,
which are written one after another.
"""

import hashlib
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow.parquet

WORD = re.compile(r"[^\W_]+")
PERMUTATIONS, SHINGLE, THRESHOLD = 128, 5, 0.8


def shingles(text: str) -> list[str]:
    words = WORD.findall(text.lower())
    starts = range(max(1, len(words) - SHINGLE + 1))
    return list({" ".join(words[at : at + SHINGLE]) for at in starts})


def sign(library: str, path: str, group: int) -> list[tuple[str, bytes, object]]:
    names = ["text", "language", "language_score", "int_score"]
    table = pyarrow.parquet.ParquetFile(path).read_row_group(group, columns=names)
    columns = [column.to_pylist() for column in table.columns]
    kept = []
    for text, language, language_score, score in zip(*columns, strict=True):
        if language != "en" or language_score < 0.65 or score < 3:
            continue
        if not 200 <= len(text) <= 100_000:
            continue
        if library == "rensa":
            import rensa

            signature = rensa.RMinHash(num_perm=PERMUTATIONS, seed=1)
            signature.update(shingles(text))
        else:
            import datasketch

            signature = datasketch.MinHash(num_perm=PERMUTATIONS, seed=1)
            signature.update_batch([shingle.encode() for shingle in shingles(text)])
        kept.append((text, hashlib.sha256(text.encode()).digest(), signature))
    return kept


def main(library: str, folder: Path, output: Path) -> None:
    groups = [
        (str(path), group)
        for path in sorted(folder.glob("*.parquet"))
        for group in range(pyarrow.parquet.ParquetFile(path).num_row_groups)
    ]
    if library == "rensa":
        import rensa

        index = rensa.RMinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS, num_bands=16)
    else:
        import datasketch

        index = datasketch.MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    copies: set[bytes] = set()
    offsets = [0]
    documents = number = 0
    kept: dict[int, object] = {}
    with ProcessPoolExecutor(2) as pool, open(output / "text.txt", "wb") as file:
        for pages in pool.map(sign, [library] * len(groups), *zip(*groups, strict=True)):
            for text, sha256, signature in pages:
                number += 1
                if sha256 in copies:
                    continue
                copies.add(sha256)
                similar = (kept[other].jaccard(signature) for other in index.query(signature))
                if any(similarity >= THRESHOLD for similarity in similar):
                    continue
                index.insert(number, signature)
                kept[number] = signature
                raw = text.encode()
                file.write(raw)
                offsets.append(offsets[-1] + len(raw))
                documents += 1
    (output / "result.json").write_text(json.dumps({"documents": documents, "bytes": offsets[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
