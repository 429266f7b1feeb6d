"""A real server in a process of its own, and a client for it."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import urllib3

from tests.waiting import wait_until


class ServerProcess:
    """`nanoeuler serve` on a free port of loopback; `log` is what it wrote to standard error."""

    def __init__(self, folder: Path, *arguments: object):
        self.log_path = folder / "serve.log"
        command = [sys.executable, "-m", "nanoeuler", "serve", *map(str, arguments), "--port", "0"]
        with open(self.log_path, "wb") as log:
            # of its own group: signals reach it alone
            self.process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
        wait_until(lambda: "the API" in self.log, self.process, self.log_path)
        found = re.search(r"http://[\d.]+:(\d+)/v1", self.log)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.pool = urllib3.PoolManager(maxsize=80, retries=False)

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def get(self, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
        return self.pool.request("GET", self.url + path, headers=headers)

    def post(self, path: str, content: object, **headers: str) -> urllib3.BaseHTTPResponse:
        """Post JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        named = {"Content-Type": "application/json"} | headers
        return self.pool.request("POST", self.url + path, body=body, headers=named)

    def stream(self, path: str, content: dict) -> list[dict]:
        """The events of a stream, which must end with [DONE]."""
        response = self.post(path, content | {"stream": True})
        assert response.status == 200, response.data
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.data.decode().removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[len("data: ") :]) for line in lines[:-1]]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def metric(self, name: str) -> float:
        """A value of /metrics, summed over its labels."""
        lines = self.get("/metrics").data.decode().splitlines()
        found = [line for line in lines if re.match(rf"nanoeuler_{name}(\{{| )", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found)


def raw_request(path: str, content: dict, length: int | None = None) -> bytes:
    """The bytes of a request. `length` is what its header says, if not the truth."""
    body = json.dumps(content).encode()
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def received(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            content += piece
    return content
