"""One trainer per folder: the lock of a living trainer holds, that of a dead one does not."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nanoeuler.errors import UserError
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


@pytest.mark.parametrize(("silent_for", "refused"), [(0, True), (SILENT_SECONDS + 10, False)])
def test_a_holder_on_another_host_is_judged_by_its_heartbeat(tmp_path, silent_for, refused):
    lock = tmp_path / "lock.json"
    lock.write_text(
        json.dumps(
            {"host": "elsewhere", "pid": 1, "process_start": "1", "job": "77", "since": "today"}
        )
    )
    os.utime(lock, (time.time() - silent_for,) * 2)
    if refused:
        with pytest.raises(UserError, match="process 1 on elsewhere, job 77"), FolderLock(tmp_path):
            pass
    else:
        with FolderLock(tmp_path):
            pass


def test_a_process_number_used_again_is_not_the_holder(tmp_path):
    with FolderLock(tmp_path) as lock:
        identity = dict(lock.identity)
    (tmp_path / "lock.json").write_text(json.dumps(identity | {"process_start": "long ago"}))
    with FolderLock(tmp_path):
        pass
