"""Read a column of text from DuckDB without making a Python object of each value.

DuckDB hands over C structures of the Arrow C stream and data interfaces, which ctypes can read: the
bytes of the texts in one buffer, and their offsets in another. No Arrow library is needed.

    https://arrow.apache.org/docs/format/CStreamInterface.html
    https://arrow.apache.org/docs/format/CDataInterface.html
"""

import contextlib
import ctypes
from collections.abc import Generator, Iterator

import duckdb
import numpy as np

from nanoeuler.corpus.batches import Batch


class ArrowSchema(ctypes.Structure):
    pass


class ArrowArray(ctypes.Structure):
    pass


class ArrowStream(ctypes.Structure):
    _fields_ = (
        (
            "get_schema",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ArrowSchema)),
        ),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ArrowArray))),
        ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


ArrowSchema._fields_ = (
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowSchema))),
    ("private_data", ctypes.c_void_p),
)
ArrowArray._fields_ = (
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowArray))),
    ("private_data", ctypes.c_void_p),
)
pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of_capsule.restype = ctypes.c_void_p
pointer_of_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)


def read_texts(connection: duckdb.DuckDBPyConnection, query: str) -> Batch:
    """Return the result of `query`, one column of texts without nulls, as a batch.

    Raises `duckdb.Error` when the query fails.
    """
    connection.execute("set arrow_large_buffer_size = true")  # offsets always have 64 bits
    capsule = connection.sql(query).__arrow_c_stream__()
    parts = list(chunks(capsule))
    texts = [np.zeros(0, np.uint8), *(text for text, _ in parts)]
    sizes = [np.zeros(1, np.int64), *(np.diff(offsets) for _, offsets in parts)]
    text = texts[1] if len(texts) == 2 else np.concatenate(texts)
    return Batch.between(text, np.cumsum(np.concatenate(sizes)))


def chunks(capsule: object) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the bytes and offsets of each array of a stream, copied out of it."""
    address = pointer_of_capsule(capsule, b"arrow_array_stream")
    stream = ArrowStream.from_address(address)
    with contextlib.closing(released(stream, address)) as arrays:
        for array in arrays:
            column = array.children[0].contents
            if not array.length:  # an empty array may lack buffers
                continue
            if column.null_count > 0:
                raise duckdb.Error("nulls where text was expected")
            first = array.offset + column.offset  # not 0 for a slice of an array
            where = ctypes.cast(column.buffers[1], ctypes.POINTER(ctypes.c_int64))
            whole = np.ctypeslib.as_array(where, (first + array.length + 1,))
            offsets = whole[first:].astype(np.int64)
            size = int(offsets[-1] - offsets[0])
            text = np.empty(size, np.uint8)
            if size:
                ctypes.memmove(text.ctypes.data, column.buffers[2] + int(offsets[0]), size)
            yield text, offsets


def released(stream: ArrowStream, address: int) -> Generator[ArrowArray]:
    """Yield the arrays of a stream; each is released when the next one is asked for."""
    schema = ArrowSchema()
    check(stream, address, stream.get_schema(address, ctypes.byref(schema)))
    kind = schema.children[0].contents.format
    schema.release(ctypes.byref(schema))
    if kind != b"U":
        raise duckdb.Error(f"a column of Arrow's format {kind!r} where text was expected")
    while True:
        array = ArrowArray()
        check(stream, address, stream.get_next(address, ctypes.byref(array)))
        if not array.release:
            return
        try:
            yield array
        finally:
            array.release(ctypes.byref(array))


def check(stream: ArrowStream, address: int, code: int) -> None:
    if code:
        raise duckdb.Error(
            (stream.get_last_error(address) or b"unknown").decode("utf-8", "replace")
        )
