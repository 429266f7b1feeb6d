"""Which GPU a process takes; no GPU is needed to ask."""

import os
import subprocess
import sys

from nanoeuler.backend.cuda.device import peak_flops

TAKE = """
import sys
from nanoeuler.backend.cuda.device import take_free
names = dict(enumerate(sys.argv[1:]))
print(take_free(names)[0], flush=True)
print(take_free(names)[0], flush=True)
input()
"""


def start(folder, *names):
    """A process that takes one of the devices with these names, twice."""
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, *(names or ("a", "b"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.getcwd()},
    )


def taken(process):
    return [int(process.stdout.readline()) for _ in range(2)]


def test_two_processes_take_two_devices_and_each_keeps_its_own(tmp_path):
    first = start(tmp_path)
    assert taken(first) == [0, 0]
    second = start(tmp_path)
    assert taken(second) == [1, 1]
    third = start(tmp_path)  # none is left: it shares the first
    assert taken(third) == [0, 0]
    third.communicate("\n")
    first.kill()
    first.communicate()
    fourth = start(tmp_path)
    assert taken(fourth) == [0, 0]
    for process in (second, fourth):
        process.communicate("\n")


def test_a_device_that_was_renumbered_is_still_the_same_device(tmp_path):
    first = start(tmp_path, "3", "1")
    assert taken(first) == [0, 0]
    second = start(tmp_path, "3", "2")
    assert taken(second) == [1, 1]
    for process in (first, second):
        process.communicate("\n")


def test_the_peak_of_a_device_that_is_not_listed_is_unknown():
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA Something", "bf16") is None
