"""Time and peak memory of `nanoeuler bpe` and `nanoeuler tokenize` as the corpus grows.

    python benchmarks/scaling.py TEXT [--sizes 10 100 1000] [--vocab-size 4096] [--threads 2]

TEXT is a file or folder of .txt, .txt.gz or .parquet files (column `text`). Larger corpora repeat
it, with a few word endings of its own in every document of every copy, so that new words keep
coming as in real text. Each stage runs in its own process. Takes a minute and 2 GB of disk, or
seven minutes and 20 GB with 10000 among the sizes; Linux only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from texts import describe, documents, write_corpus

RUN = """
import sys
from nanoeuler.cli import main
status = main(sys.argv[1:])
lines = open("/proc/self/status")
print(next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM")))
sys.exit(status)
"""  # getrusage would count the parent's memory as the child's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    found = documents(options.text)
    setting = f"vocabulary {options.vocab_size}, {options.threads} threads"
    print(f"{options.text.name}, {setting}; {describe('numba', 'numpy')}")
    print("| MB | stage | seconds | MB/s | peak memory, MB |\n|---|---|---|---|---|")
    config = json.dumps({"tokenizer": {"vocab_size": options.vocab_size, "sample_bytes": 10**15}})
    common = ["--config", config, "--threads", str(options.threads)]
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            corpus = ["--corpus", str(write_corpus(folder / "corpus", grown(found, size * 10**6)))]
            tokenizer = str(folder / "tokenizer.json")
            for stage, arguments in (
                ("bpe", ["--output", tokenizer]),
                ("tokenize", ["--tokenizer", tokenizer, "--output", str(folder / "tokens")]),
            ):
                seconds, peak = measure(stage, *common, *corpus, *arguments)
                rate = size / seconds
                row = f"| {size} | {stage} | {seconds:.2f} | {rate:.0f} | {peak:.0f} |"
                print(row, flush=True)


def measure(*arguments: str) -> tuple[float, float]:
    """Seconds and peak MB of a stage."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began, float(done.stdout)


def grown(found: list[bytes], size: int) -> Iterator[bytes]:
    """Documents of `size` bytes in all, copy after copy."""
    taken = copy = 0
    while True:
        for index, document in enumerate(found):
            if taken >= size:
                return
            if copy:
                document = document.replace(
                    b"e ", b"e%d " % (copy * len(found) + index), max(1, len(document) // 1_000)
                )
            document = document[: size - taken]
            taken += len(document)
            yield document
        copy += 1


if __name__ == "__main__":
    main()
