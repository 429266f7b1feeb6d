"""The two processes of a server: neither outlives the other, and signals let replies end."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue

import pytest

from nanoeuler.serving.batch import Batch
from nanoeuler.serving.engine import Engine, decode
from tests.serving.server import ServerProcess, raw_request, received
from tests.waiting import wait_until

REQUEST = {"model": "endless", "prompt": "The", "temperature": 0, "stream": True}


@pytest.fixture
def server(endless_folder, tmp_path):
    server = ServerProcess(tmp_path, endless_folder)
    yield server
    server.process.kill()
    server.process.wait()


def child(process):
    """The process that decodes."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def ended(pid):
    """A process that nobody waits for stays as a zombie."""
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def stream(server, max_tokens=20_000):
    """The connection of a reply that has begun."""
    connection = server.connect()
    connection.sendall(raw_request("/v1/completions", REQUEST | {"max_tokens": max_tokens}))
    assert connection.recv(20).startswith(b"HTTP/1.1 200")
    return connection


def errors(server):
    """What the server said behind its address."""
    return server.log.partition("drains\n")[2].splitlines()


@pytest.mark.parametrize("busy", [True, False])
def test_the_server_ends_with_the_process_that_decodes(server, busy):
    connections = [stream(server) for _ in range(2 * busy)]
    os.kill(child(server.process), signal.SIGKILL)
    for connection in connections:
        assert b'"type":"server_error"' in received(connection)
    assert server.process.wait(10) == 1
    (error,) = errors(server)
    assert "the process that decodes was killed by SIGKILL" in error


@pytest.mark.parametrize("busy", [True, False])
def test_the_process_that_decodes_ends_with_the_server(server, busy):
    _connections = [stream(server) for _ in range(2 * busy)]
    decoding = child(server.process)
    server.process.kill()
    wait_until(lambda: ended(decoding))
    (error,) = errors(server)
    assert "the process that speaks HTTP has ended" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_both_lets_replies_end(server, number):
    """As from a terminal's Ctrl-C, or from a supervisor."""
    connection, decoding = stream(server, 1500), child(server.process)
    os.killpg(server.process.pid, number)
    assert b"[DONE]" in received(connection)
    assert server.process.wait(60) == 0
    assert ended(decoding)
    assert errors(server) == ["serve  stopped"]


def test_a_signal_while_the_address_is_printed_lets_replies_end(endless_folder):
    """The pipe for the log has room for the line of the model alone, and nobody reads it yet."""
    port = free_port()
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"-" * (size - 100))
    command = [sys.executable, "-m", "nanoeuler", "serve", endless_folder, "--port", str(port)]
    process = subprocess.Popen(command, stderr=writing, process_group=0)
    os.close(writing)
    try:
        wait_until(lambda: listens(port), process)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            asked = REQUEST | {"max_tokens": 200}
            client.sendall(raw_request("/v1/completions", asked))
            process.send_signal(signal.SIGTERM)
            with os.fdopen(reading) as log:
                said = log.read()
            assert b"[DONE]" in received(client)
        assert process.wait(60) == 0
        assert said.endswith("drains\nserve  stopped\n")
    finally:
        process.kill()
        process.wait()


def test_a_stage_that_ends_while_a_model_is_loaded_is_not_taken_for_it(
    tmp_path, base_folder, monkeypatch
):
    early, late = (tmp_path / stage / "model" for stage in ("pretrain", "sft"))
    shutil.copytree(base_folder, early)
    monkeypatch.setattr(Batch, "warm", lambda _: shutil.copytree(base_folder, late))
    monkeypatch.setattr(Engine, "run", lambda _: None)
    ours, theirs = Pipe()
    decode(theirs, SimpleQueue(), [tmp_path], 1, None, None, {"device": "cpu"})
    (served,) = ours.recv().values()
    assert served.folder == early


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def listens(port):
    """Whether a server listens on a port of loopback, without a connection to it."""
    listening = f" 0100007F:{port:04X} 00000000:0000 0A "
    return listening in Path("/proc/net/tcp").read_text()
