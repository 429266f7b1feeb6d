"""Compare `nanoeuler bpe` with the `tokenizers` library, from a file of text to the merges.

    python benchmarks/bpe_learn.py TEXT [--vocab-size 4096] [--threads 2] [--repeats 3]

TEXT is a file or folder of .txt, .txt.gz or .parquet files (column `text`). Both read the same
corpus file by documents, with the same number of threads, in one process, in alternating order. The
merges must be equal; only for a text of more than a million distinct words, which are not all
counted exactly, the last merges of a large vocabulary may differ. The number of equal merges is
printed. Takes half a minute for 60 MB.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from texts import describe, documents, parse, ratios, summary, texts_of, write_corpus

from nanoeuler.tokenizer.stages import learn_tokenizer
from nanoeuler.tokenizer.vocabulary import BYTE_OF_CHARACTER, SPECIALS


def main() -> None:
    options = parse(__doc__.splitlines()[0], repeats=3)
    found = documents(options.text)
    megabytes = sum(map(len, found)) / 1e6
    print(
        f"{options.text.name}: {megabytes:.1f} MB, {len(found):,} documents, "
        f"vocabulary {options.vocab_size}; {describe('tokenizers', 'numba', 'numpy')}"
    )
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "corpus", found)
        little = write_corpus(Path(folder) / "little", found[:3])
        learn_tokenizer(little, 300, 10**6, Path(folder) / "first.json")  # compiles
        del found
        seconds: dict[str, list[float]] = {"nanoeuler": [], "tokenizers": []}
        merges = {}
        for repeat in range(options.repeats):
            for name in sorted(seconds, reverse=bool(repeat % 2)):
                began = time.perf_counter()
                learned = (learn_ours if name == "nanoeuler" else learn_theirs)(corpus, options)
                seconds[name].append(time.perf_counter() - began)
                merges[name] = learned()
    for name, taken in seconds.items():
        print(summary(name, taken, megabytes))
    print(ratios("ratio", seconds["nanoeuler"], seconds["tokenizers"]))
    same = sum(ours == theirs for ours, theirs in zip(*merges.values(), strict=False))
    print(f"merges equal: {same} of {len(merges['tokenizers'])}")


def learn_ours(corpus: Path, options: argparse.Namespace):
    tokenizer = learn_tokenizer(
        corpus, options.vocab_size, 1 << 62, corpus.with_name("tokenizer.json"), options.threads
    )
    return lambda: [(left, right) for left, right, _ in tokenizer.vocabulary.merges]


def learn_theirs(corpus: Path, options: argparse.Namespace):
    import tokenizers

    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(SPECIALS),
        initial_alphabet=list(BYTE_OF_CHARACTER),
    )
    peer.train_from_iterator(texts_of(corpus), trainer)

    def merges() -> list[tuple[int, int]]:
        model = json.loads(peer.to_str())["model"]
        return [(model["vocab"][left], model["vocab"][right]) for left, right in model["merges"]]

    return merges


if __name__ == "__main__":
    main()
