"""How much text large files hold is estimated by their beginnings."""

import gzip
import json

import duckdb
import numpy as np
import pytest

from nanoeuler.corpus.text_files import USUAL
from nanoeuler.planning import text_sample


@pytest.mark.parametrize(
    "name", ["a.txt", "utf16.txt", "a.txt.gz", "a.jsonl", "list.jsonl", "a.jsonl.gz", "a.parquet"]
)
def test_the_text_of_a_large_file_of_many_documents_is_estimated_by_its_beginning(
    tmp_path, monkeypatch, name
):
    for module in ("nanoeuler.planning.text_sample", "nanoeuler.corpus.text_files"):
        monkeypatch.setattr(f"{module}.PIECE", 300_000)
    random = np.random.default_rng(1)
    texts = [" ".join(map(str, random.integers(10**6, size=70))) for _ in range(2_000)]
    if "jsonl" in name:
        records = [json.dumps({"id": "of this text", "text": text}) for text in texts]
        written = "[" + ",\n".join(records) + "]" if name == "list.jsonl" else "\n".join(records)
    else:
        written = "\n<|endoftext|>\n".join(texts)
    content, file = written.encode("utf-16" if name == "utf16.txt" else "utf-8"), tmp_path / name
    if name == "a.parquet":
        (tmp_path / "rows.csv").write_text("\n".join(["text", *texts]))
        duckdb.execute(f"copy (from '{tmp_path / 'rows.csv'}') to '{file}'")
    else:
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert file.stat().st_size > 300_000
    estimated = text_sample.measure([(file, USUAL)], 512).bytes
    within = 0.35 if name.endswith(".gz") else 0.05  # of a little file, gzip reads much ahead
    assert estimated == pytest.approx(sum(map(len, texts)), rel=within)
