"""How much a server or a compressed file may ask of this machine.

Each limit is far from what an honest source needs. What a user can meet honestly has a way around
it, which the message names: the size of a file in the sources file, or a file that is unpacked.
"""

SLOWEST = 1_000
"""Bytes/s that a server must send on average: a tenth of a modem. A byte a second is a trap."""

MOST_FRAMING = 65_536
"""Bytes around those of a file that is sent in chunks: sizes, extensions, trailers."""

FRAMING_PER_BYTE = 16
"""More of them for each byte of the file. Chunks of one byte have five."""

LARGEST_DOWNLOAD = 10_000_000_000
"""Bytes of a file whose size the sources file does not give. A FineWeb-Edu shard has 2 GB."""

LARGEST_BOOK = 50_000_000
"""Bytes of a book: ten times the Bible."""

LARGEST_FOOTER = 100_000_000
"""Bytes of the description of a parquet file, which must fit in memory. FineWeb-Edu's have 2 MB."""

LARGEST_RECORD = 10_000_000
"""Bytes of a record's JSON: several books. A hostile one takes up to 25 times as much memory."""

MOST_INFLATION = 100
"""Bytes that may be unpacked from a compressed byte: text has about 5, a bomb up to 1,000."""

SMALL_CONTENT = 50_000_000
"""Bytes that any compressed file may unpack to, however few it has."""


def most_unpacked(size: int) -> int:
    """Return how many bytes may be unpacked from a file of `size` bytes."""
    return max(SMALL_CONTENT, MOST_INFLATION * size)
