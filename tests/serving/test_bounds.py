"""What a server does not let its clients do, over real sockets."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from nanoeuler.serving.app import MOST_BODY
from tests.serving.server import ServerProcess, raw_request, received
from tests.waiting import wait_until

TEXT = "/v1/completions"
CONTEXT = 20_000


@pytest.fixture(scope="module")
def server(endless_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounds")
    with ServerProcess(folder, endless_folder, "--rows", 2, "--queue", 3) as server:
        yield server
    assert "Traceback" not in server.log


@pytest.fixture(autouse=True)
def idle(server):
    yield
    wait_until(lambda: server.metric("replies_running") + server.metric("jobs_waiting") == 0)
    assert json.loads(server.get("/health").data) == {"status": "ok"}


def long(**fields):
    return {"model": "endless", "prompt": "The", "temperature": 0, "max_tokens": CONTEXT} | fields


def started(server, **fields):
    """The connection of a stream whose first bytes have come."""
    connection = server.connect()
    connection.sendall(raw_request(TEXT, long(stream=True, **fields)))
    assert connection.recv(20).startswith(b"HTTP/1.1 200")
    return connection


def test_a_client_that_goes_away_stops_costing(server):
    gone = server.metric("clients_gone_total")
    for stream in (True, False):
        connection = server.connect()
        connection.sendall(raw_request(TEXT, long(stream=stream)))
        wait_until(lambda: server.metric("replies_running") == 1)
        connection.close()
        before = server.metric("tokens_total")
        wait_until(lambda: server.metric("replies_running") == 0)
        assert server.metric("tokens_total") - before < CONTEXT
    assert server.metric("clients_gone_total") == gone + 2


def test_a_full_queue_is_answered_429(server):
    connections = [server.connect() for _ in range(5)]
    for connection in connections[:2]:
        connection.sendall(raw_request(TEXT, long()))
    wait_until(lambda: server.metric("replies_running") == 2)
    for connection in connections[2:]:
        connection.sendall(raw_request(TEXT, long()))
    wait_until(lambda: server.metric("jobs_waiting") == 3)
    refused = server.post(TEXT, long())
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error = json.loads(refused.data)["error"]
    assert error["type"] == "rate_limit_error"
    assert "try again in" in error["message"]
    for connection in connections:
        connection.close()
    wait_until(lambda: server.metric("jobs_waiting") == 0)
    assert server.post(TEXT, long(max_tokens=2)).status == 200


def test_a_body_that_is_too_large_is_refused_before_it_has_come(server):
    connection = server.connect()
    connection.sendall(raw_request(TEXT, long(), length=MOST_BODY + 1))
    assert received(connection).startswith(b"HTTP/1.1 413")
    chunked = server.connect()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked.sendall(head.encode())
    with contextlib.suppress(OSError):
        for _ in range(20):
            chunked.sendall(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
    assert received(chunked).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_a_whole_body_first_reads_why_it_is_refused(server):
    for path, status in ((TEXT, 413), ("/v1/nothing", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url + path, b"x" * (8 << 20), timeout=60)
        assert refused.value.code == status
        assert json.loads(refused.value.read())["error"]["message"]


def test_more_prompts_than_the_queue_is_long_are_refused(server):
    refused = server.post(TEXT, long(prompt=["The"] * 4, max_tokens=2))
    assert refused.status == 400  # not "try again"
    assert json.loads(refused.data)["error"]["message"].startswith("prompt: give at most 3 prompts")


def test_times_between_tokens_are_those_of_each_reply(server):
    before, began = server.metric("next_token_seconds_sum"), time.monotonic()
    assert server.post(TEXT, long(n=2, max_tokens=500)).status == 200
    took = time.monotonic() - began
    assert server.metric("next_token_seconds_sum") - before > 1.2 * took  # two at a time


def test_a_slow_reader_holds_no_place(server):
    """What it does not read waits in memory, and its reply ends without it."""
    slow = started(server, max_tokens=2000)
    wait_until(lambda: server.metric("replies_running") == 0)
    assert server.post(TEXT, long(max_tokens=2)).status == 200
    assert b"[DONE]" in read_until(slow, b"[DONE]")
    slow.close()


def read_until(connection, mark):
    content = b""
    while mark not in content:
        piece = connection.recv(65536)
        assert piece
        content += piece
    return content


def test_what_is_no_http_is_answered_and_closed(server):
    for noise in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, b"GET\r\n\r\n"):
        connection = server.connect()
        connection.sendall(noise)
        answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"Retry-After" not in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_reply_has_the_time_that_the_server_allows(endless_folder, tmp_path):
    with ServerProcess(tmp_path, endless_folder, "--seconds", 0.2) as server:
        late = server.post(TEXT, long())
        assert late.status == 504
        assert json.loads(late.data)["error"]["code"] == "timeout"
        streamed = server.post(TEXT, long(stream=True)).data.decode()
        last = json.loads(streamed.strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "timeout"
        assert server.post(TEXT, long(max_tokens=2)).status == 200


def test_sigterm_lets_replies_end_and_takes_no_new_ones(endless_folder, tmp_path):
    server = ServerProcess(tmp_path, endless_folder)
    connection = started(server, max_tokens=1500)
    os.kill(server.process.pid, signal.SIGTERM)
    with contextlib.suppress(OSError):
        while True:
            server.connect().close()
            time.sleep(0.01)
    assert b"[DONE]" in received(connection)
    assert server.process.wait(60) == 0
    assert "Traceback" not in server.log


def test_requests_that_do_not_arrive_and_too_many_connections_are_closed(endless_folder, tmp_path):
    """With the deadlines of a test instead of 20 seconds."""
    import subprocess
    import sys

    program = (
        "from nanoeuler.serving import guard\n"
        "from nanoeuler.cli import main\n"
        "guard.ARRIVAL_SECONDS = guard.STALL_SECONDS = 0.5\n"
        "guard.Connection.most = 20\n"
        "raise SystemExit(main())\n"
    )
    real = subprocess.Popen

    class Shorter(ServerProcess):
        def __init__(self):
            def popen(command, **options):
                return real([sys.executable, "-c", program, *command[3:]], **options)

            subprocess.Popen = popen
            try:
                super().__init__(tmp_path, endless_folder)
            finally:
                subprocess.Popen = real

    with Shorter() as server:
        whole = raw_request(TEXT, long(max_tokens=2))
        halves = [server.connect() for _ in range(3)]
        for connection, sent in zip(halves, (b"", whole[:30], whole[:-5]), strict=True):
            connection.sendall(sent)
        behind, refused = server.connect(), server.connect()
        behind.sendall(whole + whole[:-5])
        refused.sendall(whole + raw_request(TEXT, {}, length=10 * MOST_BODY))
        for connection in halves:
            assert received(connection) == b""  # cut off
        assert received(behind).count(b"HTTP/1.1 200") == 1
        assert b"HTTP/1.1 413" in received(refused)
        wait_until(lambda: is_cut_off(refused))
        # a reader that takes nothing: its socket's buffers are small
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stalled.connect(("127.0.0.1", server.port))
        for _ in range(3):
            stalled.sendall(raw_request(TEXT, long(stream=True, logprobs=20)))
        wait_until(lambda: server.metric("clients_gone_total") > 0)
        stalled.close()

        def crowd_is_refused():
            crowd = [server.connect() for _ in range(40)]
            answers = [each.recv(40) for each in crowd[25:]]
            for each in crowd:
                each.close()
            return all(answer.startswith(b"HTTP/1.1 503") for answer in answers)

        wait_until(crowd_is_refused)  # unless the first have been cut off meanwhile
        assert server.post(TEXT, long(max_tokens=2)).status == 200


def is_cut_off(connection):
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False


def test_ten_thousand_connections_leave_the_server_up(server):
    opened = []
    lock = threading.Lock()

    def knock():
        for _ in range(1250):
            with contextlib.suppress(OSError):
                connection = server.connect()
                with lock:
                    opened.append(connection)
                    if len(opened) > 700:
                        opened.pop(0).close()

    threads = [threading.Thread(target=knock) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in opened:
        connection.close()
    assert server.post(TEXT, long(max_tokens=2)).status == 200
