"""The index of `nanoeuler index` at size: processor time, memory, disk, and time of a search.

    python benchmarks/token_index.py 64_000_000
    python benchmarks/token_index.py 1_000_000_000 --threads 2 --folder /tmp/index

The tokens are made up from a seed, in a vocabulary of 4,096: half of them by Zipf's law one by one,
half as sentences of 20 that occur again, by the same law; a document has 1,000. Nothing is fetched.
A search is of 100 tokens of the text, of which every tenth is another one. On the disk are 2 bytes
a token for the text, and 4 for the index.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from nanoeuler.serving.traces import MOST_TEXT
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import MANIFEST, ShardWriter, TokenStore, write_manifest
from nanoeuler.tracing.index import Index, build_index, matches

TOKENIZER = Path(__file__).parents[1] / "models" / "stories" / "tokenizer.json"
SENTENCE, SENTENCES, DOCUMENT = 20, 1 << 20, 1000
BLOCK = 10_000 * DOCUMENT
QUERIES, QUERY = 50, 100


def by_zipf(random: np.random.Generator, most: int, size: int | tuple[int, int]) -> np.ndarray:
    """Numbers below `most`, each as often as one by its rank."""
    return (np.float32(most) ** random.random(size, np.float32)).astype(np.int32) - 1


def write_tokens(folder: Path, total: int) -> TokenStore:
    tokenizer, random = Tokenizer.load(TOKENIZER), np.random.default_rng(1)
    ids = np.setdiff1d(np.arange(tokenizer.vocab_size), [*tokenizer.special_ids.values()])
    known = ids[by_zipf(random, len(ids), (SENTENCES, SENTENCE))]
    writer = ShardWriter(folder, "train-made", np.dtype("<u2"))
    for first in range(0, total, BLOCK):
        text = ids[by_zipf(random, len(ids), min(BLOCK, total - first))].reshape(-1, SENTENCE)
        again = random.random(len(text)) < 0.5
        text[again] = known[by_zipf(random, SENTENCES, int(again.sum()))]
        text.reshape(-1)[::DOCUMENT] = tokenizer.end_id
        writer.write(text.reshape(-1))
    write_manifest(
        folder, tokenizer, "made up", {"train": {"made": writer.entry(-(-total // DOCUMENT), 1)}}
    )
    return TokenStore.open(folder / MANIFEST)


def used() -> tuple[float, float]:
    """Seconds of the processor, and of the clock."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tokens", type=int, help="a multiple of 1,000")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "tokens").mkdir()
        store = write_tokens(folder / "tokens", options.tokens)
        processor, clock = used()
        build_index(store.path, TOKENIZER, folder / "index", options.threads)
        processor, clock = used()[0] - processor, used()[1] - clock
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        disk = sum(path.stat().st_size for path in (folder / "index").iterdir()) / 1e9
        print(f"{options.tokens:,} tokens: {processor:.0f} s of the processor, {clock:.0f} s in")
        print(f"{options.threads} threads, {memory:.2f} GB of memory, {disk:.2f} GB of disk")
        parts, text = Index(folder / "index", store).parts, store.tokens("train")
        random = np.random.default_rng(2)
        for told in ("first", "again"):
            seconds = []
            for first in np.random.default_rng(3).integers(0, len(text) - QUERY, QUERIES).tolist():
                query = text[first : first + QUERY]
                query[::10] = random.integers(16, 4096, len(query[::10]))
                began = time.perf_counter()
                matches(parts, query)
                seconds.append(time.perf_counter() - began)
            low, median, high = 1000 * np.quantile(seconds, [0.1, 0.5, 0.9])
            print(f"a search of {QUERY} tokens, {told}: {median:.1f} ms ({low:.1f} to {high:.1f})")
        began = time.perf_counter()
        matches(parts, text[:MOST_TEXT])
        print(f"one of {MOST_TEXT:,} in a row: {1000 * (time.perf_counter() - began):.0f} ms")


if __name__ == "__main__":
    main()
