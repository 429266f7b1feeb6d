"""Compare the pages of a parquet column chunk with the checksums in their headers.

A chunk is a row of pages, each with a header in Thrift's compact protocol. Of its fields, number 3
is the size of the page that follows and number 4 its CRC-32, which not every writer gives.

    https://github.com/apache/parquet-format (README, "Checksumming")
    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

import zlib

PAGE_SIZE, CRC = 3, 4  # fields of a page header
DEEPEST = 8  # structs within structs; page headers have 3


class BadPage(Exception):
    """A page, or the header of one, is damaged."""


def check_pages(chunk: bytes) -> bool:
    """Return whether all pages of a column chunk have a checksum.

    Raises `BadPage` when one differs, or when the pages do not fill the chunk.
    """
    position = 0
    all_have_one = True
    while position < len(chunk):
        try:
            fields, position = read_struct(chunk, position)
        except IndexError as error:
            raise BadPage("a page's header is cut off") from error
        end = position + fields.get(PAGE_SIZE, -1)
        if not position <= end <= len(chunk):
            raise BadPage("a page does not end within its column")
        if CRC not in fields:
            all_have_one = False
        elif zlib.crc32(chunk[position:end]) != fields[CRC] & 0xFFFFFFFF:
            raise BadPage("a page differs from its checksum")
        position = end
    return all_have_one


def read_struct(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, int], int]:
    """Return the integers of a struct by the number of their field, and where the struct ends."""
    if depth > DEEPEST:
        raise BadPage("a page's header is no header")
    fields: dict[int, int] = {}
    number = 0
    while kind := data[position] & 15:
        step = data[position] >> 4
        position += 1
        if step:
            number += step
        else:
            number, position = read_integer(data, position)
        if kind in (4, 5, 6):
            fields[number], position = read_integer(data, position)
        else:
            position = skip(data, position, kind, depth)
    return fields, position + 1


def skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return where the value of type `kind` ends that is no integer."""
    if kind in (1, 2):  # true and false, which need no byte
        return position
    if kind in (3, 7):  # byte and double
        return position + (1 if kind == 3 else 8)
    if kind == 8:  # text
        size, position = read_varint(data, position)
        return position + size
    if kind == 12:
        return read_struct(data, position, depth + 1)[1]
    raise BadPage("a page's header is no header")  # lists and maps


def read_integer(data: bytes, position: int) -> tuple[int, int]:
    value, position = read_varint(data, position)
    return value >> 1 ^ -(value & 1), position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise BadPage("a page's header is no header")
