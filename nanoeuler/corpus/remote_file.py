"""Read a file on a web server from any byte on, politely and persistently.

urllib3 carries the requests; who may be asked, when, and how often is decided here. Each host gets
one connection at a time (host_locks.py), a User-Agent that names this project, and after a failure
a pause that doubles each time, or the one that the server asks for (Retry-After). A read that
breaks off resumes at its last byte, and If-Range makes sure that the file is still the same.

Redirects are followed here, so that the next host is locked too and gets no header that is meant
for the first. They are remembered: Hugging Face redirects to a signed address, which after a while
answers 403; then the first address is asked again.
"""

import contextlib
import random
import re
import ssl
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, InvalidHeader, LocationValueError
from urllib3.util import Retry, make_headers, parse_url

import nanoeuler
from nanoeuler import log
from nanoeuler.corpus.addresses import authorization, percent_encoded
from nanoeuler.corpus.host_locks import LONGEST_WAIT, locked_host, postpone
from nanoeuler.errors import UserError

USER_AGENT = (
    f"nanoeuler/{nanoeuler.__version__} (a language-model pipeline; one connection at a time)"
)
CHUNK = 1 << 18  # bytes
MOST_REDIRECTS = 8
LONGEST_DELAY = 10**9  # seconds, some 30 years: whatever a server asks for, the moment is a date
REFUSALS = (400, 401, 403)
WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Patience:
    """When to give up: after `attempts` in a row that bring nothing.

    The first pause doubles each time; an attempt ends after `silence`. Both are in seconds.
    """

    attempts: int = 6
    first_pause: float = 1.0
    silence: float = 60.0


class NotThere(UserError):
    """The server has no file at this address."""


class StartOver(Exception):
    """Only the whole file can be had: it has changed meanwhile, or the server serves no ranges."""


class Trouble(Exception):
    """A failure that is worth another try, after `retry_after` seconds if the server says so."""

    def __init__(self, what: str, retry_after: float | None = None):
        super().__init__(what)
        self.retry_after = retry_after


class RemoteFile:
    """The file at `url`.

    After the first read, `size` is its length and `validator` identifies its content, as far as the
    server tells. `pause` is in seconds, between two requests to one host. `received` counts the
    bytes that arrived, including those of failed attempts.
    """

    def __init__(self, url: str, pause: float = 0.0, patience: Patience | None = None):
        self.url = url
        self.pause = pause
        self.patience = patience or Patience()
        self.size: int | None = None
        self.validator: str | None = None
        self.received = 0
        self.address = url  # where redirects led

    def read(self, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Yield the bytes from `start` up to `stop`, or to the end.

        A negative `start` counts from the end. Raises `NotThere`, `StartOver`, or `UserError` after
        too many failures.
        """
        position = start
        failures = 0
        while True:
            try:
                for chunk in self.attempt(position, stop):
                    yield chunk
                    position += len(chunk)
                    failures = 0
                return
            except Trouble as trouble:
                failures += 1
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
        postpone(urlsplit(self.address).netloc, pause)

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
                self.read_headers(response, start, stop)
                while chunk := response.read1(CHUNK, decode_content=False):
                    self.received += len(chunk)
                    yield chunk
        except LocationValueError as error:
            raise UserError(
                f"{self.url}: not an address that can be asked ({error}); "
                "correct it in the sources file"
            ) from error
        except HTTPError as error:
            raise self.trouble(error) from error

    @contextlib.contextmanager
    def open(self, headers: dict[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Follow redirects and yield the response with the file, while its host is locked."""
        for _ in range(MOST_REDIRECTS):
            with locked_host(urlsplit(self.address).netloc, self.pause):
                answer = connections(self.address).request(
                    "GET",
                    self.address,
                    headers=headers | authorization(self.address),
                    timeout=self.patience.silence,
                    retries=False,
                    preload_content=False,
                )
                with answer:
                    location = answer.get_redirect_location()
                    if not location:
                        self.refused(answer)
                        yield answer
                        return
            self.address = percent_encoded(urljoin(self.address, location))
            if urlsplit(self.address).scheme not in ("http", "https"):
                raise UserError(
                    f"{self.url}: redirects to {self.address}, which is no web address; "
                    "correct the address in the sources file"
                )
        raise UserError(
            f"{self.url}: redirects more than {MOST_REDIRECTS} times; "
            "correct the address in the sources file"
        )

    def refused(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Raise the error that the status of `answer` means, unless it brings the file."""
        if answer.status < 300:
            return
        said = f"the server answers {answer.status} ({answer.reason})"
        if answer.status == 416:
            total = re.fullmatch(r"bytes \*/(\d+)", answer.headers.get("Content-Range", ""))
            self.size = int(total.group(1)) if total else None
            raise StartOver(said)
        if answer.status in WORTH_ANOTHER_TRY:
            raise Trouble(said, retry_after(answer.headers.get("Retry-After")))
        if answer.status in (404, 410):
            raise NotThere(f"{self.url}: {said}; correct the address in the sources file")
        if answer.status in REFUSALS and self.address != self.url:  # a signed address expires
            self.address = self.url
            raise Trouble(f"{said} at the address it redirected to")
        if answer.status in REFUSALS:
            raise UserError(
                f"{self.url}: {said}; it blocks programs or wants a token; "
                "name another mirror, or set HF_TOKEN for Hugging Face"
            )
        raise UserError(f"{self.url}: {said}; correct the address in the sources file")

    def read_headers(
        self, response: urllib3.BaseHTTPResponse, start: int, stop: int | None
    ) -> None:
        """Learn size and validator from the headers.

        Raises `StartOver` unless `response` holds the bytes from `start` to `stop`.
        """
        if response.status == 206:
            given = re.fullmatch(
                r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", "").strip()
            )
            if not given:
                raise StartOver("the server serves ranges that it does not describe")
            first, last, size = map(int, given.groups())
            wanted_first = max(0, size + start) if start < 0 else start
            wanted_stop = size if stop is None else min(stop, size)
            if (first, last + 1) != (wanted_first, wanted_stop) or self.size not in (None, size):
                raise StartOver("the server serves another range than it was asked for")
            self.size = size
        elif start != 0 or stop is not None:
            raise StartOver("the server sends the whole file")
        else:
            self.size = response.length_remaining
        tag = response.headers.get("ETag", "")
        self.validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")

    def trouble(self, error: BaseException) -> Trouble:
        """Describe urllib3's `error` by the failure that it wraps."""
        while isinstance(error, HTTPError) and not isinstance(error, IncompleteRead):
            if (cause := error.__cause__ or error.__context__) is None:
                break
            error = cause
        if isinstance(error, TimeoutError):
            return Trouble(
                f"the server sent nothing for {log.format_seconds(self.patience.silence)}"
            )
        if isinstance(error, IncompleteRead):
            total = error.partial + error.expected
            return Trouble(f"the connection ended after {error.partial:,} of {total:,} bytes")
        if isinstance(error, ssl.SSLCertVerificationError):
            raise UserError(
                f"{self.url}: the server's certificate is not to be trusted "
                f"({error.verify_message})"
            ) from error
        return Trouble(f"the connection failed ({getattr(error, 'strerror', None) or error})")


def connections(address: str) -> urllib3.PoolManager:
    """Return urllib3's connections to the host of `address`, through the environment's proxy."""
    scheme, host = urlsplit(address)[:2]
    proxy = getproxies().get(scheme)
    if not proxy or proxy_bypass(host):
        return urllib3.PoolManager()
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    login = unquote(parse_url(proxy).auth or "") or None
    return urllib3.ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=login))


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for, as a number or a date."""
    try:
        return Retry(retry_after_max=LONGEST_DELAY).parse_retry_after(value) if value else None
    except (InvalidHeader, ValueError):  # no date, or one with an impossible year
        return None
