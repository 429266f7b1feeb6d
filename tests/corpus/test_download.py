"""Downloads over real HTTP on loopback: what is on the disk after faults and kills."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from downloads import CONTENT, IMPATIENT, PROGRAM, QUICK, SHA256, hidden_files

from nanoeuler.corpus import transport
from nanoeuler.corpus.download import SourceFile, download
from nanoeuler.corpus.remote_file import Patience, RemoteFile
from nanoeuler.errors import UserError
from tests.servers import Fault
from tests.waiting import wait_until


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(server, address, target):
    download(SourceFile(address, bytes=len(CONTENT), sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert hidden_files(target) == []
    assert server.bytes_served == len(CONTENT)
    assert server.seen[0].headers["User-Agent"].startswith("nanoeuler/")


def test_a_connection_that_breaks_off_is_resumed_where_it_ended(server, address, target):
    server.fail(
        "/books/file.bin", Fault(truncate=True, after=200_000), Fault(truncate=True, after=100_000)
    )
    download(SourceFile(address, sha256=SHA256), target, patience=QUICK)
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
    download(SourceFile(address), target, patience=IMPATIENT)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == len(CONTENT)


def test_a_server_without_ranges_is_asked_for_the_whole_file_again(server, address, target):
    server.ranges = False
    server.fail("/books/file.bin", Fault(truncate=True, after=200_000))
    download(SourceFile(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT


def test_without_a_validator_nothing_is_glued_together(server, address, target):
    server.validators = False
    server.fail("/books/file.bin", Fault(truncate=True, after=200_000))
    download(SourceFile(address), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == 200_000 + len(CONTENT)


def test_a_file_that_changed_meanwhile_is_fetched_anew(server, address, target):
    server.fail(
        "/books/file.bin",
        *[Fault(truncate=True, after=100_000 * (n == 0)) for n in range(QUICK.attempts + 1)],
    )
    with pytest.raises(UserError, match="4 times in a row"):
        download(SourceFile(address), target, patience=QUICK)
    server.faults.clear()
    server.put("books/file.bin", CONTENT[::-1])
    download(SourceFile(address), target, patience=QUICK)
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
    download(SourceFile(address, sha256=SHA256), target, patience=QUICK)
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
    download(SourceFile(address, sha256=SHA256), target, patience=QUICK)
    assert target.read_bytes() == CONTENT
    assert server.bytes_served == before


def test_content_that_is_refused_is_not_kept(address, target):
    def refuse(path: Path) -> None:
        raise UserError(f"{path.stat().st_size} bytes of nonsense")

    with pytest.raises(UserError, match="640000 bytes of nonsense"):
        download(SourceFile(address), target, patience=QUICK, check=refuse)
    assert list(target.parent.iterdir()) == []


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
    download(SourceFile(address), target, patience=QUICK)
    assert time.time() - began > 0.5
    first.join()


def test_a_clock_that_was_set_back_does_not_stop_everything(monkeypatch):
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.1)
    host = "a host of tomorrow:80"
    file = transport.host_file(host)
    file.touch()
    os.utime(file, (time.time() + 86_400,) * 2)
    began = time.time()
    with transport.locked_host(host, 0):
        pass
    with transport.locked_host(host, 0):
        pass
    assert time.time() - began < 60  # and not until tomorrow
    file.unlink()


def test_a_second_process_on_the_same_target_is_told_so(server, address, target):
    server.fail("/books/file.bin", Fault(stall=True, after=1000))
    first = threading.Thread(
        target=lambda: download(SourceFile(address), target, patience=Patience(3, 0.01, 1.0))
    )
    first.start()
    wait_until(lambda: server.seen)
    with pytest.raises(UserError, match="another process is downloading this file"):
        download(SourceFile(address), target, patience=QUICK)
    first.join()
    assert target.read_bytes() == CONTENT
