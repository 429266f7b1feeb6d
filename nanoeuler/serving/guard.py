"""Who may ask: clients with a key, or programs on this machine.

A web page elsewhere can make a visitor's browser send requests to this machine. Such a request
names that page as its origin, or, where the page's name was made to lead here, as its host.
"""

import hmac
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nanoeuler.errors import UserError
from nanoeuler.serving.app import PAGE, answer
from nanoeuler.serving.errors import ApiError

OPEN = {"/health", *(f"/{name}" for name in PAGE)}
"""What needs no key: the page asks its user for one."""


class Guard:
    """Lets requests through to `app` that name one of `keys`; with no keys, those to loopback."""

    def __init__(self, app: ASGIApp, keys: Sequence[bytes]):
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self.refusal(scope["path"], Headers(scope=scope))
            if error is not None:
                await answer(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if not self.keys and not is_loopback(host_name(host)):
            return ApiError(
                403, "this server has no key, so it answers to this machine's own names only"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return ApiError(403, "a page of another site may not use this server")
        if self.keys and path not in OPEN:
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
    """The keys in a file, one a line. Raises `UserError` when there is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give a file with one key a line"
        ) from error
    keys = [key for line in lines if (key := line.strip())]
    if not keys:
        raise UserError(f"{path}: has no key; write at least one, one a line")
    if min(map(len, keys)) < 16:
        raise UserError(
            f"{path}: a key is shorter than 16 characters; make one with `openssl rand -hex 32`"
        )
    return keys
