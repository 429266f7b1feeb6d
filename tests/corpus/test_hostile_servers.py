"""Servers that lie, send without end or hardly at all: each ends in a sentence, in a bounded time.

They are real servers on loopback, which send these very bytes.
"""

import gzip
import json
import time
from pathlib import Path

import pytest

from nanoeuler.cli import main
from nanoeuler.corpus.download import SourceFile, download
from nanoeuler.corpus.gutenberg import LARGEST_BOOK
from nanoeuler.corpus.gutenberg_mirror import fetch_book
from nanoeuler.corpus.remote_file import LARGEST_DOWNLOAD, Patience, RemoteFile, StartOver, TooLarge
from nanoeuler.errors import UserError
from tests.servers import Fault, Server

QUICK = Patience(attempts=2, first_pause=0.01, silence=5.0)
IMPATIENT = Patience(attempts=2, first_pause=0.01, silence=0.3)


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


def refusal(server: Server, tmp_path: Path, fault: Fault, patience: Patience = QUICK) -> str:
    """Return what is said when each request for a file gets `fault`; nothing of it is kept."""
    server.fail("/file", *[fault] * 20)
    target = tmp_path / "kept" / "file"
    with pytest.raises(UserError) as caught:
        download(SourceFile(f"{server.url}/file"), target, patience=patience)
    assert not target.exists()
    return str(caught.value)


DIGITS = "9" * 5_000
LIES = [
    (head("200 OK", "Content-Length: abc"), "a length that is none (abc)"),
    (head("200 OK", "Content-Length: -5"), "a length that is none (-5)"),
    (head("200 OK", f"Content-Length: {DIGITS}"), "a length that is none (999"),
    (head("200 OK", "Content-Length: 5, 6"), "unmatching values"),
    (head("200 OK", "Content-Length: 99999999999"), "has 99,999,999,999 bytes"),
    (head("200 OK", "Transfer-Encoding: gzip, chunked"), "what nobody asked for"),
    (head("200 OK", "Transfer-Encoding: chunked") + b"xyz\r\n", "the connection failed"),
    (head("200 OK", "Transfer-Encoding: chunked") + b"-5\r\nabc", "breaks off"),
    (head("204 No Content"), "the server answers 204"),
    (head("302 Found", "Location: http://[::1"), "redirects to http://[::1, which is no web"),
    (head("302 Found", "Location: http://../x"), "which is no web address"),
    (head("302 Found", f"Location: http://{'a.' * 500}com/"), "which is no web address"),
    (head("302 Found", "Location: file:///etc/passwd"), "which is no web address"),
    (head("302 Found", "Location: http://a:99999/"), "not an address that can be asked"),
    (head("302 Found", "Location: http://a%00b/"), "not an address that can be asked"),
    (head("416 No", f"Content-Range: bytes */{DIGITS}"), "breaks off"),
    (head("206 Part", f"Content-Range: bytes 0-{DIGITS}/{DIGITS}"), "breaks off"),
    (head("429 Slow", "Retry-After: \xb2"), "answers 429 (Slow), 2 times in a row"),
    (head("429 Slow", f"Retry-After: {'9' * 400}"), "asks to be left alone until"),
    (head("429 Slow", "Retry-After: Mon, 01 Jan 9999999999999 00:00:00 GMT"), "2 times in a row"),
    (head(f"403 {'a' * 60_000}"), "answers 403 (aaa"),
    (head("99999999999 OK"), "the connection failed"),
    (b"\0\1\2\r\n\r\n", "the connection failed"),
    (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "got more than 100 headers"),
    (b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n", "got more than 65536 bytes"),
]


@pytest.mark.parametrize(("raw", "sentence"), LIES)
def test_a_lie_in_the_headers_is_one_short_sentence(server, tmp_path, raw, sentence):
    said = refusal(server, tmp_path, Fault(raw=raw))
    assert sentence in said
    assert said.startswith(f"{server.url}/file: ")
    assert "; " in said
    assert len(said) < 400


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100,
        head("200 OK", "Content-Length: 100"),
        head("200 OK", "Transfer-Encoding: chunked"),
    ],
)
def test_a_byte_now_and_then_is_not_waited_for(server, tmp_path, raw):
    """Each byte would start the timeout of the socket anew."""
    dripping = Fault(raw=raw + b"1" * 100, drip=0.05)
    patience = Patience(attempts=2, first_pause=0.01, silence=1.5)  # beyond a halt of this machine
    began = time.monotonic()
    said = refusal(server, tmp_path, dripping, patience)
    assert time.monotonic() - began < 8
    assert "headers were not complete after" in said or "bytes in" in said


def test_headers_without_end_are_not_waited_for(server, tmp_path):
    proceed = head("100 Continue") * 1_000
    said = refusal(server, tmp_path, Fault(raw=proceed, again=proceed), IMPATIENT)
    assert "headers were not complete after" in said


def test_connections_that_bring_a_byte_each_are_given_up(server, tmp_path):
    server.put("file", b"x" * 1_000)
    said = refusal(server, tmp_path, Fault(truncate=True, after=1))
    assert "2 times in a row" in said
    assert server.requests() == 2


@pytest.mark.parametrize("framing", ["chunked", "closed"])
@pytest.mark.parametrize("told", [None, 3_000_000])
def test_a_body_without_end_has_a_ceiling(server, tmp_path, framing, told):
    block = b"x" * 100_000
    piece = b"%x\r\n%s\r\n" % (len(block), block) if framing == "chunked" else block
    headers = ["Transfer-Encoding: chunked"] if framing == "chunked" else []
    server.fail("/file", Fault(raw=head("200 OK", *headers), again=piece))
    remote = RemoteFile(f"{server.url}/file", 0, QUICK, bytes=told, largest=5_000_000)
    arrived: list[int] = []
    with pytest.raises(UserError, match=r"has more than .* bytes") as caught:
        arrived.extend(map(len, remote.read()))
    assert sum(arrived) <= (told or 5_000_000)
    assert isinstance(caught.value, TooLarge) == (told is None)
    assert LARGEST_DOWNLOAD > 2_200_000_000, "a shard of FineWeb-Edu"


def test_a_size_in_the_sources_file_lifts_the_ceiling(server):
    address = server.put("file", b"x" * 1_000)
    remote = RemoteFile(address, 0, QUICK, bytes=1_000, largest=10)
    assert len(b"".join(remote.read())) == 1_000
    with pytest.raises(TooLarge, match="give it as bytes in the sources file"):
        list(RemoteFile(address, 0, QUICK, largest=10).read())


def test_what_is_too_large_for_a_book_is_looked_for_at_the_next_address(server, tmp_path):
    huge = head("200 OK", f"Content-Length: {LARGEST_BOOK + 1}")
    server.fail("/cache/epub/12/pg12.txt", Fault(raw=huge))
    with pytest.raises(UserError, match=r"more than 50,000,000 bytes, which is no book; name"):
        fetch_book(server.url, 12, tmp_path / "book.txt", 0, QUICK)
    assert server.requests() == 4


def test_https_is_not_left_for_http():
    remote = RemoteFile("https://example.org/file")
    assert remote.follow("/other") == "https://example.org/other"
    assert remote.follow("https://cdn.example.org/x") == "https://cdn.example.org/x"
    with pytest.raises(UserError, match=r"anyone on the way can .*; give an address that stays"):
        remote.follow("http://example.org/file")
    plain = RemoteFile("http://example.org/file")
    assert plain.follow("https://example.org/file") == "https://example.org/file"


def test_a_range_that_ends_early_is_asked_for_again(server):
    """Else the bytes that never came would be holes in the local copy."""
    address = server.put("file", bytes(range(100)))
    short = head("206 Part", "Content-Range: bytes 10-19/100", "Content-Length: 4")
    server.fail("/file", Fault(raw=short + bytes(4)))
    remote = RemoteFile(address, 0, QUICK)
    with pytest.raises(StartOver):  # without a validator, the rest may be another file's
        list(remote.read(10, 20))
    assert b"".join(remote.read(10, 20)) == bytes(range(10, 20))


def test_more_than_a_range_is_not_taken(server):
    address = server.put("file", bytes(100))
    headers = ["Content-Range: bytes 0-9/100", "Transfer-Encoding: chunked"]
    server.fail("/file", Fault(raw=head("206 Part", *headers) + b"b\r\n01234567890\r\n0\r\n\r\n"))
    with pytest.raises(StartOver, match="more than it was asked for"):
        list(RemoteFile(address, 0, QUICK).read(0, 10))


def test_a_server_that_ignores_if_range_is_found_out_by_its_etag(server):
    server.heeds_if_range = False
    address = server.put("file", b"old" * 1_000)
    remote = RemoteFile(address, 0, QUICK)
    assert b"".join(remote.read(0, 3)) == b"old"
    server.put("file", b"new" * 1_000)
    with pytest.raises(StartOver, match="changed meanwhile"):
        list(remote.read(3, 6))


CHUNKED = head("200 OK", "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("raw", "again", "sentence"),
    [
        (b"5\r\nhello\r\n0\r\n", b"X-Trailer: more\r\n", "bytes around 7 of the file"),
        (b"", b"1;extension=" + b"x" * 5_000 + b"\r\nA\r\n", "of the file"),
        (b"5;", b"x" * 10_000, "bytes around 0 of the file"),
        (b"5\r\nhello", b"\n", "the connection failed"),
    ],
)
def test_what_stands_around_a_chunk_has_a_ceiling(server, tmp_path, caplog, raw, again, sentence):
    began = time.monotonic()
    with caplog.at_level("INFO", "nanoeuler"):
        said = refusal(server, tmp_path, Fault(raw=CHUNKED + raw, again=again))
    assert sentence in caplog.text
    assert "2 times in a row" in said or "breaks off" in said
    assert time.monotonic() - began < 10


def test_a_file_in_chunks_of_a_byte_with_a_few_trailers_is_read(server, tmp_path):
    content = bytes(range(256)) * 100
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content)
    server.fail("/file", Fault(raw=CHUNKED + chunks + b"0\r\nChecksum: x\r\n\r\n"))
    download(SourceFile(f"{server.url}/file"), tmp_path / "file", patience=QUICK)
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize(
    "validator", ['ETag: "old"', "Last-Modified: Mon, 02 Nov 2026 10:00:00 GMT"]
)
def test_a_range_that_does_not_say_its_version_is_not_joined(server, tmp_path, validator):
    """A server that ignores If-Range, and leaves the validator out of its 206."""
    address = server.put("file", b"new" * 20_000)
    old = head("200 OK", "Content-Length: 60000", validator) + b"old" * 10_000
    rest = head("206 Part", "Content-Range: bytes 30000-59999/60000", "Content-Length: 30000")
    server.fail("/file", Fault(raw=old), Fault(raw=rest + b"new" * 10_000))
    download(SourceFile(address), tmp_path / "file", patience=QUICK)
    assert (tmp_path / "file").read_bytes() == b"new" * 20_000
    asked = [seen.headers for seen in server.seen]
    assert asked[-1].get("Range") is None


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "br", "deflate, gzip", "zstd"])
def test_a_file_that_is_packed_for_the_way_is_refused(server, tmp_path, encoding):
    packed = gzip.compress(b"text" * 100)
    headers = [f"Content-Length: {len(packed)}", f"Content-Encoding: {encoding}"]
    said = refusal(server, tmp_path, Fault(raw=head("200 OK", *headers) + packed))
    assert f"the server sends it packed ({encoding}), which nobody asked for; name another" in said


def test_a_packed_file_that_the_server_calls_packed_is_the_file(server, tmp_path):
    packed = gzip.compress(b"text" * 100)
    headers = [f"Content-Length: {len(packed)}", "Content-Encoding: x-gzip"]
    server.fail("/file.json.gz", Fault(raw=head("200 OK", *headers) + packed))
    download(SourceFile(f"{server.url}/file.json.gz"), tmp_path / "file", patience=QUICK)
    assert (tmp_path / "file").read_bytes() == packed
    server.fail(
        "/file", Fault(raw=head("200 OK", "Content-Length: 1", "Content-Encoding: identity") + b"x")
    )
    assert b"".join(RemoteFile(f"{server.url}/file", 0, QUICK).read()) == b"x"


def test_a_server_does_not_write_to_the_terminal(server, tmp_path, capsys):
    server.fail("/file", Fault(raw=head("403 \x1b]0;owned\x07\x1b[2J\x9b31m\xe2\x80\xae")))
    config = json.dumps({"sources": {"questions": {"q": {"url": f"{server.url}/file"}}}})
    output = str(tmp_path / "q.jsonl")
    assert main(["questions", "--config", config, "--name", "q", "--output", output]) == 1
    said = capsys.readouterr().err
    assert r"(\x1b]0;owned\x07\x1b[2J\x9b31m" in said
    assert said.rstrip("\n").isprintable()


@pytest.mark.parametrize("note", ["null", "[]", "5", "\xff", '{"url": 5, "validator": {}}'])
def test_a_damaged_note_of_a_download_starts_it_afresh(server, tmp_path, note):
    address = server.put("file", b"whole")
    (tmp_path / ".file.partial").write_bytes(b"part")
    (tmp_path / ".file.partial.json").write_text(note, encoding="latin-1")
    download(SourceFile(address), tmp_path / "file", patience=QUICK)
    assert (tmp_path / "file").read_bytes() == b"whole"
