"""Downloads from a server on this machine whose answers are damaged: heads, lengths, bodies."""

import contextlib
import hashlib
import random
import re
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.campaigns.parquet import Parquet
from fuzz.mutation import Mutator
from nanoeuler.corpus import fineweb
from nanoeuler.corpus.download import SourceFile, download, note_path, partial_path
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.storage.files import write_json

PATIENCE = Patience(attempts=2, first_pause=0.01, silence=0.3)
OTHER = bytes(random.Random(2).randrange(256) for _ in range(40_000))
FILE = bytes(random.Random(1).randrange(256) for _ in range(40_000))
SHA256 = hashlib.sha256(FILE).hexdigest()
TAG = '"1234"'
LINES = (
    *(b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/9.9 200 OK", b"ICY 200", b"HTTP/1.1 2\xb20 OK"),
    *(b"HTTP/1.1 -1 OK", b"HTTP/1.1 999 Odd", b"HTTP/1.1 100 Go on", b"HTTP/1.1 204 None", b""),
    *(b"HTTP/1.1 404 \x1b[2J\x1b[31mGone", b"HTTP/1.1 403 \xe2\x80\xaeoN", b"HTTP/1.1 500 No"),
    *(b"HTTP/1.1 416 No", b"HTTP/1.1 429 Slow", b"HTTP/1.1 503 " + b"x" * 70_000),
    *(b"HTTP/1.1 401 No", b"HTTP/1.1 206 Part", b"HTTP/1.1 302 There", b"HTTP/1.1 308 There"),
    b"HTTP/1.1 304 No",
)
VALUES = {
    b"Content-Length": (
        *(b"abc", b"-1", b"9" * 400, b"5, 5", b"0", b"1e3", b"\xb2", b"", b" 7", b"39999"),
        b"40001",
    ),
    b"Content-Range": (
        *(b"bytes */" + b"9" * 5_000, b"bytes */40000", b"bytes 0-9/*", b"bytes 5-1/3", b"octets"),
        *(b"bytes 0-39999/40000", b"bytes \xb2-3/4", b"bytes 0-" + b"9" * 4_000 + b"/4", b""),
    ),
    b"Transfer-Encoding": (b"chunked", b"gzip, chunked", b"identity", b"\xff"),
    b"Content-Encoding": (b"gzip", b"br", b"zstd", b"deflate, deflate", b"?"),
    b"Retry-After": (
        *(b"0", b"\xb2", b"-1", b"9" * 400, b"1e9", b"nan", b"Wed, 21 Oct 2099 07:28:00 GMT"),
        *(b"Wed, 21 Oct 20999999 07:28:00 GMT", b"0.001", b"\x1b[1m", b"31 Feb"),
    ),
    b"Location": (
        *(b"http://[::1", b"//", b"", b"/", b"file:///etc/hosts", b"http://127.0.0.1:99999/x"),
        *(b"https://127.0.0.1:1/", b"http://127.0.0.1:1/", b"http://\xff/", b"?" + b"a" * 60_000),
        *(b"http://user:secret@localhost:1/", b"http://localhost:\xb2/", b"/\x1b[31mred", b"#"),
        *(b"http://%00/", b"http://" + b"a" * 300 + b"/", b"javascript:x", b"http://\xe2\x80\xae/"),
    ),
    b"ETag": (b'W/"1"', b'"\x1b[1m"', b"", b'"' + b"a" * 60_000 + b'"', b'"5678"', b'"\xff"'),
    b"Last-Modified": (b"yesterday", b"\xff", b"Wed, 21 Oct 2015 07:28:00 GMT"),
    b"X" * 300: (b"y" * 60_000,),
}


@dataclass
class Answer:
    """The `pieces` to send, with a pause of some seconds before each."""

    pieces: list[bytes]
    pause: float = 0.0
    endless: bytes = b""  # sent again and again afterwards
    stall: bool = False  # keep the connection open and silent afterwards


@dataclass
class Server:
    """Answers with the bytes of `file`, each answer damaged by `mutate` at some chance."""

    mutate: Mutator = field(default_factory=lambda: Mutator(random.Random(0)))
    file: bytes = FILE
    damage: float = 0.6
    ranges: bool = True
    changing: str = ""  # how a file that changes behind its first, cut-off answer is told apart

    def __post_init__(self) -> None:
        self.over = threading.Event()  # the case is
        self.lock = threading.Lock()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            connection, _ = self.listening.accept()
            threading.Thread(target=self.serve, args=(connection, self.over), daemon=True).start()

    def serve(self, connection: socket.socket, over: threading.Event) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            request = b""
            while b"\r\n\r\n" not in request:
                if not (got := connection.recv(65_536)):
                    return
                request += got
            with self.lock:
                answer = self.answer(request)
            for piece in answer.pieces:
                if over.wait(answer.pause) if answer.pause else over.is_set():
                    return
                connection.sendall(piece)
            while answer.endless and not over.is_set():
                connection.sendall(answer.endless)
                if answer.pause:
                    over.wait(answer.pause)
            if answer.stall:
                over.wait(5)

    def answer(self, request: bytes) -> Answer:
        line, headers, body = self.honest(request)
        if self.changing:
            return self.changed(line, headers, body)
        if not self.mutate.chance(self.damage):
            return Answer([head(line, headers), body])
        return self.damaged(line, headers, body)

    def honest(self, request: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
        size = len(self.file)
        if request.startswith(b"GET /moved"):
            return b"HTTP/1.1 302 Found", [(b"Location", b"/file"), (b"Content-Length", b"0")], b""
        headers = [(b"ETag", TAG.encode()), (b"Accept-Ranges", b"bytes")]
        wanted = re.search(rb"\r\nRange: bytes=(\d*)-(\d*)\r\n", request)
        changed = b"\r\nIf-Range: " in request and TAG.encode() not in request
        if not wanted or changed or not self.ranges:
            length = (b"Content-Length", b"%d" % size)
            return b"HTTP/1.1 200 OK", [*headers, length], self.file
        first, last = wanted.groups()
        start = int(first) if first else max(0, size - int(last))
        stop = min(size, int(last) + 1) if first and last else size
        if start >= stop:
            headers.append((b"Content-Range", b"bytes */%d" % size))
            return b"HTTP/1.1 416 No", headers, b""
        headers.append((b"Content-Range", b"bytes %d-%d/%d" % (start, stop - 1, size)))
        headers.append((b"Content-Length", b"%d" % (stop - start)))
        return b"HTTP/1.1 206 Part", headers, self.file[start:stop]

    def changed(self, line: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        """The first answer breaks off; those behind are of another file, whatever If-Range says."""
        first, self.file = self.file is FILE, OTHER
        name, _, told = self.changing.partition(" ")
        headers = [header for header in headers if header[0] != b"ETag"]
        if first or told == "always":
            headers.append((name.encode(), b'"1"' if first else b'"2"'))
        elif told == "whole" and line.startswith(b"HTTP/1.1 200"):
            headers.append((name.encode(), b'"2"'))
        return Answer([head(line, headers), body[:20_000] if first else body])

    def damaged(self, line: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        mutate, rng = self.mutate, self.mutate.rng
        way = rng.randrange(8)
        if way == 0:
            line = rng.choice(LINES)
        if way in (1, 2, 3):
            for _ in range(rng.choice((1, 1, 2))):
                name = rng.choice(list(VALUES))
                if mutate.chance(0.7):
                    headers = [header for header in headers if header[0] != name]
                headers.append((name, rng.choice(VALUES[name])))
            if mutate.chance(0.4):
                line = rng.choice(LINES)
        if way == 4:
            headers = rng.choice((headers * 60, headers[:1], [(b"A", b"b")] * 300, []))
        raw = head(line, headers)
        if way == 5:
            raw = mutate.bytes(raw)
            if b"retry" in raw.lower():  # a polite wait is no hang
                raw = head(line, headers)
        if way == 6:
            body = rng.choice(
                (body[: len(body) // 2], b"", body + b"more", mutate.bytes(body), b"5\r\nabc")
            )
        if way == 7:
            return self.slow(raw, headers, line, body)
        return Answer([raw, body], stall=mutate.chance(0.1))

    def slow(
        self, raw: bytes, headers: list[tuple[bytes, bytes]], line: bytes, body: bytes
    ) -> Answer:
        rng = self.mutate.rng
        short = [header for header in headers if header[0] != b"Content-Length"]
        chunked = [*short, (b"Transfer-Encoding", b"chunked")]
        return rng.choice(
            (
                Answer([raw, body[:100]], stall=True),
                Answer([raw[:10]], stall=True),
                Answer([raw[i : i + 1] for i in range(len(raw))], pause=0.1),
                Answer([raw], pause=0.1, endless=b"a"),
                Answer([head(line, short)], endless=b"a" * 65_536),
                Answer([line + b"\r\n"], endless=b"X-More: and more\r\n"),
                Answer([line + b"\r\n"], endless=b"X", pause=0.1),
                Answer([head(line, chunked), b"1\r\na\r\n0\r\n"], endless=b"X-More: and more\r\n"),
                Answer([head(line, chunked)], endless=b"1;" + b"x" * 9_000 + b"\r\na\r\n"),
                Answer([head(line, chunked), b"5;"], endless=b"x" * 65_536),
            )
        )


def head(line: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([line, *(name + b": " + value for name, value in headers), b"", b""])


class Http(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.server = Server()
        files = Parquet(material).files
        self.pages = next(content for kind, content, _ in files if kind == "pages")

    def run(self, mutate: Mutator, folder: Path) -> None:
        server = self.server
        server.mutate, server.damage = mutate, mutate.rng.choice((0.3, 0.6, 1.0))
        server.ranges, server.over = mutate.chance(0.8), threading.Event()
        path = mutate.rng.choice(("file", "file", "moved", "\u00e4/%zz?x=1"))
        url = f"http://127.0.0.1:{server.port}/{path}"
        try:
            if mutate.chance(0.1):
                self.fetch_changing(mutate, folder)
            elif mutate.chance(0.3):
                self.fetch_pages(mutate, folder, url)
            else:
                self.fetch_file(mutate, folder, url)
        finally:
            server.changing = ""
            server.over.set()
            forget_waits(folder)

    def fetch_file(self, mutate: Mutator, folder: Path, url: str) -> None:
        self.server.file = FILE
        target = folder / "kept"
        if mutate.chance(0.3):  # an earlier attempt was cut off
            partial_path(target).write_bytes(FILE[: mutate.rng.choice((1, 20_000, 40_000, 40_001))])
            write_json(note_path(partial_path(target)), {"url": url, "validator": TAG})
        promised = mutate.chance(0.5)
        sha256, size = (SHA256, len(FILE)) if promised else (None, None)
        try:
            download(SourceFile(url, bytes=size, sha256=sha256), target, patience=PATIENCE)
        finally:
            if promised and target.exists() and target.read_bytes() != FILE:
                raise BrokenPromise("a download was kept whose hash is not the one that is given")

    def fetch_changing(self, mutate: Mutator, folder: Path) -> None:
        """A file that changes while it is fetched is kept whole, or not at all."""
        names, told = ("ETag", "Last-Modified", "X-Nothing"), ("always", "whole", "once")
        self.server.file = FILE
        self.server.changing = f"{mutate.rng.choice(names)} {mutate.rng.choice(told)}"
        target = folder / "kept"
        download(SourceFile(f"http://127.0.0.1:{self.server.port}/file"), target, patience=PATIENCE)
        if target.read_bytes() not in (FILE, OTHER):
            raise BrokenPromise("two versions of a file were joined")

    def fetch_pages(self, mutate: Mutator, folder: Path, url: str) -> None:
        self.server.file = self.pages
        filters = Filters(min_score=0, min_language_score=0.0, min_characters=1)
        entry = {"url": url}
        output, record = folder / "pages.txt", folder / "pages.json"
        fineweb.extract({"shards": [entry]}, 0, filters, output, record, PATIENCE)


def forget_waits(folder: Path) -> None:
    """Delete the pauses that this case's server has asked for, so that the next case starts now."""
    for lock in (folder.parent / "temporary").rglob("*"):
        if lock.is_file():
            lock.unlink(missing_ok=True)
