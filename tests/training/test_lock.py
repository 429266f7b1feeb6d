"""One trainer per folder: the lock of a living trainer holds, that of a dead one does not."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from nanoeuler.errors import UserError
from nanoeuler.storage.files import sha256_text
from nanoeuler.training.lock import SILENT_SECONDS, FolderLock

HOLD = """
import sys, time
from pathlib import Path
from nanoeuler.training.lock import FolderLock

with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_trainer_is_refused_with_the_first_ones_name(tmp_path, holder):
    with (
        pytest.raises(
            UserError,
            match=rf"process {holder.pid} on .*; wait for it, or stop it with 'kill {holder.pid}'",
        ),
        FolderLock(tmp_path),
    ):
        pass


def test_a_killed_holder_is_succeeded_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()


def test_the_lock_goes_with_its_holder(tmp_path):
    with FolderLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def take_lock(lock, silent_for, words):
    """Take a lock whose holder has been silent for so long; with `words` it is refused."""
    os.utime(lock, (time.time() - silent_for,) * 2)
    refusal = pytest.raises(UserError, match=words) if words else nullcontext()
    with refusal, FolderLock(lock.parent):
        pass


@pytest.mark.parametrize(("silent_for", "refused"), [(0, True), (SILENT_SECONDS + 10, False)])
def test_a_holder_on_another_host_is_judged_by_its_heartbeat(tmp_path, silent_for, refused):
    lock = tmp_path / "lock.json"
    lock.write_text(
        json.dumps(
            {"host": "elsewhere", "pid": 1, "process_start": "1", "job": "77", "since": "today"}
        )
    )
    take_lock(lock, silent_for, "process 1 on elsewhere, job 77" if refused else None)


@pytest.mark.parametrize("content", ["", "null", "[]", "5", '{"pid"', "[" * 5000])
@pytest.mark.parametrize(("silent_for", "refused"), [(0, True), (SILENT_SECONDS + 10, False)])
def test_a_damaged_lock_holds_for_a_while(tmp_path, content, silent_for, refused):
    lock = tmp_path / "lock.json"
    lock.write_text(content)
    take_lock(lock, silent_for, r"lock\.json is damaged" if refused else None)


def test_a_holder_in_another_container_of_the_same_name_keeps_its_lock(tmp_path, holder):
    """There, another process, or none, has the holder's number; the system's lock tells the truth.

    The file is changed in place, as it is the file that the holder has locked.
    """
    lock = tmp_path / "lock.json"
    identity = json.loads(lock.read_text())
    assert identity["flock"]
    lock.write_text(json.dumps(identity | {"pid": 2**22 + 1, "processes": "pid:[1]"}))
    # here, its number is another program's
    told = "another trainer is at work.*; wait for it, or stop it where it runs, on .*, and run"
    with pytest.raises(UserError, match=told), FolderLock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with FolderLock(tmp_path):
        pass


@pytest.mark.parametrize(
    ("changed", "silent_for", "refused"),
    [
        ({"processes": "pid:[1]"}, 0, True),  # nothing but the heartbeat tells
        ({"processes": "pid:[1]"}, SILENT_SECONDS + 10, False),
        ({"boot": "another machine of this name"}, 0, True),
        ({"boot": "another machine of this name"}, SILENT_SECONDS + 10, False),
        ({}, 0, False),  # its process is gone
    ],
)
def test_without_locks_of_the_system_process_and_heartbeat_decide(
    tmp_path, changed, silent_for, refused
):
    with FolderLock(tmp_path) as held:
        identity = held.identity | {"flock": False, "pid": 2**22 + 1} | changed
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps(identity))
    take_lock(lock, silent_for, "another trainer is at work" if refused else None)


RACE = """
import sys, time
from pathlib import Path
from nanoeuler.errors import UserError
from nanoeuler.training.lock import FolderLock

folder = Path(sys.argv[1])
for line in sys.stdin:
    trial = folder / line.strip()
    while not (trial / "go").exists():
        pass
    try:
        with FolderLock(trial):
            print("held", flush=True)
            while not (trial / "end").exists():
                time.sleep(0.001)
    except UserError as error:
        assert "another trainer is at work" in str(error), error
        print("refused", flush=True)
"""


@pytest.mark.parametrize("flock", [True, False])
def test_of_many_that_find_a_dead_holder_exactly_one_succeeds_it(tmp_path, flock):
    with FolderLock(tmp_path / "dead") as dead:
        holder = json.dumps(dead.identity | {"pid": 2**22 + 1, "flock": flock})
    successor = json.dumps(json.loads(holder) | {"token": "of one who died at once"})
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for trial in range(30):
        folder = tmp_path / str(trial)
        folder.mkdir()
        (folder / "lock.json").write_text(holder)
        if trial % 3 == 0:  # a successor was killed before it could replace the lock
            (folder / f".lock.after-{sha256_text(holder)[:16]}").write_text(successor)
        for racer in racers:
            racer.stdin.write(f"{trial}\n")
            racer.stdin.flush()
        (folder / "go").touch()
        assert sorted(racer.stdout.readline() for racer in racers) == ["held\n"] + 7 * ["refused\n"]
        (folder / "end").touch()
    for racer in racers:
        racer.communicate()


def test_a_process_number_used_again_is_not_the_holder(tmp_path):
    with FolderLock(tmp_path) as lock:
        identity = dict(lock.identity)
    (tmp_path / "lock.json").write_text(json.dumps(identity | {"process_start": "long ago"}))
    with FolderLock(tmp_path):
        pass


def test_a_copy_of_a_dead_lock_in_the_place_of_its_successor_is_no_riddle(tmp_path):
    dead = json.dumps({"host": "elsewhere", "pid": 1})
    for name in ("lock.json", f".lock.after-{sha256_text(dead)[:16]}"):
        (tmp_path / name).write_text(dead)
        os.utime(tmp_path / name, (time.time() - SILENT_SECONDS - 10,) * 2)
    with FolderLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
