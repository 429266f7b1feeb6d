"""The peer of corpus_dedup.py: deduplication with the usual libraries, as fast as they allow.

    python benchmarks/corpus_dedup_peer.py rensa|datasketch|datatrove folder output-folder

corpus_dedup.py runs it in an environment of its own. pyarrow reads the pages by row groups. Two
processes filter them, take a SHA-256 for exact copies, and make a MinHash of 128 permutations over
the runs of five words. The library's LSH at a threshold of 0.8 keeps the first of similar pages,
which are written one after another.

datatrove runs as its four steps, in two processes each: signatures with the same words, shingles,
filters and 16 bands of 8 hashes; bands; clusters, of which one page is kept; filter.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow.parquet

WORD = re.compile(r"[^\W_]+")
PERMUTATIONS, BANDS, SHINGLE, THRESHOLD = 128, 16, 5, 0.8


def shingles(text: str) -> list[str]:
    words = WORD.findall(text.lower())
    starts = range(max(1, len(words) - SHINGLE + 1))
    return list({" ".join(words[at : at + SHINGLE]) for at in starts})


def is_wanted(text: str, language: str, language_score: float, score: int) -> bool:
    passes = language == "en" and language_score >= 0.65 and score >= 3
    return passes and 200 <= len(text) <= 100_000


def sign(library: str, path: str, group: int) -> list[tuple[str, bytes, object]]:
    names = ["text", "language", "language_score", "int_score"]
    table = pyarrow.parquet.ParquetFile(path).read_row_group(group, columns=names)
    columns = [column.to_pylist() for column in table.columns]
    kept = []
    for text, language, language_score, score in zip(*columns, strict=True):
        if not is_wanted(text, language, language_score, score):
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


def datatrove_pages(folder: Path, output: Path) -> Iterator[str]:
    """Yield the pages that datatrove keeps."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.text import TextNormConfig
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Words(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return WORD.findall(text)

        sent_tokenize = span_tokenize = None  # abstract there; MinHash asks for words alone

    def passes(document) -> bool:
        named = (document.metadata[name] for name in ("language", "language_score", "int_score"))
        return is_wanted(document.text, *named)

    def read() -> list:
        return [ParquetReader(str(folder), glob_pattern="*.parquet"), LambdaFilter(passes)]

    def execute(tasks: int, *pipeline: object) -> None:
        LocalPipelineExecutor(
            list(pipeline),
            tasks=tasks,
            workers=2,
            start_method="fork",  # whose time is counted
        ).run()

    files = len(list(folder.glob("*.parquet")))
    norm = TextNormConfig(
        remove_punctuation=False, norm_unicode_diacritics=False, norm_numbers=False
    )
    config = minhash.MinhashConfig(SHINGLE, BANDS, PERMUTATIONS // BANDS, norm_config=norm)
    parts = {name: str(output / name) for name in ("signatures", "bands", "removed", "kept")}
    signer = minhash.MinhashDedupSignature(parts["signatures"], config, Words())
    execute(files, *read(), signer)
    execute(BANDS, minhash.MinhashDedupBuckets(parts["signatures"], parts["bands"], config=config))
    execute(1, minhash.MinhashDedupCluster(parts["bands"], parts["removed"], config=config))
    writer = JsonlWriter(parts["kept"], compression=None)
    execute(files, *read(), minhash.MinhashDedupFilter(parts["removed"]), writer)
    for path in sorted(Path(parts["kept"]).glob("*.jsonl")):
        with open(path, encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)


def library_pages(library: str, folder: Path) -> Iterator[str]:
    """Yield the pages that an index of signatures keeps."""
    groups = [
        (str(path), group)
        for path in sorted(folder.glob("*.parquet"))
        for group in range(pyarrow.parquet.ParquetFile(path).num_row_groups)
    ]
    if library == "rensa":
        import rensa

        index = rensa.RMinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS, num_bands=BANDS)
    else:
        import datasketch

        index = datasketch.MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    copies: set[bytes] = set()
    number = 0
    kept: dict[int, object] = {}
    with ProcessPoolExecutor(2) as pool:
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
                yield text


def main(library: str, folder: Path, output: Path) -> None:
    of = datatrove_pages(folder, output) if library == "datatrove" else None
    size, kept = 0, []
    with open(output / "text.txt", "wb") as file:
        for text in of or library_pages(library, folder):
            raw = text.encode()
            size += file.write(raw)
            kept.append(hashlib.sha256(raw).hexdigest())
    (output / "result.json").write_text(json.dumps({"bytes": size, "kept": kept}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
