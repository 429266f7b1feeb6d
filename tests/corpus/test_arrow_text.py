"""Texts are read unchanged from DuckDB and from any other Arrow stream."""

import ctypes

import duckdb
import numpy as np
import pytest

from nanoeuler.corpus.arrow_text import ArrowArray, ArrowSchema, ArrowStream, chunks, read_texts

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
        batch = read_texts(connection, query)
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


def test_a_null_is_refused_and_one_that_the_query_fills_in_is_text():
    with pytest.raises(duckdb.Error, match="nulls where text was expected"):
        read("select unnest(['a', null, 'b']) as text")
    assert read("select coalesce(unnest(['a', null, 'b']), '') as text") == ["a", "", "b"]


def test_another_type_is_refused():
    with pytest.raises(duckdb.Error, match=r"format b'i' where text was expected"):
        read("select 1::integer as text")


def test_what_fails_on_the_way_is_an_error():
    with pytest.raises(duckdb.Error, match="stop here"):
        read(
            "select case when i = 1500000 then error('stop here') "
            "else 'x' end as text from range(2000000) r(i)"
        )


class Producer:
    """An Arrow stream of one column of large strings, written after the specification.

    Its arrays are (texts, offset of the struct, offset of its column, length). `given_back` counts
    the arrays that were released.
    """

    def __init__(self, arrays: list[tuple[list[str], int, int, int]]):
        self.arrays, self.given_back, self.kept = list(arrays), 0, []

    def capsule(self) -> object:
        callbacks = [
            (dict(ArrowStream._fields_)[name], function)
            for name, function in (("get_schema", self.schema), ("get_next", self.next))
        ]
        self.callbacks = [kind(function) for kind, function in callbacks]
        self.stream = ArrowStream(*self.callbacks)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return make(ctypes.addressof(self.stream), b"arrow_array_stream", None)

    def keep(self, thing):
        self.kept.append(thing)
        return thing

    def schema(self, _, schema) -> int:
        column = self.keep(ArrowSchema(format=b"U", name=b"text"))
        schema.contents.format, schema.contents.n_children = b"+s", 1
        schema.contents.children = self.keep(
            (ctypes.POINTER(ArrowSchema) * 1)(ctypes.pointer(column))
        )
        schema.contents.release = self.keep(dict(ArrowSchema._fields_)["release"](lambda _: None))
        return 0

    def next(self, _, array) -> int:
        if not self.arrays:
            array.contents.release = dict(ArrowArray._fields_)["release"]()
            return 0
        texts, outer, inner, length = self.arrays.pop(0)
        raw = self.keep(ctypes.create_string_buffer("".join(texts).encode()))
        ends = np.cumsum([0, *(len(text.encode()) for text in texts)])
        offsets = self.keep((ctypes.c_int64 * len(ends))(*ends.tolist()))
        buffers = self.keep(
            (ctypes.c_void_p * 3)(None, ctypes.addressof(offsets), ctypes.addressof(raw))
            if texts
            else (ctypes.c_void_p * 3)()
        )
        column = self.keep(
            ArrowArray(length=len(texts) - inner, offset=inner, n_buffers=3, buffers=buffers)
        )
        array.contents.length, array.contents.offset, array.contents.n_children = length, outer, 1
        array.contents.children = self.keep(
            (ctypes.POINTER(ArrowArray) * 1)(ctypes.pointer(column))
        )
        array.contents.release = self.keep(dict(ArrowArray._fields_)["release"](self.release))
        return 0

    def release(self, array) -> None:
        self.given_back += 1


def test_slices_and_empty_arrays_of_any_producer_are_read_and_all_given_back():
    producer = Producer(
        [
            (TEXTS, 0, 0, len(TEXTS)),
            ([], 0, 0, 0),
            (TEXTS, 0, 3, 4),
            (TEXTS, 2, 0, 3),
            (TEXTS, 1, 2, 2),
        ]
    )
    read = [
        text[start:stop].tobytes().decode()
        for text, offsets in chunks(producer.capsule())
        for start, stop in zip(offsets[:-1] - offsets[0], offsets[1:] - offsets[0], strict=True)
    ]
    assert read == [*TEXTS, *TEXTS[3:7], *TEXTS[2:5], *TEXTS[3:5]]
    assert producer.given_back == 5
