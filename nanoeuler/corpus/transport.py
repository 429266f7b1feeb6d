"""urllib3's connections to a host: one at a time, on which every answer must make progress.

Each host has a lock of `storage.temporary`, which a process of this machine holds while it talks to
the host. The modification time of the lock's file is the earliest moment at which the host may be
asked again.

The timeout of a socket starts anew with every byte, so that a server that sends one a second holds
a program for weeks. Here, all headers together have the time of one timeout, and the body that
follows must bring `SLOWEST` bytes/s over as long a time. Of a body in chunks, what stands around
its bytes (sizes, extensions, trailers) has a ceiling.
"""

import contextlib
import http.client
import io
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import make_headers, parse_url

from nanoeuler import log
from nanoeuler.storage.temporary import lock_file, lock_path

SLOWEST = 1_000
"""Bytes/s that a server must send on average: a tenth of a modem. A byte a second is a trap."""
MOST_FRAMING = 65_536
"""Bytes around those of a file that is sent in chunks: sizes, extensions, trailers."""
FRAMING_PER_BYTE = 16
"""More of them for each byte of the file. Chunks of one byte have five."""
LONGEST_WAIT = 600.0  # seconds; a moment further ahead means that the clock was changed


@contextlib.contextmanager
def locked_host(host: str, pause: float) -> Iterator[None]:
    """Wait until `host` ("name:port") is free, hold it, and leave it alone for `pause` seconds."""
    file = lock_file(host_file(host), wait=True)
    assert file is not None
    with file:
        time.sleep(min(max(0.0, os.fstat(file.fileno()).st_mtime - time.time()), LONGEST_WAIT))
        try:
            yield
        finally:
            postpone(host, pause)


def postpone(host: str, seconds: float) -> None:
    """Let no process of this machine ask `host` for the next `seconds`."""
    file = host_file(host)
    if not file.exists():
        file.touch()
    now = time.time()
    earliest = max(now + seconds, min(file.stat().st_mtime, now + LONGEST_WAIT))
    os.utime(file, (earliest, earliest))


def host_file(host: str) -> Path:
    return lock_path(f"host-{quote(host, safe='')}")


class TooSlow(TimeoutError):
    """Bytes arrive, but too few of them."""


class TooWordy(OSError):
    """Much more arrives around the bytes of a file than there are of them."""


class WatchedReader(io.RawIOBase):
    """The bytes that arrive on a socket with a timeout, in seconds. Raises `TooSlow`.

    Only the time in which bytes are waited for counts for the body, as its reader may pause.
    """

    def __init__(self, source: io.RawIOBase, timeout: float):
        self.source = source
        self.timeout = timeout
        self.began = time.monotonic()
        self.in_body = False
        self.waited = 0.0
        self.arrived = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        before = time.monotonic()
        count = self.source.readinto(buffer)
        now = time.monotonic()
        told = log.format_seconds(self.timeout)
        if not self.in_body and now - self.began > self.timeout:
            raise TooSlow(f"the server's headers were not complete after {told}")
        if self.in_body and count:
            self.waited += now - before
            self.arrived += count
            if self.waited >= self.timeout:
                if self.arrived < SLOWEST * self.waited:
                    raise TooSlow(f"the server sent {self.arrived:,} bytes in {told}")
                self.waited, self.arrived = 0.0, 0
        return count

    def close(self) -> None:
        self.source.close()
        super().close()


class FramedReader(io.BufferedReader):
    """A response's bytes, of which those of a body in chunks are read between lines.

    Raises `TooWordy` where the lines of the body have more than `MOST_FRAMING` bytes and
    `FRAMING_PER_BYTE` for each byte between them.
    """

    def __init__(self, source: WatchedReader):
        super().__init__(source)
        self.source = source
        self.framing = self.between = 0  # bytes

    def read(self, size: int | None = -1, /) -> bytes:
        return self.count(super().read(size))

    def read1(self, size: int = -1, /) -> bytes:
        return self.count(super().read1(size))

    def count(self, read: bytes) -> bytes:
        self.between += len(read)
        return read

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if self.source.in_body:
            self.framing += len(line)
            if self.framing > MOST_FRAMING + FRAMING_PER_BYTE * self.between:
                raise TooWordy(
                    f"the server sent {self.framing:,} bytes around {self.between:,} of the file"
                )
        return line


class WatchedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        timeout = sock.gettimeout()
        assert timeout is not None  # every request has one
        self.reader = WatchedReader(self.fp.detach(), timeout)
        self.fp = FramedReader(self.reader)

    def begin(self) -> None:
        super().begin()
        self.reader.in_body = True


class Connection(HTTPConnection):
    response_class = WatchedResponse


class SecureConnection(HTTPSConnection):
    response_class = WatchedResponse


class Connections(HTTPConnectionPool):
    ConnectionCls = Connection


class SecureConnections(HTTPSConnectionPool):
    ConnectionCls = SecureConnection


def connections(address: str) -> urllib3.PoolManager:
    """Return the connections to the host of `address`, through the environment's proxy."""
    proxy = proxy_of(address)
    if proxy is None:
        manager = urllib3.PoolManager()
    else:
        login = unquote(parse_url(proxy).auth or "") or None
        headers = make_headers(proxy_basic_auth=login)
        manager = urllib3.ProxyManager(proxy, proxy_headers=headers)
    manager.pool_classes_by_scheme = {"http": Connections, "https": SecureConnections}
    return manager


def proxy_of(address: str) -> str | None:
    """The proxy by which the environment has `address` asked."""
    scheme, host = urlsplit(address)[:2]
    named = getproxies()
    proxy = named.get(scheme) or named.get("all")
    if not proxy or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
