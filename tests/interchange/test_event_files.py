"""A run's curves as event files, read back by their own format."""

import json
import struct
import subprocess
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event

from nanoeuler.errors import UserError
from nanoeuler.interchange.event_files import write_events
from tests.waiting import wait_until

HEADER = {"stage": "pretrain", "started": "2026-01-02T03:04:05Z", "config": {}}
RATES = {"learning_rate": 0.5, "gradient_norm": 2.0, "tokens_per_second": 1000.0}
STEPS = [
    {"step": 10, "tokens": 640, "seconds": 1.5, "loss": 5.25, "mfu": None} | RATES,
    {"step": 20, "tokens": 1280, "seconds": 3.0, "loss": 4.5, "mfu": 0.25} | RATES,
    {"step": 20, "tokens": 1280, "seconds": 3.5, "validation": {"books": 2.5, "web": 3.0}},
]
FINISHED = {"step": 20, "tokens": 1280, "seconds": 4.0, "finished": True}
IMPATIENT = """
import sys
from nanoeuler.cli import main
from nanoeuler.interchange import event_files
event_files.POLL_SECONDS = 0.1
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "demo"
    add(folder / "pretrain", HEADER, *STEPS)
    add(folder / "sft", HEADER | {"stage": "sft"}, STEPS[0], FINISHED)
    return folder


def add(stage, *lines):
    stage.mkdir(parents=True, exist_ok=True)
    with open(stage / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def events(folder):
    """(name, step, time, value) of all records; each lies between its length and checksums."""
    (path,) = folder.glob("events.out.tfevents.*")
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + size])
        found += [
            (value.tag, event.step, event.wall_time, value.simple_value)
            for value in event.summary.value
        ]
        at += 16 + size
    return found


def test_every_curve_of_every_stage(run, tmp_path):
    folders = write_events(run, tmp_path / "events")
    assert folders == [tmp_path / "events/demo" / stage for stage in ("pretrain", "sft")]
    began = 1_767_323_045.0
    curves = [each for each in events(folders[0]) if each[0] not in RATES]
    assert curves == [
        ("tokens", 10, began + 1.5, 640),
        ("loss", 10, began + 1.5, 5.25),
        ("tokens", 20, began + 3, 1280),
        ("loss", 20, began + 3, 4.5),
        ("mfu", 20, began + 3, 0.25),
        ("tokens", 20, began + 3.5, 1280),
        ("validation/books", 20, began + 3.5, 2.5),
        ("validation/web", 20, began + 3.5, 3.0),
    ]
    names = [name for name, *_ in events(folders[1])]
    assert names == ["tokens", "loss", *RATES, "tokens"]


def test_it_follows_a_run_until_its_end(run, tmp_path):
    words = "events", run, "--output", tmp_path / "out", "--follow"
    process = subprocess.Popen([sys.executable, "-c", IMPATIENT, *map(str, words)])
    written = tmp_path / "out/demo/pretrain"
    try:
        wait_until(lambda: any(written.glob("*")) and len(events(written)) >= 14, process)
        add(run / "pretrain", STEPS[1] | {"step": 30}, FINISHED | {"step": 30})
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert [step for name, step, *_ in events(written) if name == "loss"] == [10, 20, 30]


def test_what_cannot_be_written(run, tmp_path, command):
    with pytest.raises(UserError, match=r"holds no stage's metrics\.jsonl"):
        write_events(tmp_path, tmp_path / "out")
    words = "events", run, "--output", tmp_path / "out"
    assert command(*words)[0] == 0
    status, _, said = command(*words)
    assert status == 1
    assert "pretrain: there already; delete it, or give another folder with --output" in said
