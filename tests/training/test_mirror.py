"""Checkpoints outlive a machine: they are copied while training, and a fresh folder fetches them.

A machine is a folder here; object storage is moto's server on loopback, with faults before it.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from nanoeuler.config import load
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.storage.stores import open_store, reason
from nanoeuler.training import mirror as module
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.mirror import Mirror
from tests.training.conftest import Trainer
from tests.waiting import wait_until

FREQUENT, RARE = 0.001, 10  # minutes between checkpoints
SECRET = "a-key-that-no-log-may-hold"
BUCKET = "bucket"


class Quiet(WSGIRequestHandler):
    def log(self, *_):
        pass


class Cloud:
    """Object storage; `fault` is told each method and path, may wait, and may return a status."""

    def __init__(self):
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self.answer, threaded=True, request_handler=Quiet)
        self.bucket = s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
        self.fault = lambda method, path: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request, start):
        if status := self.fault(request["REQUEST_METHOD"], request["PATH_INFO"]):
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Type", "application/xml")])
            return [f"<Error><Code>Refused</Code><Message>{SECRET}?</Message></Error>".encode()]
        return self.moto(request, start)

    @property
    def files(self) -> dict[str, bytes]:
        """Content by the last part of the name."""
        keys = list(self.bucket.keys.items())
        return {name.rpartition("/")[2]: key.value for name, key in keys}

    @property
    def steps(self) -> list[int]:
        """Those of the pointer."""
        pointer = json.loads(self.files.get("newest.json", b'{"checkpoints": []}'))
        return [each["step"] for each in pointer["checkpoints"]]


@pytest.fixture(scope="module")
def one_cloud():
    cloud = Cloud()
    yield cloud
    cloud.server.shutdown()
    cloud.server.server_close()


@pytest.fixture
def cloud(one_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{one_cloud.server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    one_cloud.bucket.keys.clear()
    one_cloud.fault = lambda method, path: None
    return one_cloud


# ---- trainers, as processes


def mirrored(trainer: Trainer, address: str, minutes: float) -> Trainer:
    trainer.config["checkpoint_mirror"] = address
    trainer.config["pretrain"]["checkpoint_minutes"] = minutes
    return trainer


def fresh(trainer: Trainer, name: str) -> Trainer:
    """The same training on a machine that has no results."""
    other = Trainer(trainer.data, trainer.output / name)
    other.config = trainer.config
    return other


def measured(trainer: Trainer) -> list:
    return [
        (entry["step"], entry.get("loss"), entry.get("validation"))
        for entry in trainer.metrics()
        if "step" in entry
    ]


def test_killed_in_mid_copy_a_fresh_machine_takes_the_copy_before(trainer, uninterrupted, cloud):
    """While a copy hangs, training and its checkpoints go on."""
    hangs = threading.Event()

    def fault(method, path):
        if method == "PUT" and cloud.steps and not hangs.is_set():
            hangs.wait()

    cloud.fault = fault
    first = mirrored(trainer, f"s3://{BUCKET}/runs/mine", FREQUENT)
    process = first.start_until(1)
    wait_until(lambda: cloud.steps and len(first.checkpoints()) == 2, process)
    copied = cloud.steps[-1]
    wait_until(lambda: first.checkpoints()[-1].name > f"step-{copied + 3:08d}", process)
    process.kill()
    _, said = process.communicate()
    hangs.set()
    assert cloud.steps[-1] == copied
    second = mirrored(fresh(first, "second"), f"s3://{BUCKET}/runs/mine", RARE)
    said += second.run()
    assert f"going on from step {copied} of 60" in said
    assert second.weights() == uninterrupted.weights()
    assert measured(second) == measured(uninterrupted)
    assert cloud.steps == [60]
    texts = [path.read_bytes() for path in trainer.output.rglob("*") if path.is_file()]
    assert SECRET.encode() not in b"".join([*texts, *cloud.files.values(), said.encode()])


def test_training_ends_well_while_storage_is_full(trainer, cloud):
    def full(method, path):
        return method == "PUT" and not path.endswith(".json") and "507 Insufficient Storage"

    cloud.fault = full
    said = mirrored(trainer, f"s3://{BUCKET}", RARE).run()
    assert "a checkpoint was not copied (s3://bucket: " in said
    assert "PutObject operation: …?); training goes on" in said
    assert trainer.metrics()[-1]["finished"]
    assert not cloud.steps


@pytest.mark.parametrize("why", ["no such bucket", "no such disk"])
def test_without_checkpoints_a_mirror_that_cannot_be_used_stops_the_start(
    trainer, cloud, tmp_path, why
):
    """Else training from the beginning would take the place of what cannot be seen now."""
    address = "s3://other/runs" if why == "no such bucket" else str(tmp_path / "unmounted/runs")
    said = mirrored(trainer, address, RARE).run(status=1)
    assert f"checkpoint_mirror: {address}" in said
    assert "set checkpoint_mirror: null" in said
    assert "Traceback" not in said
    assert not trainer.checkpoints()


def test_what_could_not_be_copied_is_copied_by_the_next_start(trainer, tmp_path):
    """Training goes on without its mirror. Where it was finished, nothing is trained again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    trainer.config["pretrain"] |= {"keep": "best", "validate_every": 15}
    mirrored(trainer, str(disk / "runs"), RARE).stop_at(20, signal.SIGTERM)
    last = trainer.checkpoints()[-1].name.removeprefix("step-")
    assert named(disk / "runs", int(last), "state.json").exists(), "before the end"
    disk.rename(tmp_path / "unmounted")
    said = trainer.run()
    assert "going on from the checkpoint that is here" in said
    assert "a checkpoint was not copied" in said
    assert not disk.exists()
    (tmp_path / "unmounted").rename(disk)
    assert "exporting its model again" in trainer.run()
    second = fresh(trainer, "second")
    said = second.run()
    assert "exporting its model again" in said
    assert second.weights() == trainer.weights()


# ---- a mirror at a path, by itself

MODEL = ModelConfig(vocab_size=16, dim=8, layers=1, heads=1, kv_heads=1, ffn=8, context=8)


class Machine:
    """Has checkpoints, and a mirror at a path."""

    def __init__(self, results: Path, place: Path | str, fingerprint: str = "a" * 64):
        self.checkpoints = Checkpoints(results / "checkpoints")
        self.checkpoints.folder.mkdir(parents=True)
        self.job = SimpleNamespace(stage="pretrain", fingerprint=fingerprint, output=results)
        self.mirror = Mirror(str(place), self.job, self.checkpoints)

    def save(self, *steps: int) -> None:
        """Have these checkpoints and no others, and copy them."""
        self.checkpoints.remove_all_but(set(steps))
        for step in set(steps) - set(self.checkpoints.steps()):
            self.write(step)
        self.mirror.ended = False
        with self.mirror.at_work():
            self.mirror.take()

    def write(self, step: int) -> None:
        array = np.full(FlatBuffer.elements(MODEL), step, np.float32)
        info = {"fingerprint": self.job.fingerprint, "stage": "pretrain"}
        self.checkpoints.save(step, MODEL, {"parameters": array, "m": array}, info)

    @property
    def files(self) -> dict[str, bytes]:
        folder = self.checkpoints.folder
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "mirror"


def folder_of(place: Path) -> Path:
    (folder,) = place.iterdir()
    return folder


def named(place: Path, step: int, name: str, pointer: str = "newest.json") -> Path:
    """A file of a checkpoint in the mirror."""
    checkpoints = json.loads((folder_of(place) / pointer).read_text())["checkpoints"]
    (found,) = [each for each in checkpoints if each["step"] == step]
    return folder_of(place) / found["files"][name]["sha256"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_fresh_machine_has_what_the_first_had(tmp_path, place, scheme):
    first = Machine(tmp_path / "first", f"{scheme}{place}")
    first.save(10, 20, 30)
    second = Machine(tmp_path / "second", place)
    assert second.mirror.fetch(None)
    assert second.files == first.files
    assert not second.mirror.fetch(30), "nothing there goes further"


def test_a_damaged_file_costs_a_checkpoint_and_is_replaced(tmp_path, place):
    first = Machine(tmp_path / "first", place)
    first.save(10, 20)
    file = named(place, 20, "optimizer.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\x01")
    second = Machine(tmp_path / "second", place)
    assert second.mirror.fetch(None)
    assert second.checkpoints.newest()["step"] == 10
    assert second.checkpoints.steps() == [10]
    second.save(10, 20)  # trained again, to the same bits
    assert file.read_bytes() == whole


@pytest.mark.parametrize("pointer", [b"", b'{"version": 1', b"[]", b'{"version": 1, "seal": 1}'])
def test_of_a_damaged_pointer_the_one_before_counts(tmp_path, place, pointer):
    first = Machine(tmp_path / "first", place)
    first.save(10)
    first.save(10, 20)
    (folder_of(place) / "newest.json").write_bytes(pointer)
    second = Machine(tmp_path / "second", place)
    assert second.mirror.fetch(None)
    assert second.checkpoints.steps() == [10]
    (folder_of(place) / "before.json").write_bytes(pointer)
    third = Machine(tmp_path / "third", place)
    with pytest.raises(UserError, match="both pointers to checkpoints are damaged"):
        third.mirror.fetch(None)
    assert not second.mirror.fetch(10), "a checkpoint is here"


def test_files_that_no_pointer_names_are_deleted(tmp_path, place, monkeypatch):
    machine = Machine(tmp_path / "first", place)
    machine.save(10)
    (folder_of(place) / "notes.txt").write_text("somebody's")
    (folder_of(place) / ("f" * 64)).write_text("of a copy that was broken off")
    with monkeypatch.context() as full:
        full.setattr(machine.mirror.store, "write", lambda *_: open_store("", "it is full"))
        machine.save(15)
    assert not (folder_of(place) / ("f" * 64)).exists(), "it may be what fills the disk"
    old = named(place, 10, "model.safetensors")
    machine.save(20)
    assert old.exists(), "a machine that reads the pointer before may need it"
    machine.save(30)
    assert not old.exists()
    assert (folder_of(place) / "notes.txt").exists()
    hashes = [path for path in folder_of(place).iterdir() if len(path.name) == 64]
    assert len(hashes) == 6


def test_a_folder_that_has_lost_its_checkpoints_leaves_the_mirror_as_it_is(tmp_path, place):
    machine = Machine(tmp_path / "first", place)
    machine.save(10)
    machine.save()
    assert named(place, 10, "model.safetensors").exists()


def test_another_training_finds_nothing_and_changes_nothing(tmp_path, place):
    first = Machine(tmp_path / "first", place)
    first.save(10)
    kept = {path: path.read_bytes() for path in folder_of(place).iterdir()}
    other = Machine(tmp_path / "second", place, fingerprint="b" * 64)
    assert not other.mirror.fetch(None)
    other.save(5)
    assert {path: path.read_bytes() for path in kept} == kept
    moved = place / f"pretrain-{'b' * 16}"
    for path in kept:
        (moved / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="of other settings"):
        Machine(tmp_path / "third", place, fingerprint="b" * 64).mirror.fetch(None)


def test_a_newer_version_of_a_pointer_is_refused(tmp_path, place, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(module, "VERSION", 2)
        Machine(tmp_path / "first", place).save(10)
    with pytest.raises(UserError, match="a newer version of nanoeuler"):
        Machine(tmp_path / "second", place).mirror.fetch(None)


def test_a_slow_copy_leaves_checkpoints_out_and_the_end_gives_up_where_nothing_moves(
    tmp_path, place, monkeypatch, caplog
):
    caplog.set_level("INFO", "nanoeuler")
    machine, moves = Machine(tmp_path / "first", place), threading.Event()
    mirror, copied = machine.mirror, []
    write, copy = mirror.store.write, mirror.copy

    def slow_write(*given):
        moves.wait()
        write(*given)

    def noted_copy(pointer):
        copied.append(module.last_step(pointer))
        copy(pointer)

    monkeypatch.setattr(mirror.store, "write", slow_write)
    monkeypatch.setattr(mirror, "copy", noted_copy)
    with mirror.at_work():
        machine.write(10)
        mirror.take()
        wait_until(lambda: copied == [10])
        for step in (20, 30):
            machine.write(step)
            machine.checkpoints.remove_all_but({step})
            mirror.take()
        assert len(list(mirror.outbox.iterdir())) == 6, "of the steps 10 and 30"
        moves.set()
    assert copied == [10, 30]
    assert named(place, 30, "model.safetensors").exists()
    assert [path.name for path in machine.checkpoints.folder.iterdir()] == ["step-00000030"]
    moves.clear()
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.1)
    mirror.ended = False
    with mirror.at_work():
        machine.write(40)
        mirror.take()
    assert copied == [10, 30, 40]
    assert "no byte for 0 s" in caplog.text
    moves.set()


# ---- addresses


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("s3://bucket/x", "install the extra `s3`: make install EXTRAS=s3"),
        ("gs://bucket/x", "install gcsfs"),
        ("nothing://x", "Protocol not known: nothing"),
        ("s3://", "names no bucket, host or folder"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_with_its_remedy(address, problem, monkeypatch):
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"^{address}: .*{problem}"):
        open_store(address, "pretrain")


@pytest.mark.parametrize(
    "address", [f"ftp://me:{SECRET}@host/x", f"abfs://x@y/z?sig={SECRET}", f"s3://a:{SECRET}@b/c"]
)
def test_an_address_with_a_credential_is_refused_without_saying_it(address):
    overrides = [f"checkpoint_mirror={address}"]
    with pytest.raises(UserError, match="holds a password, a token or a line end") as of_config:
        load("config/config.yaml", overrides)
    with pytest.raises(UserError, match="holds a password or a token") as of_trainer:
        open_store(address, "pretrain")
    assert SECRET not in f"{of_config.value} {of_trainer.value}"


def test_errors_are_quoted_without_credentials(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    error = OSError(f"GET https://me:pw@host/x?X-Amz-Signature=00ff: {SECRET}\nrefused")
    assert reason(error) == "GET https://…@host/x?… …\nrefused".replace("\n", " ")
