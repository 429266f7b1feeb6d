"""Who may ask: clients with a key, programs on this machine, and pages that were allowed.

A web page elsewhere can make a visitor's browser send requests to this machine. Such a request
names that page as its origin, or, where the page's name was made to lead here, as its host. It
cannot name a key that it does not know, so where keys are required, neither is looked at.
"""

import hmac
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from nanoeuler.errors import UserError
from nanoeuler.serving.app import PAGE, answer
from nanoeuler.serving.errors import ApiError

OPEN = {"/health", *(f"/{name}" for name in PAGE)}
"""Paths that need no key: the page asks its user for one."""

MOST_KEY_BYTES = 1 << 20
"""Most bytes of a file of keys."""

ANY = "*"
"""The origins of all pages."""


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
        found = re.fullmatch(r"(https?://([^/?#@\s]+))/?", origin.lower())
        if origin != ANY and (found is None or not host_name(found[2])):
            raise UserError(
                f"--origin {origin}: give the page's scheme, host and port, "
                "such as https://chat.example.org"
            )
        checked.append(found[1] if found else ANY)
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
