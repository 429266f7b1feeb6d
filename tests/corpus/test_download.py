"""Downloads over real HTTP on loopback: servers' faults, and what is on the disk after them."""

import base64
import email.utils
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import pytest

from nanoeuler.corpus import host_locks
from nanoeuler.corpus.addresses import resolve
from nanoeuler.corpus.download import Source, download, local_copy
from nanoeuler.corpus.remote_file import NotThere, Patience, RemoteFile, StartOver, retry_after
from nanoeuler.errors import UserError
from tests.servers import Fault, Server
from tests.waiting import wait_until

QUICK = Patience(attempts=4, first_pause=0.01, silence=5.0)
IMPATIENT = Patience(attempts=4, first_pause=0.01, silence=0.5)
# 640,000 bytes
CONTENT = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PROGRAM = """
import sys
from pathlib import Path
from nanoeuler.corpus.download import *
download(Source(sys.argv[1]), Path(sys.argv[2]), pause=float(sys.argv[3]))
"""


@pytest.fixture
def address(server: Server) -> str:
    return server.put("books/file.bin", CONTENT)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "file.bin"


def hidden_files(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.glob(".*"))


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(server, address, target):
    download(Source(address, bytes=len(CONTENT), sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert hidden_files(target) == []
    assert server.bytes_served == len(CONTENT)
    assert server.seen[0].headers["User-Agent"].startswith("nanoeuler/")


def test_a_connection_that_breaks_off_is_resumed_where_it_ended(server, address, target):
    server.fail(
        "/books/file.bin", Fault(truncate=True, after=200_000), Fault(truncate=True, after=100_000)
    )
    download(Source(address, sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == len(CONTENT)
    assert [seen.headers.get("Range") for seen in server.seen] == [
        None,
        "bytes=200000-",
        "bytes=300000-",
    ]
    assert all(seen.headers["If-Range"].startswith('"') for seen in server.seen[1:])


def test_a_stalled_connection_times_out_and_is_resumed(server, address, target):
    server.fail("/books/file.bin", Fault(stall=True, after=50_000))
    download(Source(address), target, patience=IMPATIENT)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == len(CONTENT)


def test_a_server_without_ranges_is_asked_for_the_whole_file_again(server, address, target):
    server.ranges = False
    server.fail("/books/file.bin", Fault(truncate=True, after=200_000))
    download(Source(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT


def test_without_a_validator_nothing_is_glued_together(server, address, target):
    server.validators = False
    server.fail("/books/file.bin", Fault(truncate=True, after=200_000))
    download(Source(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == 200_000 + len(CONTENT)


def test_a_file_that_changed_meanwhile_is_fetched_anew(server, address, target):
    server.fail(
        "/books/file.bin",
        *[Fault(truncate=True, after=100_000 * (n == 0)) for n in range(QUICK.attempts + 1)],
    )
    with pytest.raises(UserError, match="4 times in a row"):
        download(Source(address), target, patience=QUICK)
    server.faults.clear()
    server.put("books/file.bin", CONTENT[::-1])
    download(Source(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT[::-1]


def test_a_killed_download_goes_on_in_the_next_process(server, address, target):
    server.fail("/books/file.bin", Fault(stall=True, after=300_000))
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, address, str(target), "0"])
    partial = target.with_name(".file.bin.partial")
    wait_until(lambda: partial.exists() and partial.stat().st_size >= 250_000, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = partial.stat().st_size
    assert have >= 250_000
    assert not target.exists()
    download(Source(address, sha256=SHA256), target, patience=QUICK)
    assert server.seen[-1].headers["Range"] == f"bytes={have}-"
    assert target.read_bytes() == CONTENT
    assert hidden_files(target) == []


def test_a_download_killed_after_its_last_byte_is_not_fetched_again(server, address, target):
    remote = RemoteFile(address)
    partial = target.with_name(".file.bin.partial")
    partial.parent.mkdir()
    partial.write_bytes(b"".join(remote.read()))
    partial.with_name(".file.bin.partial.json").write_text(
        json.dumps({"url": address, "validator": remote.validator})
    )
    before = server.bytes_served
    download(Source(address, sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == before


def test_content_that_is_refused_is_not_kept(address, target):
    def refuse(path: Path) -> None:
        raise UserError(f"{path.stat().st_size} bytes of nonsense")

    with pytest.raises(UserError, match="640000 bytes of nonsense"):
        download(Source(address), target, patience=QUICK, check=refuse)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_error_is_waited_out(server, address, target, status):
    server.fail("/books/file.bin", Fault(status=status), Fault(status=status))
    download(Source(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert [seen.status for seen in server.seen] == [status, status, 200]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(server, address, target, form):
    value = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    server.fail("/books/file.bin", Fault(status=429, headers={"Retry-After": value}))
    download(Source(address), target, patience=QUICK)
    assert server.seen[1].time - server.seen[0].time >= 0.95


def test_a_server_that_asks_for_hours_ends_the_run_with_a_sentence(server, address, target):
    server.fail("/books/file.bin", Fault(status=429, headers={"Retry-After": "7200"}))
    with pytest.raises(UserError, match=r"429 .* asks to be left alone until .*; run again then"):
        download(Source(address), target, patience=QUICK)


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
        download(Source(address), target, patience=QUICK)
    assert server.requests() == 4
    assert not target.exists()


def test_nobody_at_the_address_is_one_sentence(target):
    with pytest.raises(
        UserError,
        match=r"^http://127.0.0.1:9/x: the connection failed \(Connection refused\), "
        r"2 times in a row",
    ):
        download(Source("http://127.0.0.1:9/x"), target, patience=Patience(2, 0.01, 0.3))


@pytest.mark.parametrize("host", ["localhost:port", "a" * 70 + ".com"])
def test_a_host_that_cannot_be_one_is_one_sentence(target, host):
    with pytest.raises(UserError, match=r"not an address that can be asked .*; correct it"):
        download(Source(f"http://{host}/x"), target, patience=QUICK)


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
        download(Source(address), target, patience=QUICK)
    assert isinstance(caught.value, NotThere) == (status in (404, 410))
    assert server.requests() == 1
    assert hidden_files(target) == []


def test_a_corrupted_body_is_fetched_once_more(server, address, target):
    server.fail("/books/file.bin", Fault(corrupt=True, after=1234))
    download(Source(address, sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.requests() == 2


def test_a_hash_that_stays_wrong_is_refused(server, address, target):
    with pytest.raises(UserError, match=r"has the SHA-256 .*, where the sources file says 0000"):
        download(Source(address, sha256="0" * 64), target, patience=QUICK)
    assert server.requests() == 2
    assert list(target.parent.iterdir()) == []


def test_a_length_other_than_the_sources_say_is_told_before_the_download(server, address, target):
    with pytest.raises(
        UserError, match=r"has 640,000 bytes, where the sources file says 5,000,000"
    ):
        download(Source(address, bytes=5_000_000), target, patience=QUICK)
    assert server.requests() == 1


def test_hugging_face_addresses_follow_the_redirect_without_the_token(server, target, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.put("datasets/owner/name/data/a b.bin", CONTENT)
    download(
        Source("hf://datasets/owner/name/data/a b.bin", revision="abc123"), target, patience=QUICK
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


def test_the_proxy_that_the_environment_names_is_asked(server, address, target, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://reader:pass%20word@"))
    download(Source("http://books.invalid/books/file.bin"), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    headers = {name.lower(): value for name, value in server.seen[0].headers.items()}
    login = base64.b64encode(b"reader:pass word").decode()
    assert headers["host"] == "books.invalid"
    assert headers["proxy-authorization"] == f"Basic {login}"


def test_redirects_that_go_round_end(server, target):
    server.fail("/loop", *[Fault(status=302, headers={"Location": "/loop"})] * 20)
    with pytest.raises(UserError, match="redirects more than 8 times"):
        download(Source(f"{server.url}/loop"), target, patience=QUICK)


def test_two_processes_take_turns_with_a_pause_between(server, tmp_path):
    addresses = [server.put(f"book-{n}", b"x" * 1000) for n in range(3)]
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, address, str(tmp_path / str(n)), "0.3"])
        for n, address in enumerate(addresses)
    ]
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    times = sorted(seen.time for seen in server.seen)
    assert all(later - earlier >= 0.29 for earlier, later in itertools.pairwise(times))


def test_a_second_connection_waits_until_the_first_has_ended(server, address, target):
    server.fail("/books/file.bin", Fault(stall=True, after=1000))
    first = threading.Thread(
        target=lambda: list(RemoteFile(address, patience=Patience(2, 0.01, 1.0)).read())
    )
    first.start()
    wait_until(lambda: server.seen)
    began = time.time()
    download(Source(address), target, patience=QUICK)
    assert time.time() - began > 0.5
    first.join()


def test_a_clock_that_was_set_back_does_not_stop_everything(monkeypatch):
    monkeypatch.setattr(host_locks, "LONGEST_WAIT", 0.1)
    host = "a host of tomorrow:80"
    file = host_locks.host_file(host)
    file.touch()
    os.utime(file, (time.time() + 86_400,) * 2)
    began = time.time()
    with host_locks.locked_host(host, 0):
        pass
    with host_locks.locked_host(host, 0):
        pass
    assert time.time() - began < 60  # and not until tomorrow
    file.unlink()


def test_a_second_process_on_the_same_target_is_told_so(server, address, target):
    server.fail("/books/file.bin", Fault(stall=True, after=1000))
    first = threading.Thread(
        target=lambda: download(Source(address), target, patience=Patience(3, 0.01, 1.0))
    )
    first.start()
    wait_until(lambda: server.seen)
    with pytest.raises(UserError, match="another process is downloading this file"):
        download(Source(address), target, patience=QUICK)
    first.join()
    assert target.read_bytes() == CONTENT


def test_local_files_are_copied_or_used_in_place(tmp_path, target):
    file = tmp_path / "ein Text.txt"
    file.write_bytes(CONTENT)
    for url in (
        str(file),
        "file://" + urllib.parse.quote(str(file)),
        "file://localhost" + urllib.parse.quote(str(file)),
    ):
        download(Source(url, sha256=SHA256), target)
        assert target.read_bytes() == CONTENT
        with local_copy(Source(url), tmp_path / "made") as found:
            assert found.path == file
    assert file.exists()
    with pytest.raises(UserError, match=r"nowhere\.txt: no such file"):
        download(Source(str(tmp_path / "nowhere.txt")), target)
    with pytest.raises(UserError, match="has 640,000 bytes"):
        download(Source(str(file), bytes=1), target)
    with (
        pytest.raises(UserError, match="SHA-256"),
        local_copy(Source(str(file), sha256="0" * 64), tmp_path / "made"),
    ):
        pass


def test_a_remote_file_is_removed_after_use(server, address, tmp_path):
    with local_copy(Source(address, sha256=SHA256), tmp_path / "made", QUICK) as found:
        assert found.path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_without_a_known_hash_the_next_download_must_be_the_file_of_the_first(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    commit = "0123456789" * 4
    source = Source("hf://datasets/o/n/pairs.json", commit)
    server.put("datasets/o/n/pairs.json", b"<html>")
    with pytest.raises(UserError, match="no records"), local_copy(source, tmp_path / "made", QUICK):
        raise UserError("no records")
    assert list(tmp_path.iterdir()) == []  # a page in the file's place is not taken for it
    server.put("datasets/o/n/pairs.json", b"first")
    for _ in range(2):
        with local_copy(source, tmp_path / "made", QUICK) as found:
            assert (found.path.read_bytes(), found.revision) == (b"first", commit)
    server.put("datasets/o/n/pairs.json", b"other")
    other = hashlib.sha256(b"other").hexdigest()
    with (
        pytest.raises(UserError, match=rf"another file than on 2.*add 'sha256: {other}' to its"),
        local_copy(source, tmp_path / "made", QUICK),
    ):
        pass
    known = Source(source.url, commit, sha256=other)
    with local_copy(known, tmp_path / "made", QUICK) as found:
        assert found.path.read_bytes() == b"other"
    assert [path.name for path in tmp_path.iterdir()] == ["made.first.json"]


def test_the_commit_that_a_server_names_is_noted(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.commit = "fedcba9876" * 4
    server.put("datasets/o/n/pairs.json", b"first")
    with local_copy(Source("hf://datasets/o/n/pairs.json"), tmp_path / "made", QUICK) as found:
        assert found.revision == server.commit
    (noted,) = json.loads((tmp_path / "made.first.json").read_text()).values()
    assert noted["revision"] == server.commit
    assert noted["sha256"] == hashlib.sha256(b"first").hexdigest()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "hf://datasets/o/n/a/b.parquet",
            "https://huggingface.co/datasets/o/n/resolve/rev/a/b.parquet",
        ),
        (
            "hf://datasets/o/n@v1.0/b.parquet",
            "https://huggingface.co/datasets/o/n/resolve/v1.0/b.parquet",
        ),
        ("https://host/ä b%20c?d=1", "https://host/%C3%A4%20b%20c?d=1"),
        ("data/x.parquet", Path("data/x.parquet")),
    ],
)
def test_addresses(url, expected, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert resolve(url, "rev") == expected


@pytest.mark.parametrize(
    "url",
    [
        "hf://models/o/n/x",
        "hf://datasets/o/n",
        "hf://datasets/o//x",
        "s3://bucket/x",
        "file://host/x",
        "file:x://",
        "http:///x",
        "http://[::1/x",
    ],
)
def test_addresses_that_cannot_be_read_are_refused(url):
    with pytest.raises(UserError, match="; "):
        resolve(url)
