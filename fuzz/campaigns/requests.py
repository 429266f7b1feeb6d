"""Requests to a running server: damaged JSON, heads and chunks, huge lists, clients that leave.

Every answer must be whole HTTP with an object of the API, none may be a 500, and between the cases
a request with a known answer must get the same one.
"""

import contextlib
import ctypes
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.material import environment, nanoeuler
from fuzz.mutation import Mutator, to_json
from nanoeuler.errors import UserError

KEY = "a key of some length"
PATHS = ("/v1/completions", "/v1/chat/completions")
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say fox."}]
FIELDS: dict[str, Any] = {
    "max_tokens": 4, "temperature": 0.8, "top_p": 0.9, "top_k": 5, "seed": 3, "n": 2,
    "stop": ["."], "stream": False, "logprobs": 2, "echo": True, "logit_bias": {},
    "presence_penalty": 0, "best_of": 2, "user": "somebody", "stream_options": None,
}  # fmt: skip
HUGE: tuple[Any, ...] = (
    *([{}] * 200_000, [None] * 200_000, [[None]] * 100_000, "{}" * 500_000, "\n" * 1_000_000),
    *([1] * 300_000, [[1] * 1_000] * 300, ["a"] * 100_000, "é" * 400_000, {"a": [{}] * 100_000}),
)
HEADS = (
    *(
        b"Origin: http://[",
        b"Origin: null",
        b"Origin: https://example.org",
        b"Host: \xff",
        b"Host:",
    ),
    *(b"Content-Length: 5", b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Expect: x"),
    *(b"Transfer-Encoding: gzip", b"X: " + b"y" * 100_000, b"Connection: upgrade\r\nUpgrade: h2c"),
    *(b"Authorization: Bearer " + b"\xe9" * 20, b"Authorization: Basic x", b": x", b"\0: x"),
    *(b"Accept-Encoding: gzip", b"Forwarded: for=1.2.3.4", b"Range: bytes=0-1", b"Cookie: \x1b[1m"),
)
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


class Requests(Campaign):
    """A server of two models, and a client that knows no manners."""

    def __init__(self, material: Path):
        super().__init__(material)
        (keys := material / "keys").write_text(KEY)
        self.log = material / "serve.log"
        models = [str(material / "run" / stage / "model") for stage in ("pretrain", "sft")]
        options = ["--port", "0", "--api-key-file", str(keys), "--device", "reference"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                nanoeuler("serve", *models, *options, "--seconds", "20"),
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        while not (found := re.search(rb"http://127.0.0.1:(\d+)/v1", self.log.read_bytes())):
            if self.process.poll() is not None:
                raise SystemExit(self.log.read_text(errors="replace"))
        self.port = int(found[1])
        listed = json.loads(self.ask(self.head("GET", "/v1/models"))[1])
        self.models = [model["id"] for model in listed["data"]]
        self.expected = self.known()

    def run(self, mutate: Mutator, folder: Path) -> None:
        path = mutate.rng.choice(PATHS)
        request = self.request(mutate, path)
        (folder / "request").write_bytes(request)
        if mutate.chance(0.1):  # a client that leaves, with half a request or a whole one
            cut = mutate.rng.randrange(len(request) + 1)
            status, body = self.ask(request[:cut], leave=True)
        else:
            status, body = self.ask(request)
        said = self.log.read_bytes()
        if self.process.poll() is not None or b"Traceback" in said:
            raise BrokenPromise(f"the server ended or failed: {said[-2_000:]!r}")
        if status >= 500:
            raise BrokenPromise(f"{status}: {body[:300]!r}")
        if self.known() != self.expected:
            raise BrokenPromise("another request was answered otherwise")
        if status != 200:
            self.check_error(status, body)
            raise UserError(f"{status}")

    def request(self, mutate: Mutator, path: str) -> bytes:
        fields: dict[str, Any] = dict(FIELDS) if mutate.chance(0.5) else {"max_tokens": 4}
        fields |= {"model": mutate.rng.choice(self.models)}
        fields |= {"messages": MESSAGES} if "chat" in path else {"prompt": "The fox"}
        fields["stream"] = mutate.chance(0.3)
        if "chat" in path and "logprobs" in fields:
            fields |= {"logprobs": True, "top_logprobs": 2}
        way = mutate.rng.randrange(6)
        body = json.dumps(fields).encode()
        if way == 0:
            name = mutate.rng.choice([*fields, "tools", "functions", "response_format"])
            body = json.dumps(fields | {name: mutate.rng.choice(HUGE)}).encode()
        elif way == 1:
            body = mutate.bytes(body)
        elif way < 5:
            body = to_json(mutate.value(fields)).encode("utf-8", "surrogatepass")
        heads = [mutate.rng.choice(HEADS)] if mutate.chance(0.3) else []
        if mutate.chance(0.1):
            return self.head("POST", path, *heads, b"Transfer-Encoding: chunked") + chunked(
                mutate, body
            )
        head = self.head("POST", path, *heads, b"Content-Length: %d" % len(body))
        return (mutate.bytes(head) if mutate.chance(0.1) else head) + body

    def head(self, method: str, path: str, *lines: bytes) -> bytes:
        first = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        return b"\r\n".join([first + b"Authorization: Bearer " + KEY.encode(), *lines, b"", b""])

    def ask(self, request: bytes, leave: bool = False) -> tuple[int, bytes]:
        """Status and body of the answer; 0 where the connection was closed without one."""
        answer = b""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=8) as connection,
            contextlib.suppress(ConnectionError, TimeoutError),  # a request that is not whole
        ):
            connection.sendall(request)
            while not leave and (got := connection.recv(1 << 20)):
                answer += got
        head, _, body = answer.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
        if length:  # what follows answers what stands behind the request
            body = body[: int(length[1])]
        return int(status[1]) if status else 0, body

    def known(self) -> list[dict[str, Any]]:
        body = {"model": self.models[0], "prompt": "The fox", "max_tokens": 6, "seed": 1, "n": 2}
        content = json.dumps(body).encode()
        length = b"Content-Length: %d" % len(content)
        status, answer = self.ask(self.head("POST", PATHS[0], length) + content)
        if status != 200:
            raise BrokenPromise(f"a good request got {status}: {answer[:300]!r}")
        return json.loads(answer)["choices"]

    def check_error(self, status: int, body: bytes) -> None:
        """A client that has left, or sent half a request, gets none."""
        if status == 0 or not body:
            return
        try:
            error = json.loads(body)["error"]
            right = {"message", "type", "param", "code"} == set(error)
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            raise BrokenPromise(f"{status} is no error of the API: {body[:300]!r}")


def chunked(mutate: Mutator, body: bytes) -> bytes:
    """The body in chunks, some with extensions, and trailers behind them."""
    pieces = [body[at : at + 50] for at in range(0, min(len(body), 5_000), 50)]
    extension = mutate.rng.choice((b"", b";a=b", b";" + b"x" * 10_000, b"\xff"))
    sent = [b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces]
    trailer = mutate.rng.choice((b"", b"X: y\r\n", b"X: y\r\n" * 2_000, b"Content-Length: 3\r\n"))
    return b"".join(sent) + b"0\r\n" + trailer + b"\r\n"
