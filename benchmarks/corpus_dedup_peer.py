"""What people do with the usual libraries, as fast as they allow: the peer of corpus_dedup.py, run by it in an environment of its own.

    python benchmarks/corpus_dedup_peer.py rensa|datasketch folder-with-parquet output-folder

pyarrow reads the pages a row group at a time, two processes filter them, take a SHA-256 each for exact copies, and make a MinHash of 128 permutations over
the sets of five words; the library's LSH at a threshold of 0.8 keeps the first of what is alike; the texts that stay are written one after another.
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
    return list(
        {" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}
    )


def sign(library: str, path: str, group: int) -> list[tuple[str, bytes, object]]:
    table = pyarrow.parquet.ParquetFile(path).read_row_group(
        group, columns=["text", "language", "language_score", "int_score"]
    )
    kept = []
    for text, language, language_score, score in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        if (
            language != "en"
            or language_score < 0.65
            or score < 3
            or not 200 <= len(text) <= 100_000
        ):
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
    copies, documents, offsets, number = set(), 0, [0], 0
    kept: dict[int, object] = {}
    with ProcessPoolExecutor(2) as pool, open(output / "text.txt", "wb") as file:
        for pages in pool.map(sign, [library] * len(groups), *zip(*groups, strict=True)):
            for text, sha256, signature in pages:
                number += 1
                if sha256 in copies:
                    continue
                copies.add(sha256)
                if any(
                    kept[other].jaccard(signature) >= THRESHOLD for other in index.query(signature)
                ):
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
