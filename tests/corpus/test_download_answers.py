"""What a download does with the answers of servers."""

import base64
import email.utils
import time

import pytest
from downloads import CONTENT, QUICK, SHA256, hidden_files

from nanoeuler.corpus.addresses import resolve
from nanoeuler.corpus.download import SourceFile, download
from nanoeuler.corpus.remote_file import NotThere, Patience, RemoteFile, StartOver, retry_after
from nanoeuler.errors import UserError
from tests.servers import Fault


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_error_is_waited_out(server, address, target, status):
    server.fail("/books/file.bin", Fault(status=status), Fault(status=status))
    download(SourceFile(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert [seen.status for seen in server.seen] == [status, status, 200]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(server, address, target, form):
    value = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    server.fail("/books/file.bin", Fault(status=429, headers={"Retry-After": value}))
    download(SourceFile(address), target, patience=QUICK)
    assert server.seen[1].time - server.seen[0].time >= 0.95


def test_a_server_that_asks_for_hours_ends_the_run_with_a_sentence(server, address, target):
    server.fail("/books/file.bin", Fault(status=429, headers={"Retry-After": "7200"}))
    with pytest.raises(UserError, match=r"429 .* asks to be left alone until .*; run again then"):
        download(SourceFile(address), target, patience=QUICK)


def test_retry_after_takes_seconds_and_dates_and_ignores_the_rest():
    assert retry_after("120") == 120
    assert retry_after(email.utils.formatdate(time.time() + 60, usegmt=True)) == pytest.approx(
        60, abs=1.5
    )
    assert retry_after(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0
    assert retry_after("9" * 30) == 10**9
    assert retry_after("soon") is None
    assert retry_after("Mon, 01 Jan 99999 00:00:00 GMT") is None
    assert retry_after(None) is None


def test_a_server_in_trouble_is_given_up_after_some_attempts(server, address, target):
    server.fail("/books/file.bin", *[Fault(status=500)] * 10)
    with pytest.raises(
        UserError,
        match=r"/books/file.bin: the server answers 500 .*, 4 times in a row; .*try again later",
    ):
        download(SourceFile(address), target, patience=QUICK)
    assert server.requests() == 4
    assert not target.exists()


def test_nobody_at_the_address_is_one_sentence(target):
    with pytest.raises(
        UserError,
        match=r"^http://127.0.0.1:9/x: the connection failed \(Connection refused\), "
        r"2 times in a row",
    ):
        download(SourceFile("http://127.0.0.1:9/x"), target, patience=Patience(2, 0.01, 0.3))


@pytest.mark.parametrize("host", ["localhost:port", "a" * 70 + ".com"])
def test_a_host_that_cannot_be_one_is_one_sentence(target, host):
    with pytest.raises(UserError, match=r"not an address that can be asked .*; correct it"):
        download(SourceFile(f"http://{host}/x"), target, patience=QUICK)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (404, "correct the address"),
        (410, "correct the address"),
        (401, "HF_TOKEN"),
        (403, "another mirror"),
        (405, "correct"),
    ],
)
def test_a_final_answer_is_not_asked_for_twice(server, address, target, status, sentence):
    server.fail("/books/file.bin", Fault(status=status))
    with pytest.raises(
        UserError, match=rf"/books/file.bin: the server answers {status} .*{sentence}"
    ) as caught:
        download(SourceFile(address), target, patience=QUICK)
    assert isinstance(caught.value, NotThere) == (status in (404, 410))
    assert server.requests() == 1
    assert hidden_files(target) == []


def test_a_corrupted_body_is_fetched_once_more(server, address, target):
    server.fail("/books/file.bin", Fault(corrupt=True, after=1234))
    download(SourceFile(address, sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.requests() == 2


def test_a_hash_that_stays_wrong_is_refused(server, address, target):
    with pytest.raises(UserError, match=r"has the SHA-256 .*, where the sources file says 0000"):
        download(SourceFile(address, sha256="0" * 64), target, patience=QUICK)
    assert server.requests() == 2
    assert list(target.parent.iterdir()) == []


def test_a_length_other_than_the_sources_say_is_told_before_the_download(server, address, target):
    with pytest.raises(
        UserError, match=r"has 640,000 bytes, where the sources file says 5,000,000"
    ):
        download(SourceFile(address, bytes=5_000_000), target, patience=QUICK)
    assert server.requests() == 1


def test_hugging_face_addresses_follow_the_redirect_without_the_token(server, target, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.put("datasets/owner/name/data/a b.bin", CONTENT)
    download(
        SourceFile("hf://datasets/owner/name/data/a b.bin", revision="abc123"),
        target,
        patience=QUICK,
    )
    assert target.read_bytes() == CONTENT
    asked, redirected = server.seen
    assert asked.path == "/datasets/owner/name/resolve/abc123/data/a b.bin"
    assert asked.headers["Authorization"] == "Bearer hf_secret"
    assert redirected.path == "/signed/datasets/owner/name/data/a b.bin"
    assert "Authorization" not in redirected.headers
    assert server.requests() == 2


def test_an_expired_signature_is_asked_for_anew(server, target):
    server.put("datasets/owner/name/file.bin", CONTENT)
    remote = RemoteFile(resolve("hf://datasets/owner/name/file.bin"), patience=QUICK)
    assert b"".join(remote.read(0, 1000)) == CONTENT[:1000]
    server.expire_signatures()
    assert b"".join(remote.read(1000, 2000)) == CONTENT[1000:2000]
    assert [seen.status for seen in server.seen] == [302, 206, 403, 302, 206]


def test_ranges_give_just_their_bytes(server, address):
    remote = RemoteFile(address, patience=QUICK)
    assert b"".join(remote.read(-8)) == CONTENT[-8:]
    assert remote.size == len(CONTENT)
    assert b"".join(remote.read(100, 300)) == CONTENT[100:300]
    assert b"".join(remote.read(len(CONTENT) - 5, len(CONTENT) + 100)) == CONTENT[-5:]
    assert remote.received == server.bytes_served == 8 + 200 + 5
    server.put("books/file.bin", CONTENT[1:])
    with pytest.raises(StartOver):
        list(remote.read(0, 10))


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_the_proxy_that_the_environment_names_is_asked(server, address, target, monkeypatch, name):
    monkeypatch.setenv(name, server.url.replace("://", "://reader:pass%20word@"))
    download(SourceFile("http://books.invalid/books/file.bin"), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    headers = {name.lower(): value for name, value in server.seen[0].headers.items()}
    login = base64.b64encode(b"reader:pass word").decode()
    assert headers["host"] == "books.invalid"
    assert headers["proxy-authorization"] == f"Basic {login}"


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (
            "http://reader:geheim@127.0.0.1:9",
            "proxy http://127.0.0.1:9 failed (Connection refused)",
        ),
        ("socks5://127.0.0.1:9", "the environment's proxy cannot be used (Proxy URL had unsupp"),
    ],
)
def test_a_proxy_that_fails_is_named_and_not_the_server(target, monkeypatch, proxy, said):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
        scheme = name.removesuffix("_proxy")
        with pytest.raises(UserError) as caught:
            download(SourceFile(f"{scheme}://books.invalid/file.bin"), target, patience=QUICK)
        assert said in str(caught.value)
        assert "geheim" not in str(caught.value)


def test_a_proxy_that_wants_a_login_is_told_apart(server, target, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    server.fail("/file.bin", Fault(status=407))
    with pytest.raises(UserError, match=r"proxy answers 407 .*name it with its login: http://NAME"):
        download(SourceFile("http://books.invalid/file.bin"), target, patience=QUICK)


def test_redirects_that_go_round_end(server, target):
    server.fail("/loop", *[Fault(status=302, headers={"Location": "/loop"})] * 20)
    with pytest.raises(UserError, match="redirects more than 8 times"):
        download(SourceFile(f"{server.url}/loop"), target, patience=QUICK)
