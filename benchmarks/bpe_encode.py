"""Compare `nanoeuler tokenize` with `tiktoken` and `tokenizers`, from a file of text to one of ids.

    pip install tiktoken==0.14.0
    python benchmarks/bpe_encode.py TEXT [--vocab-size 4096] [--threads 2] [--repeats 5]

TEXT is a file or folder of .txt, .txt.gz or .parquet files (column `text`). A tokenizer is learned
from it. Then each program reads the same corpus file, encodes it from a cold cache with the same
merges and number of threads, and writes uint16 or uint32; all in one process, in alternating order.
Ours also hashes its shards and writes a manifest. `tiktoken` gets all documents in one batch call.
`tokenizers`, which is slow, gets the first 4 MB, and its ratio is one of rates. The ids must be
equal. Takes a minute for 60 MB.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from texts import describe, documents, parse, ratios, summary, texts_of, write_corpus

from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore, token_dtype
from nanoeuler.tokenizer.stages import learn_tokenizer, tokenize_corpus

LITTLE = 4_000_000  # bytes that `tokenizers` encodes
# tiktoken's spelling of GPT-2's pattern
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def main() -> None:
    options = parse(__doc__.splitlines()[0], repeats=5)
    found = documents(options.text)
    megabytes = sum(map(len, found)) / 1e6
    print(
        f"{options.text.name}: {megabytes:.1f} MB, {len(found):,} documents, "
        f"vocabulary {options.vocab_size}"
    )
    print(describe("tiktoken", "tokenizers", "numba", "numpy"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_corpus(folder / "corpus", found)
        little = write_corpus(folder / "little", head(found))
        tokenizer = folder / "tokenizer.json"
        learn_tokenizer(corpus, options.vocab_size, 1 << 62, tokenizer, options.threads)
        del found
        tokenize_corpus(little, tokenizer, folder / "tokens", options.vocab_size)  # compiles
        contenders = {
            "nanoeuler": lambda: tokenize_corpus(
                corpus, tokenizer, folder / "tokens", options.vocab_size, options.threads
            ),
            "tiktoken": Tiktoken(tokenizer, corpus, folder / "tiktoken.bin", options.threads),
            "tokenizers": Tokenizers(tokenizer, little, folder / "tokenizers.bin"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(options.repeats):
            for name in sorted(contenders, reverse=bool(repeat % 2)):
                began = time.perf_counter()
                contenders[name]()
                seconds[name].append(time.perf_counter() - began)
        tokens = TokenStore.open(folder / "tokens/manifest.json").tokens("train")[:]
        ours = tokens[tokens != 0]
        for name in ("tiktoken", "tokenizers"):
            theirs = np.fromfile(folder / f"{name}.bin", token_dtype(options.vocab_size))
            equal = np.array_equal(theirs, ours[: len(theirs)])
            print(f"ids of {name} equal: {equal} ({len(theirs):,})")
        sizes = {
            "nanoeuler": megabytes,
            "tiktoken": megabytes,
            "tokenizers": sum(map(len, contenders["tokenizers"].texts())) / 1e6,
        }
    for name, taken in seconds.items():
        print(summary(name, taken, sizes[name]))
    per_megabyte = {
        name: [second / sizes[name] for second in taken] for name, taken in seconds.items()
    }
    for name in ("tiktoken", "tokenizers"):
        print(ratios(f"/ {name}", per_megabyte["nanoeuler"], per_megabyte[name]))


def head(found: list[bytes]) -> list[bytes]:
    taken: list[bytes] = []
    for document in found:
        if taken and sum(map(len, taken)) + len(document) > LITTLE:
            break
        taken.append(document)
    return taken


class Tiktoken:
    def __init__(self, tokenizer: Path, corpus: Path, output: Path, threads: int):
        import tiktoken

        vocabulary = Tokenizer.load(tokenizer).vocabulary
        self.first = len(vocabulary.specials)
        ranks = {
            token: index - self.first
            for index, token in enumerate(vocabulary.tokens)
            if index >= self.first
        }
        self.encoding = tiktoken.Encoding(
            "benchmark", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
        )
        self.corpus, self.output, self.threads = corpus, output, threads

    def __call__(self) -> None:
        encoded = self.encoding.encode_ordinary_batch(
            list(texts_of(self.corpus)), num_threads=self.threads
        )
        dtype = token_dtype(self.encoding.n_vocab + self.first)
        with open(self.output, "wb") as file:
            for ids in encoded:
                file.write((np.array(ids, np.int32) + self.first).astype(dtype).tobytes())


class Tokenizers:
    def __init__(self, tokenizer: Path, corpus: Path, output: Path):
        self.tokenizer, self.corpus, self.output = tokenizer, corpus, output

    def texts(self) -> list[bytes]:
        return [text.encode() for text in texts_of(self.corpus)]

    def __call__(self) -> None:
        import tokenizers

        peer = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        peer.encode_special_tokens = True
        with open(self.output, "wb") as file:
            for encoding in peer.encode_batch_fast(list(texts_of(self.corpus))):
                file.write(np.array(encoding.ids, token_dtype(peer.get_vocab_size())).tobytes())


if __name__ == "__main__":
    main()
