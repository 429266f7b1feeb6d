"""Resolve the addresses of the sources file to web addresses and local paths.

    https://HOST/PATH, http://…      a web server
    hf://datasets/OWNER/NAME/PATH    Hugging Face; OWNER/NAME@REVISION pins a revision
    file:///PATH                     this machine
    PATH                             this machine, relative to the working folder

As in Hugging Face's own tools, `HF_ENDPOINT` names a mirror (default https://huggingface.co) and
`HF_TOKEN` opens gated data sets. A web address may have a name and a password (https://NAME:PASSWORD@
HOST/PATH), which its host alone gets. What is told or kept of an address is `shown`.
"""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from nanoeuler.errors import UserError

HUGGING_FACE = "https://huggingface.co"
LONGEST_HOST = 255  # characters of a host's name and port; no name has more

LOGIN = re.compile(r"(?<=//)([^/?#\s]*|[^/?#\s@]*:(?![0-9]*[/?#])[^?#\s]*)@")
"""Name and password in front of a host; also where the password has a / that should be %2F."""
PARAMETER = re.compile(r"([?&;])([^=&;#\s]{1,80})=([^&;#\s]+)")
SECRET = re.compile(
    "sig|token|key|secret|pass|pwd|auth|cred|policy|session|jwt|code", re.IGNORECASE
)
LONGEST_SHOWN = 2_000  # characters of an address
LONGEST_VALUE = 31  # characters of a value in a query that is no signature


def shown(address: str) -> str:
    """Return `address`, or a text that quotes it, without passwords, tokens and signatures."""

    def parameter(found: re.Match[str]) -> str:
        mark, name, value = found.groups()
        hidden = SECRET.search(name) or len(value) > LONGEST_VALUE
        return f"{mark}{name}={'…' if hidden else value}"

    return PARAMETER.sub(parameter, LOGIN.sub("", address[:LONGEST_SHOWN]))


def resolve(address: str, revision: str | None = None) -> str | Path:
    """Return the web address (text) or local path (`Path`) that `address` means.

    `revision` is that of hf:// addresses which name none. Raises `UserError` for an address that
    this project cannot read.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Path(os.path.expanduser(address))  # which leaves ~ as it is where nobody has it
    if scheme in ("http", "https"):
        if not names_host(address):
            raise UserError(f"{shown(address)}: names no host; write {scheme}://HOST/PATH")
        return percent_encoded(address)
    if scheme == "hf":
        return hugging_face(address, rest, revision)
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise UserError(
                f"{shown(address)}: a file address names no host; "
                "write file:///PATH, with three slashes"
            )
        return Path("/" + unquote(path))
    raise UserError(
        f"{shown(address)}: addresses of the kind {scheme[:60]}:// cannot be read; "
        "give https://, hf://datasets/, file:/// or a local path"
    )


def file_bytes(entry: Mapping[str, Any]) -> int | None:
    """The size of a source's file: as its entry states it, or of the local file that it names."""
    if stated := entry.get("bytes"):
        return stated
    place = resolve(entry["url"]) if "url" in entry else None
    return place.stat().st_size if isinstance(place, Path) and place.is_file() else None


def names_host(address: str) -> bool:
    """Return whether `address` is a web address with the name of a host."""
    try:
        scheme, place = urlsplit(address)[:2]
        host = urlsplit(address).hostname
    except ValueError:  # brackets without an IPv6 address
        return False
    named = host and host.strip(".") and len(quote(place, safe="")) <= LONGEST_HOST
    return scheme in ("http", "https") and bool(named)


def hugging_face(address: str, rest: str, revision: str | None) -> str:
    kind, _, path = rest.partition("/")
    parts = path.split("/", 2)
    if kind != "datasets" or len(parts) < 3 or not all(parts):
        raise UserError(
            f"{shown(address)}: not the address of a file in a data set; "
            "write hf://datasets/OWNER/NAME/PATH"
        )
    owner, name, file = parts
    name, _, pinned = name.partition("@")
    version = quote(pinned or revision or "main", safe="")
    return f"{endpoint()}/datasets/{owner}/{name}/resolve/{version}/{quote(file)}"


def percent_encoded(address: str) -> str:
    """Write spaces and letters beyond ASCII as %XX, and leave alone what is encoded already."""
    return quote(address, safe="%/:?#[]@!$&'()*+,;=~")


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def host_of(address: str) -> str:
    """Return the name of the host in a web address, with its port if it names one."""
    return urlsplit(address).netloc.rpartition("@")[2]


def without_login(address: str) -> str:
    """Return a web address as it is asked for: name and password go into a header."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=host_of(address))) if "@" in parts.netloc else address


def authorization(address: str) -> dict[str, str]:
    """Return the Authorization header that `address` asks for itself, or Hugging Face's.

    There is none for other hosts, even redirects'.
    """
    login, at, _ = urlsplit(address).netloc.rpartition("@")
    if at:
        return {"Authorization": f"Basic {base64.b64encode(unquote(login).encode()).decode()}"}
    token = os.environ.get("HF_TOKEN", "").strip()
    same_host = urlsplit(address)[:2] == urlsplit(endpoint())[:2]
    return {"Authorization": f"Bearer {token}"} if token and same_host else {}


def without_secrets(value: Any) -> Any:
    """Return `value` with its addresses as they may be shown."""
    if isinstance(value, Mapping):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return shown(value) if isinstance(value, str) and "://" in value else value
