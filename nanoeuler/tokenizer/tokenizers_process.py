"""The process in which the `tokenizers` library works: `python -m` and the name of this module.

A tokenizer of somebody else's may end the process that reads it (a bad `precompiled_charsmap`, a
replacement that fills the memory), or keep it for hours (a regular expression that explodes). So
the library reads it and encodes by it here, within limits of time and memory, and a kill is an
answer.

In, on standard input: a message of JSON, the arguments of `Encoder`; then for each text a message
of int64 (see `Encoder.encode`) and one of its bytes. Out, for each: "ok" or what is wrong, and the
ids (int32). A message is its length, 8 bytes, and its content.
"""

import contextlib
import itertools
import json
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

BROKEN = re.compile("([\udc80-\udcff]+)")
"""Bytes that are no UTF-8, as Python's surrogateescape writes them."""
LOADING_SECONDS, SECONDS, BYTES_PER_SECOND = 60.0, 2.0, 50_000
"""Seconds of a core: to read a tokenizer, for a text of any length, and for what it is longer. The
library encodes some million bytes a second."""
MEMORY, MEMORY_PER_BYTE = 2 << 30, 2000
"""Bytes of address space beside that of Python and NumPy. The library takes some hundred for a byte
of a text."""


def address_space() -> int:
    """Bytes of address space that this process has taken; with many cores, that is much."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read(100).split()[0]) * resource.getpagesize()
    except OSError:  # a system that knows no limit either
        return 0


def main(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer until `source` ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and with it this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # time is up
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    encoder, memory = None, address_space() + MEMORY
    while (message := receive(source)) is not None:
        ids = np.zeros(0, np.int32)
        try:
            if encoder is None:
                limit(LOADING_SECONDS, memory + 40 * len(message))
                encoder = Encoder(**json.loads(message))
            else:
                content = receive(source) or b""
                size = len(content)
                limit(SECONDS + size / BYTES_PER_SECOND, memory + MEMORY_PER_BYTE * size)
                ids = encoder.encode(content, np.frombuffer(message, np.int64))
            said = b"ok"
        except BaseException as error:  # the library's panics are no `Exception`
            said = str(error)[:1000].encode("utf-8", "replace") or b"no reason given"
        limit(0, memory)
        send(target, said)
        send(target, ids.tobytes())
        target.flush()


def limit(seconds: float, memory: int) -> None:
    """End the process where it takes more `seconds` of a core than that (0: no limit), or more
    bytes of address space."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError, ValueError):  # where systems know no such limit
        soft = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def send(target: IO[bytes], content: bytes) -> None:
    target.write(struct.pack("<Q", len(content)))
    target.write(content)


def receive(source: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the stream."""
    size = source.read(8)
    if len(size) < 8:
        return None
    wanted = struct.unpack("<Q", size)[0]
    content = source.read(wanted)
    return content if len(content) == wanted else None


class Encoder:
    """The library, with one tokenizer."""

    def __init__(self, contents: list[dict[str, Any]], id_of_byte: dict[str, int]):
        """`contents`: tokenizer.json for the start of a text, and maybe for what continues it."""
        from tokenizers import Tokenizer

        made = [Tokenizer.from_str(json.dumps(content)) for content in contents]
        for each in made:
            each.encode_special_tokens = True  # "</s>" in a text is text
        self.of_starts, self.of_rest = made[0], made[-1]
        self.id_of_byte = {int(byte): index for byte, index in id_of_byte.items()}

    def encode(self, content: bytes, given: np.ndarray) -> np.ndarray:
        """The ids of the pieces of `content`. `given`: the number of the first piece that starts a
        text, the id in front of it, and the borders of the pieces."""
        ids: list[int] = []
        framed, frame = given[:2].tolist()
        for number, (start, end) in enumerate(itertools.pairwise(given[2:].tolist())):
            ids += [frame] * (number >= framed)
            ids += self.ids(content[start:end], starts=number >= framed)
        return np.array(ids, np.int32)

    def ids(self, piece: bytes, *, starts: bool) -> Iterator[int]:
        tokenizer = self.of_starts if starts else self.of_rest
        for part in BROKEN.split(piece.decode("utf-8", errors="surrogateescape")):
            if BROKEN.match(part):
                yield from (self.id_of_byte[byte] for byte in part.encode(errors="surrogateescape"))
            elif part:
                yield from tokenizer.encode(part, add_special_tokens=False).ids
            tokenizer = self.of_rest


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
