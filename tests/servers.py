"""A real HTTP server on loopback, like a Gutenberg mirror and Hugging Face, with chosen faults.

    /cache/epub/1342/pg1342.txt, /1/3/4/1342/1342-0.txt, …
        any file below the root folder, with Range, ETag and If-Range
    /datasets/OWNER/NAME/resolve/REVISION/PATH
        302 to a signed address of the file datasets/OWNER/NAME/PATH, under another host name;
        the signature expires (403), and the token must not be sent along

It counts requests and body bytes per path. For runs by hand:

    python -m tests.servers --root /tmp/web --port 8000 --too-many-every 20 \\
        --books ../shared/data/gutenberg --web ../shared/data/web

then HF_ENDPOINT=http://127.0.0.1:8000, and http://127.0.0.1:8000 as the mirror.
"""

import argparse
import contextlib
import gzip
import hashlib
import math
import re
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

BLOCK_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Forbidden</title></head>"
    b"<body><h1>Automated access is not allowed</h1></body></html>\n"
)
EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
RESOLVE = re.compile(r"/datasets/([^/]+)/([^/]+)/resolve/([^/]+)/(.+)")


@dataclass(frozen=True)
class Fault:
    """A fault of a response: an error status, or a body that is a web page.

    A body may also end, stall or change after `after` bytes. `raw` is sent as it is in place of a
    response: one byte every `drip` seconds, and its end `again` until the client hangs up.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    truncate: bool = False
    stall: bool = False
    corrupt: bool = False
    block_page: bool = False
    after: int = 0
    raw: bytes | None = None
    drip: float = 0.0
    again: bytes = b""


@dataclass(frozen=True)
class Seen:
    """A request, and the status of its response."""

    path: str
    headers: dict[str, str]
    status: int
    time: float


class Server:
    """Serves the files below `root` until the context ends. Attributes may change meanwhile."""

    def __init__(self, root: Path, port: int = 0):
        self.root = root
        self.ranges = True
        self.commit: str | None = None  # that the revision `main` stands for
        self.validators = True
        self.heeds_if_range = True
        self.signature_seconds = 3600.0
        self.signature_requests = math.inf  # requests after which a signature expires, too
        self.signed: Counter[str] = Counter()  # requests of each signature
        self.too_many_every = 0  # n: every n-th request is answered with 429
        self.seen: list[Seen] = []
        self.sent: Counter[str] = Counter()
        self.faults: dict[str, list[Fault]] = {}
        self.signatures_from = 0.0  # older ones have expired
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(
            ("127.0.0.1", port), type("BoundHandler", (Handler,), {"site": self})
        )
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()

    def put(self, path: str, content: bytes) -> str:
        """Write a file below the root and return its address."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return f"{self.url}/{path}"

    def fail(self, path: str, *faults: Fault) -> None:
        """Answer the next requests for `path` with these faults, one after another.

        `path` is that of the address; signed ones begin with /signed.
        """
        self.faults.setdefault(path, []).extend(faults)

    def expire_signatures(self) -> None:
        self.signatures_from = time.time()

    def requests(self, path: str | None = None) -> int:
        return sum(path in (None, seen.path) for seen in self.seen)

    @property
    def bytes_served(self) -> int:
        return sum(self.sent.values())


class Handler(BaseHTTPRequestHandler):
    site: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.plain_path = unquote(parts.path)
        with self.site.lock:
            faults = self.site.faults.get(self.plain_path)
            fault = faults.pop(0) if faults else Fault()
            if (
                self.site.too_many_every
                and (len(self.site.seen) + 1) % self.site.too_many_every == 0
            ):
                fault = Fault(status=429, headers={"Retry-After": "1"})
        if fault.raw is not None:
            self.send_raw(fault.raw, fault)
        elif fault.status:
            self.answer(fault.status, fault.headers, b"no\n")
        elif found := RESOLVE.fullmatch(self.plain_path):
            self.redirect(*found.groups())
        elif self.plain_path.startswith("/signed/"):
            signature = parse_qs(parts.query).get("signed", ["0"])[0]
            with self.site.lock:
                self.site.signed[signature] += 1
                worn_out = self.site.signed[signature] > self.site.signature_requests
            oldest = max(self.site.signatures_from, time.time() - self.site.signature_seconds)
            if worn_out or float(signature) < oldest:
                self.answer(403, {}, EXPIRED)
            else:
                self.serve(self.plain_path.removeprefix("/signed"), fault)
        else:
            self.serve(self.plain_path, fault)

    def redirect(self, owner: str, name: str, revision: str, path: str) -> None:
        if not (self.site.root / "datasets" / owner / name / path).is_file():
            self.answer(404, {}, b"Entry not found")
            return
        signed = f"signed/datasets/{owner}/{name}/{path}?signed={time.time()}"
        location = f"http://localhost:{self.site.port}/{signed}"
        self.answer(302, {"Location": location, "X-Repo-Commit": self.site.commit or revision}, b"")

    def serve(self, path: str, fault: Fault) -> None:
        file = self.site.root / path.lstrip("/")
        if fault.block_page:
            self.answer(200, {"Content-Type": "text/html"}, BLOCK_PAGE)
            return
        if ".." in path or not file.is_file():
            self.answer(404, {}, b"not found\n")
            return
        status = file.stat()
        size = status.st_size
        headers = {"Accept-Ranges": "bytes" if self.site.ranges else "none"}
        tag = (
            '"'
            + hashlib.sha256(f"{file} {size} {status.st_mtime_ns}".encode()).hexdigest()[:32]
            + '"'
        )
        if self.site.validators:
            headers["ETag"] = tag
        start, stop = 0, size
        code = 200
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        known = self.headers.get("If-Range", tag) if self.site.heeds_if_range else tag
        if self.site.ranges and wanted and known == tag:
            first, last = wanted.groups()
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            code = 206
            if start >= size or stop <= start:
                self.answer(416, headers | {"Content-Range": f"bytes */{size}"}, b"")
                return
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.note(code)
        self.send_response(code)
        for name, value in (headers | {"Content-Length": str(stop - start)}).items():
            self.send_header(name, value)
        self.end_headers()
        with open(file, "rb") as opened:
            opened.seek(start)
            self.send_body(opened.read(stop - start), fault)

    def send_body(self, body: bytes, fault: Fault) -> None:
        if fault.corrupt:
            body = body[: fault.after] + bytes([body[fault.after] ^ 0x55]) + body[fault.after + 1 :]
        if fault.truncate or fault.stall:
            body = body[: fault.after]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for begin in range(0, len(body), 1 << 16):
                piece = body[begin : begin + (1 << 16)]
                with self.site.lock:  # before they are sent: who has them must find them counted
                    self.site.sent[self.plain_path] += len(piece)
                self.wfile.write(piece)
            self.wfile.flush()
        if fault.stall:
            self.site.stopping.wait(30)
        if fault.truncate or fault.stall:
            self.close_connection = True

    def send_raw(self, raw: bytes, fault: Fault) -> None:
        self.note(0)
        self.close_connection = True
        size = 1 if fault.drip else 1 << 20
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while raw and not self.site.stopping.is_set():
                for begin in range(0, len(raw), size):
                    self.wfile.write(raw[begin : begin + size])
                    self.site.stopping.wait(fault.drip)
                raw = fault.again

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.note(status)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.send_body(body, Fault())

    def note(self, status: int) -> None:
        with self.site.lock:
            self.site.seen.append(Seen(self.plain_path, dict(self.headers), status, time.time()))


def lay_out_books(root: Path, folder: Path) -> None:
    """Put the pg<ID>.txt.gz of `folder` where a mirror has them."""
    for file in sorted(folder.glob("pg*.txt.gz")):
        book = file.name[2:].split(".")[0]
        target = root / "cache" / "epub" / book / f"pg{book}.txt"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.decompress(file.read_bytes()))


def lay_out_data_set(root: Path, name: str, files: dict[str, Path]) -> None:
    """Put `files` (path in the data set: local file) into the data set OWNER/NAME."""
    for path, file in files.items():
        target = root / "datasets" / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Serve a folder as a Gutenberg mirror and as Hugging Face, on 127.0.0.1."
    )
    parser.add_argument(
        "--root", type=Path, required=True, help="folder to serve; made if it is not there"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--books", type=Path, help="folder with pg<ID>.txt.gz: laid out below the root first"
    )
    parser.add_argument(
        "--web",
        type=Path,
        help="folder with *.parquet, "
        "laid out as HuggingFaceFW/fineweb-edu sample/10BT/NNN_00000.parquet",
    )
    parser.add_argument(
        "--too-many-every",
        type=int,
        default=0,
        metavar="N",
        help="answer every Nth request with 429",
    )
    parser.add_argument(
        "--signature-seconds", type=float, default=3600.0, help="how long a signed address lives"
    )
    options = parser.parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    if options.books:
        lay_out_books(options.root, options.books)
    if options.web:
        shards = sorted(options.web.glob("*.parquet"))
        lay_out_data_set(
            options.root,
            "HuggingFaceFW/fineweb-edu",
            {f"sample/10BT/{n:03d}_00000.parquet": file for n, file in enumerate(shards)},
        )
    with Server(options.root, options.port) as server:
        server.too_many_every, server.signature_seconds = (
            options.too_many_every,
            options.signature_seconds,
        )
        print(f"serving {options.root} at {server.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(10)
        print(f"{server.requests()} requests, {server.bytes_served:,} bytes")


if __name__ == "__main__":
    main()
