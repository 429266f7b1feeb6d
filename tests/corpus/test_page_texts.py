"""Texts are read unchanged from DuckDB."""

import duckdb
import pytest

from nanoeuler.corpus.parquet_pages import read_texts

TEXTS = [
    "",
    "plain",
    "naïve café",
    "中文",
    "🙂👍🏽",
    "",
    "a\0b",
    "e\u0301",
    "\U0010ffff",
    "x" * 100_000,
    "\r\n",
    "",
]


def read(query: str) -> list[str]:
    with duckdb.connect() as connection:
        batch = read_texts(connection, f"select encode(text) from ({query})")
    assert batch.sizes.sum() == len(batch.text)
    return [bytes(document).decode() for document in batch.documents()]


def test_texts_of_every_kind_arrive_unchanged(tmp_path):
    with duckdb.connect() as connection:
        connection.execute("create table texts as select unnest(?::varchar[]) as text", [TEXTS])
        connection.execute(f"copy texts to '{tmp_path / 'texts.parquet'}' (format parquet)")
    assert read(f"select text from read_parquet('{tmp_path / 'texts.parquet'}')") == TEXTS


def test_no_rows_are_no_documents():
    assert read("select 'x' as text where false") == []


def test_rows_beyond_one_chunk_are_put_together_in_order():
    rows = 2_300_000  # DuckDB's chunks have a million
    assert read(
        f"select case when i % 3 = 0 then '' else 'é' || i end as text from range({rows}) r(i)"
    ) == [f"é{i}" if i % 3 else "" for i in range(rows)]


def test_what_stands_for_a_null_is_text():
    assert read("select coalesce(unnest(['a', null, 'b']), '') as text") == ["a", "", "b"]


def test_what_fails_on_the_way_is_an_error():
    with pytest.raises(duckdb.Error, match="stop here"):
        read(
            "select case when i = 1500000 then error('stop here') "
            "else 'x' end as text from range(2000000) r(i)"
        )
