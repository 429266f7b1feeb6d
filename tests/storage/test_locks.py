"""A user's locks lie in a folder of their own, follow no links, and hold while they are held."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.storage.temporary import lock_file, lock_path
from tests.waiting import CEILING, wait_until


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The machine's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_lock_is_held_by_one_process_and_goes_with_it():
    code = (
        "import sys; from pathlib import Path; from nanoeuler.storage.temporary import lock_file\n"
        "held = lock_file(Path(sys.argv[1]), wait=False)\n"
        "print(held is not None, flush=True); input()"
    )
    path = lock_path("gpu-0")
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "True\n"
    assert lock_file(path, wait=False) is None
    holder.kill()
    holder.communicate()
    lock_file(path, wait=False).close()


def test_the_folder_is_the_users_own(temporary):
    folder = temporary / f"nanoeuler-{os.getuid()}"
    assert lock_path("x").parent == folder
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "file", "open to all"])
def test_a_folder_that_others_have_prepared_is_refused(temporary, kind):
    folder = temporary / f"nanoeuler-{os.getuid()}"
    if kind == "link":
        (temporary / "theirs").mkdir()
        folder.symlink_to(temporary / "theirs")
    elif kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(UserError, match="only you can write to"):
        lock_path("x")


def test_a_link_is_not_followed(temporary):
    (temporary / "precious").write_text("hi")
    path = lock_path("gpu-0")
    path.symlink_to(temporary / "precious")
    with pytest.raises(UserError, match="a link in the place of a lock"):
        lock_file(path, wait=False)


def test_a_lock_whose_file_was_deleted_is_not_taken_for_the_lock():
    """The waiting process gets the lock of a file that no longer has the name, and asks again."""
    path, got = lock_path("host"), []
    held = lock_file(path, wait=False)
    waiting = threading.Thread(target=lambda: got.append(lock_file(path, wait=True)))
    waiting.start()
    wait_until(lambda: waiting_for_lock(path))
    path.unlink()
    held.close()
    waiting.join(timeout=CEILING)
    assert lock_file(path, wait=False) is None
    got[0].close()


def waiting_for_lock(path: Path) -> bool:
    """Whether Linux lists somebody who waits for the lock of `path`."""
    number = str(path.stat().st_ino)
    return any(
        " -> FLOCK" in line and line.split()[6].endswith(f":{number}")
        for line in Path("/proc/locks").read_text().splitlines()
    )
