"""Stands in for `python -m nanoeuler` in tests of the workflow.

It only writes the files that a stage promises. Their content depends on the stage's arguments and
configuration, as in a real stage. With NANOEULER_STUB_FAIL=<stage> that stage fails.
"""

import argparse
import os
import sys
from pathlib import Path

FILES = {
    "sample": ["manifest.json"],
    "instructions": ["train.jsonl", "validation.jsonl", "manifest.json"],
    "preferences": ["train.jsonl", "validation.jsonl", "manifest.json"],
    "assemble": ["train/gutenberg.txt", "train/fineweb.txt", "manifest.json"],
    "hold_out": ["groups/held-out/measured/grams.npy"],
    "compare": ["groups/compared-{group}.npz"],
    "choose": ["groups/chosen/chosen.json"],
    "write": ["groups/written-{group}/written.json"],
    "finish": ["train/fineweb-000.txt", "manifest.json"],
    "task": ["items.jsonl", "manifest.json"],
    "tokenize": ["train-gutenberg-000.bin", "manifest.json"],
    "pretrain": ["model/model.safetensors", "model/config.json", "model/tokenizer.json"],
    "dpo": ["model/model.safetensors", "model/config.json", "model/tokenizer.json"],
    "sft": ["model/model.safetensors", "model/config.json", "model/tokenizer.json"],
}


def main() -> int:
    stage = next(argument for argument in sys.argv[1:])
    parser = argparse.ArgumentParser()
    for option in ("--step", "--group"):
        parser.add_argument(option)
    for option in ("--output", "--record", "--metrics", "--items", "--table", "--card", "--log"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--config", type=Path)
    options, _ = parser.parse_known_args()
    with Path(os.environ["NANOEULER_STUB_CALLS"]).open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    if stage == os.environ.get("NANOEULER_STUB_FAIL"):
        print(f"the stub of {stage} fails as it was told", file=sys.stderr)
        return 1
    text = f"{sys.executable} {__file__} {sys.argv[1:]}"
    text += options.config.read_text() if options.config else ""
    stage = options.step or stage
    if stage in FILES:
        files = [options.output / name.format(group=options.group) for name in FILES[stage]]
    else:
        given = (options.record, options.metrics, options.items, options.table, options.card)
        files = [*filter(None, (options.output, *given))]
    beside = {"fineweb": (".index", ".parquet"), "documents": (".index", ".jsonl")}
    files += [options.output.with_suffix(suffix) for suffix in beside.get(stage, ())]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
