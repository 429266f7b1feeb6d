"""Read a file on a web server from any byte on, politely and persistently.

urllib3 carries the requests; who may be asked, when, and how often is decided here. Each host gets
one connection at a time (transport.py), a User-Agent that names this project, and after a failure
a pause that doubles each time, or the one that the server asks for (Retry-After). A read that
breaks off resumes at its last byte, and If-Range makes sure that the file is still the same.
Nothing that a server says is believed before it is checked, and what it sends has a ceiling of size
and a floor of progress (transport.py).

Redirects are followed here, so that the next host is locked too and gets no header that is meant
for the first, and never from https to http. They are remembered: Hugging Face redirects to a signed
address, which after a while answers 403; then the first address is asked again.
"""

import contextlib
import email.utils
import random
import re
import ssl
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    HTTPError,
    IncompleteRead,
    LocationValueError,
    ProxyError,
    ProxySchemeUnknown,
)

from nanoeuler import log
from nanoeuler.corpus.addresses import (
    authorization,
    host_of,
    names_host,
    percent_encoded,
    shown,
    without_login,
)
from nanoeuler.corpus.transport import (
    LONGEST_WAIT,
    SLOWEST,
    TooSlow,
    TooWordy,
    connections,
    locked_host,
    postpone,
    proxy_of,
)
from nanoeuler.errors import UserError
from nanoeuler.version import __version__

USER_AGENT = f"nanoeuler/{__version__} (a language-model pipeline; one connection at a time)"
CHUNK = 1 << 18  # bytes
LARGEST_DOWNLOAD = 10_000_000_000
"""Bytes of a file whose size the sources file does not give. A FineWeb-Edu shard has 2 GB."""
MOST_REDIRECTS = 8
LONGEST_DELAY = 10**9  # seconds, some 30 years: whatever a server asks for, the moment is a date
REFUSALS = (400, 401, 403)
WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)
SIZE = "([0-9]{1,18})"  # bytes; longer numbers are none
LONGEST_QUOTE = 120  # characters of a server's own words in a message
PACKED_NAMES = {
    "gzip": (".gz", ".gzip", ".tgz"),
    "compress": (".z",),
    "bzip2": (".bz2",),
    "zstd": (".zst",),
}
"""Content-Encoding → the endings of files that are kept in it."""


@dataclass(frozen=True)
class Patience:
    """When to give up: after `attempts` in a row that bring nothing.

    The first pause doubles each time. An attempt ends after `silence`, or when as long a time
    brings less than `SLOWEST` bytes/s; it brings something if that many arrive. Times are in
    seconds.
    """

    attempts: int = 6
    first_pause: float = 1.0
    silence: float = 60.0


class NotThere(UserError):
    """The server has no file at this address."""


class TooLarge(UserError):
    """The file has more bytes than are fetched."""


class StartOver(Exception):
    """Only the whole file can be had: it has changed meanwhile, or the server serves no ranges."""


class Trouble(Exception):
    """A failure that is worth another try, after `retry_after` seconds if the server says so."""

    def __init__(self, what: str, retry_after: float | None = None):
        super().__init__(what)
        self.retry_after = retry_after


class RemoteFile:
    """The file at `url`, of `bytes` bytes if the sources file says so, else of at most `largest`.

    After the first read, `size` is its length, `validator` identifies its content, and `commit` is
    that of the repository that it lies in (Hugging Face), as far as the server tells. `pause` is in
    seconds, between two requests to one host. `received` counts the bytes that arrived, including
    those of failed attempts.
    """

    def __init__(
        self,
        url: str,
        pause: float = 0.0,
        patience: Patience | None = None,
        bytes: int | None = None,
        largest: int = LARGEST_DOWNLOAD,
    ):
        self.first_address = url
        self.url = shown(url)  # as it is told and noted
        self.pause = pause
        self.patience = patience or Patience()
        self.bytes = bytes
        self.largest = largest
        self.size: int | None = None
        self.validator: str | None = None
        self.commit: str | None = None
        self.received = 0
        self.address = url  # where redirects led

    def read(self, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Yield the bytes from `start` up to `stop`, or to the end.

        A negative `start` counts from the end. Raises `NotThere`, `TooLarge`, `StartOver`, or
        `UserError` after too many failures.
        """
        position = start
        failures = 0
        while True:
            before = position
            try:
                for chunk in self.attempt(position, stop):
                    yield chunk
                    position += len(chunk)
                return
            except Trouble as trouble:
                progress = position - before >= SLOWEST * self.patience.silence
                failures = 1 if progress else failures + 1
                self.recover(trouble, failures)
            if position != start and not self.validator:
                raise StartOver("the server does not tell whether the file is still the same")

    def recover(self, trouble: Trouble, failures: int) -> None:
        """Arrange the next attempt after `failures` in a row, or give up."""
        if failures >= self.patience.attempts:
            raise UserError(
                f"{self.url}: {trouble}, {failures} times in a row; "
                "check the network and the address, or try again later"
            )
        pause = self.patience.first_pause * 2 ** (failures - 1) * random.uniform(0.75, 1.25)
        if trouble.retry_after is not None:
            pause = trouble.retry_after
            if pause > LONGEST_WAIT:
                again = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + pause))
                raise UserError(
                    f"{self.url}: {trouble} and asks to be left alone until {again}; run again then"
                )
        log.line(
            "retry",
            f"{self.url}: {trouble}; trying again in {log.format_seconds(pause)}",
            attempt=f"{failures + 1}/{self.patience.attempts}",
        )
        postpone(host_of(self.address), pause)

    def attempt(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Ask once and yield what arrives. Raises `Trouble` if that is less than was asked for."""
        headers = {"User-Agent": USER_AGENT, "Connection": "close"}
        if start != 0 or stop is not None:
            last = "" if stop is None else stop - 1
            headers["Range"] = f"bytes={start}" if start < 0 else f"bytes={start}-{last}"
            if self.validator:
                headers["If-Range"] = self.validator
        try:
            with self.open(headers) as response:
                expected = self.read_headers(response, start, stop)
                arrived = 0
                while chunk := response.read1(CHUNK, decode_content=False):
                    arrived += len(chunk)
                    self.received += len(chunk)
                    if expected is None:
                        self.check_size(arrived, "more than ")
                    elif arrived > expected:
                        raise StartOver("the server sends more than it was asked for")
                    yield chunk
                if expected is not None and arrived < expected:
                    raise Trouble(broken_off(arrived, expected))
        except ProxySchemeUnknown as error:
            raise UserError(
                f"{self.url}: the environment's proxy cannot be used ({quoted(error)}); "
                "name another one"
            ) from error
        except LocationValueError as error:
            raise UserError(
                f"{self.url}: not an address that can be asked ({quoted(error)}); "
                "correct it in the sources file"
            ) from error
        except HTTPError as error:
            raise self.trouble(error) from error

    @contextlib.contextmanager
    def open(self, headers: dict[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Follow redirects and yield the response with the file, while its host is locked."""
        for _ in range(MOST_REDIRECTS):
            with locked_host(host_of(self.address), self.pause):
                answer = connections(self.address).request(
                    "GET",
                    without_login(self.address),
                    headers=headers | authorization(self.address),
                    timeout=self.patience.silence,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                )
                with answer:
                    commit = answer.headers.get("X-Repo-Commit", "")
                    if re.fullmatch("[0-9a-f]{40}", commit):
                        self.commit = commit
                    location = answer.get_redirect_location()
                    if not location:
                        self.refused(answer)
                        yield answer
                        return
            self.address = self.follow(location)
        raise UserError(
            f"{self.url}: redirects more than {MOST_REDIRECTS} times; "
            "correct the address in the sources file"
        )

    def follow(self, location: str) -> str:
        """Return the address that a redirect means by `location`."""
        try:
            address = percent_encoded(urljoin(self.address, location))
        except ValueError:  # brackets without an IPv6 address
            address = location
        if not names_host(address):
            raise UserError(
                f"{self.url}: redirects to {quoted(location)}, which is no web address; "
                "correct the address in the sources file"
            )
        if urlsplit(self.address).scheme == "https" != urlsplit(address).scheme:
            raise UserError(
                f"{self.url}: redirects to {quoted(location)}, where anyone on the way can read "
                "and change what is sent; give an address that stays with https"
            )
        return address

    def refused(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Raise the error that the status of `answer` means, unless it brings the file."""
        if answer.status in (200, 206):
            return
        said = f"the server answers {answer.status} ({quoted(answer.reason)})"
        if answer.status == 416:
            total = re.fullmatch(rf"bytes \*/{SIZE}", answer.headers.get("Content-Range", ""))
            self.size = int(total.group(1)) if total else None
            raise StartOver(said)
        if answer.status in WORTH_ANOTHER_TRY:
            raise Trouble(said, retry_after(answer.headers.get("Retry-After")))
        if answer.status in (404, 410):
            raise NotThere(f"{self.url}: {said}; correct the address in the sources file")
        if answer.status in REFUSALS and self.address != self.first_address:  # signed, and expired
            self.address = self.first_address
            raise Trouble(f"{said} at the address it redirected to")
        if answer.status in REFUSALS:
            raise UserError(
                f"{self.url}: {said}; it blocks programs or wants a token; "
                "name another mirror, or set HF_TOKEN for Hugging Face"
            )
        if answer.status == 407:
            said = f"the environment's proxy answers 407 ({quoted(answer.reason)})"
            raise UserError(f"{self.url}: {said}; name it with its login: http://NAME:PASSWORD@…")
        raise UserError(f"{self.url}: {said}; correct the address in the sources file")

    def read_headers(
        self, response: urllib3.BaseHTTPResponse, start: int, stop: int | None
    ) -> int | None:
        """Learn size and validator from the headers.

        Returns how many bytes will follow, or None if that is not said. Raises `StartOver` unless
        `response` holds the bytes from `start` to `stop` of the same file as before.
        """
        coding = response.headers.get("Transfer-Encoding", "chunked")
        if coding.lower() != "chunked":
            raise Trouble(f"the server sends what nobody asked for ({quoted(coding)})")
        self.check_encoding(response.headers.get("Content-Encoding", ""))
        validator = find_validator(response)
        if response.status == 206:
            given = re.fullmatch(
                f"bytes {SIZE}-{SIZE}/{SIZE}", response.headers.get("Content-Range", "").strip()
            )
            if not given:
                raise StartOver("the server serves ranges that it does not describe")
            first, last, size = map(int, given.groups())
            wanted_first = max(0, size + start) if start < 0 else start
            wanted_stop = size if stop is None else min(stop, size)
            if (first, last + 1) != (wanted_first, wanted_stop) or self.size not in (None, size):
                raise StartOver("the server serves another range than it was asked for")
            if self.validator and validator != self.validator:
                raise StartOver(
                    "the file has changed meanwhile"
                    if validator
                    else "the server does not tell whether the file is still the same"
                )
            self.size, self.validator = size, validator
            self.check_size(size)
            return last - first + 1
        if start != 0 or stop is not None:
            raise StartOver("the server sends the whole file")
        self.size, self.validator = response.length_remaining, validator
        if self.size is not None:
            self.check_size(self.size)
        elif (length := response.headers.get("Content-Length")) and not response.chunked:
            raise Trouble(f"the server gives the file a length that is none ({quoted(length)})")
        return self.size

    def check_encoding(self, encoding: str) -> None:
        """Refuse a file that is packed for the way, which nobody asked for.

        Many servers call a file packed that is kept so, and has the name of one: that is the file.
        """
        packed = encoding.lower().removeprefix("x-").strip()
        path = urlsplit(self.address).path.lower()
        if packed not in ("", "identity") and not path.endswith(PACKED_NAMES.get(packed, ())):
            raise UserError(
                f"{self.url}: the server sends it packed ({quoted(encoding)}), which nobody asked "
                "for; name another mirror"
            )

    def check_size(self, size: int, more: str = "") -> None:
        """Refuse a file of `size` bytes, or of `more` than that, if it is not the one expected."""
        if self.bytes is not None and (size > self.bytes if more else size != self.bytes):
            raise UserError(
                f"{self.url}: has {more}{size:,} bytes, where the sources file says "
                f"{self.bytes:,}; it has changed, or something else is sent in its place: "
                "look at the address, and correct the sources file"
            )
        if self.bytes is None and size > self.largest:
            raise TooLarge(
                f"{self.url}: has {more}{size:,} bytes, and no more than {self.largest:,} are "
                "fetched unasked; if that is its size, give it as bytes in the sources file"
            )

    def trouble(self, error: BaseException) -> Trouble:
        """Describe urllib3's `error` by the failure that it wraps."""
        place = "the connection"
        if isinstance(error, ProxyError):
            place = (
                f"the connection to the environment's proxy {shown(proxy_of(self.address) or '')}"
            )
        while isinstance(error, HTTPError) and not isinstance(error, IncompleteRead):
            if (cause := error.__cause__ or error.__context__) is None:
                break
            error = cause
        if isinstance(error, TooSlow | TooWordy):
            return Trouble(str(error))
        if isinstance(error, TimeoutError):
            return Trouble(
                f"the server sent nothing for {log.format_seconds(self.patience.silence)}"
            )
        if isinstance(error, IncompleteRead):
            return Trouble(broken_off(error.partial, error.partial + error.expected))
        if isinstance(error, ssl.SSLCertVerificationError):
            raise UserError(
                f"{self.url}: the server's certificate is not to be trusted "
                f"({error.verify_message})"
            ) from error
        said = quoted(getattr(error, "strerror", None) or error)
        return Trouble(f"{place} failed ({said})")


def quoted(words: object) -> str:
    """Shorten what a server says for a message, without passwords in addresses."""
    text = shown(str(words))
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def broken_off(arrived: int, expected: int) -> str:
    return f"the connection ended after {arrived:,} of {expected:,} bytes"


def find_validator(response: urllib3.BaseHTTPResponse) -> str | None:
    """Return the header that tells versions of the file apart, if it can be sent back as it is."""
    for name, form in (("ETag", r'"[!#-~]{1,200}"'), ("Last-Modified", r"[ -~]{1,60}")):
        if re.fullmatch(form, value := response.headers.get(name, "")):
            return value
    return None


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for, as a number or a date."""
    value = (value or "")[:LONGEST_QUOTE].strip()
    if re.fullmatch("[0-9]+", value):
        return min(int(value), LONGEST_DELAY)
    try:
        date = email.utils.parsedate_tz(value)
        delay = email.utils.mktime_tz(date) - time.time() if date else None
    except (ValueError, OverflowError):  # a date with an impossible part
        return None
    return None if delay is None else min(max(delay, 0), LONGEST_DELAY)
