"""Who may ask: clients with a key, programs on this machine, and pages that were allowed; and for
how long a connection stays open for nothing.

A web page elsewhere can make a visitor's browser send requests to this machine. Such a request
names that page as its origin, or, where the page's name was made to lead here, as its host. It
cannot name a key that it does not know, so where keys are required, neither is looked at.

uvicorn bounds the silence between requests. `Connection` has the other bounds: for a request that
does not arrive, a client that does not read, and the number of connections.
"""

import asyncio
import hmac
import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanoeuler.errors import UserError
from nanoeuler.serving.app import PAGE, answer
from nanoeuler.serving.errors import ApiError

OPEN = {"/health", *(f"/{name}" for name in PAGE)}
"""Paths that need no key: the page asks its user for one."""

MOST_KEY_BYTES = 1 << 20
"""Most bytes of a file of keys."""

ANY = "*"
"""The origins of all pages."""

USUAL_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of an origin."""

ARRIVAL_SECONDS = 20.0
"""Time in which a request must have arrived whole."""

STALL_SECONDS = 20.0
"""Time in which a client must take some of what is sent to it."""

ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class Guard:
    """Lets requests through to `app` that name one of `keys`; with no keys, those to loopback.

    `origins` are pages that may use the server from a browser, beside its own.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[bytes], origins: Sequence[str] = ()):
        self.app, self.keys, self.origins = app, keys, origins
        self.hosts = {origin.partition("://")[2] for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self.refusal(scope["path"], Headers(scope=scope))
            if error is not None:
                await answer(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def refusal(self, path: str, headers: Headers) -> ApiError | None:
        if not self.keys:
            return self.foreign(headers.get("host", ""), headers.get("origin"))
        if path not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            key = given.strip().encode()
            right = [hmac.compare_digest(key, each) for each in self.keys]
            if scheme.lower() != "bearer" or not any(right):
                return ApiError(
                    401,
                    "give one of the server's keys as `Authorization: Bearer KEY`",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return None

    def foreign(self, host: str, origin: str | None) -> ApiError | None:
        """Refuse what may come from a page of another site."""
        if not is_loopback(host_name(host)) and host not in self.hosts:
            return ApiError(
                403,
                "this server has no key, so it answers to this machine's own names only; start it "
                "with --api-key-file, or with --origin and the page's address",
            )
        own = origin in (f"http://{host}", f"https://{host}")
        if origin is not None and not own and origin not in self.origins:
            return ApiError(
                403,
                f"a page of another site ({origin[:100]}) may not use this server; start it with "
                "--api-key-file, or with --origin and the page's address",
            )
        return None


def guarded(app: ASGIApp, keys: Sequence[bytes], origins: Sequence[str]) -> ASGIApp:
    """`app` behind a guard. Browsers are told that pages of `origins` may read its answers."""
    app = Guard(app, keys, origins)
    if not origins:
        return app
    return CORSMiddleware(app, origins, allow_methods=["GET", "POST"], allow_headers=["*"])


def check_origins(origins: Sequence[str], keys: Sequence[bytes]) -> list[str]:
    """The origins as browsers write them. Raises `UserError` for what is none."""
    checked = []
    for origin in origins:
        if origin == ANY and not keys:
            raise UserError(
                f"--origin '{ANY}': any page could use this server; give --api-key-file, too, "
                "or the address of one page"
            )
        found = re.fullmatch(r"((https?)://([^/?#@\s]+))/?", origin.lower())
        if origin != ANY and (found is None or not host_name(found[3])):
            raise UserError(
                f"--origin {origin}: give the page's scheme, host and port, "
                "such as https://chat.example.org"
            )
        checked.append(found[1].removesuffix(USUAL_PORTS[found[2]]) if found else ANY)
    return checked


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Is it a name of this machine that others cannot use?"""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> list[bytes]:
    """The keys in a file, one a line; empty lines and those that begin with # are left out.

    Raises `UserError` when there is none, or one that clients cannot send.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give a file with one key a line"
        ) from error
    if len(content) > MOST_KEY_BYTES:
        raise UserError(f"{path}: larger than {MOST_KEY_BYTES:,} bytes; give a file of keys")
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    keys = [key for line in lines if (key := line.strip()) and not key.startswith(b"#")]
    if not keys:
        raise UserError(f"{path}: has no key; write at least one, one a line")
    make_one = "make one with `openssl rand -hex 32`"
    for number, line in enumerate(lines, 1):
        if line.strip() in keys and not re.fullmatch(rb"[ -~]+", line.strip()):
            raise UserError(
                f"{path}, line {number}: a key has characters other than ASCII's, "
                f"which clients send in different ways; {make_one}"
            )
    if min(map(len, keys)) < 16:
        raise UserError(f"{path}: a key is shorter than 16 characters; {make_one}")
    return keys


class GatheringTransport:
    """A transport that sends what is written in one turn of the event loop at once: a call of the
    system for each would cost more than all else.

    Closed while a request's body arrives, it reads on until that ends or has had its time: a client
    that is still sending would see a reset connection, not the answer.
    """

    def __init__(self, transport: asyncio.Transport, connection: "Connection"):
        self.transport, self.connection = transport, connection
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if not self.written:
            self.connection.loop.call_soon(self.flush)
        self.written.append(data)

    def flush(self) -> None:
        written, self.written = self.written, []
        if written:
            self.transport.write(b"".join(written))

    def close(self) -> None:
        self.flush()
        if self.connection.conn.their_state is h11.SEND_BODY and not self.closed:
            self.transport.write_eof()
            self.transport.resume_reading()
            self.connection.start_arrival()
        else:
            self.transport.close()
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed or self.transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class Connection(H11Protocol):
    """A connection with deadlines."""

    most = 1000
    """Most connections at a time."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.arrival: asyncio.TimerHandle | None = None
        self.stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > self.most:
            self.refuse(ApiError(503, "too many connections; try again", code="busy"))
        else:
            self.start_arrival()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state in ARRIVED:
            self.stop_arrival()
        elif not self.transport.is_closing():
            self.start_arrival()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self.stop_arrival()
        elif self.conn.their_state not in ARRIVED:  # of a request behind the one that is answered
            self.start_arrival()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_stall()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # a transport that closes waits for its client to read
        self.stall = self.stall or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_arrival()
        self.stop_stall()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self.refuse(ApiError(400, "this is no HTTP/1.1 request that can be read"))

    def refuse(self, error: ApiError) -> None:
        """Answer without a request, and close."""
        body, status = json.dumps(error.body()).encode(), HTTPStatus(error.status)
        headers = [
            f"HTTP/1.1 {error.status} {status.phrase}",
            *("Content-Type: application/json", f"Content-Length: {len(body)}"),
            *(["Retry-After: 5"] if status is not HTTPStatus.BAD_REQUEST else []),
            *("Connection: close", "", ""),
        ]
        self.transport.write("\r\n".join(headers).encode() + body)
        self.transport.close()
        self.stall = self.stall or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def start_arrival(self) -> None:
        if self.arrival is None:
            self.arrival = self.loop.call_later(ARRIVAL_SECONDS, self.transport.abort)

    def stop_arrival(self) -> None:
        if self.arrival is not None:
            self.arrival.cancel()
            self.arrival = None

    def stop_stall(self) -> None:
        if self.stall is not None:
            self.stall.cancel()
            self.stall = None
