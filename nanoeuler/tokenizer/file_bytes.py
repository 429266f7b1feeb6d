"""Read a file like a sequence of bytes.

Unlike a memory map, bytes that were read do not count as this process's memory afterwards.
"""

import os
from pathlib import Path

from nanoeuler.errors import UserError


class FileBytes:
    """Reads `data[start:stop]` on demand, from any number of threads."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        self.size = os.fstat(self.file.fileno()).st_size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> bytes:
        start, stop, _ = wanted.indices(self.size)
        content = os.pread(self.file.fileno(), stop - start, start) if start < stop else b""
        while len(content) < stop - start:  # one call reads 2 GiB at most
            more = os.pread(self.file.fileno(), stop - start - len(content), start + len(content))
            if not more:
                raise UserError(
                    f"{self.path}: it became shorter while it was read; "
                    "run this again once nothing writes to it"
                )
            content += more
        return content
