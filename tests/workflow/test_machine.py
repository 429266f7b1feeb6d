"""The workflow uses the machine as it finds it: GPUs, interpreter, this checkout."""

import os
import sys
import venv
from pathlib import Path

import pytest

from nanoeuler.model.config import PRESETS
from nanoeuler.system.processes import STARTER, identity
from nanoeuler.workflow.jobs import training_megabytes
from nanoeuler.workflow.machine import (
    ALL_CORES,
    job_environment,
    limits,
    model_threads,
    usable_gpus,
)

NVIDIA_SMI = (
    "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n"
)


@pytest.fixture
def driver(tmp_path, monkeypatch) -> Path:
    """A folder with an nvidia-smi that tells of two GPUs, first on the PATH."""
    tool = tmp_path / "driver/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tool.parent


def test_gpus_are_counted_when_the_driver_answers(driver, monkeypatch):
    assert usable_gpus() == 2
    assert usable_gpus("cpu") == usable_gpus("reference") == 0
    assert usable_gpus("webgpu") == 1  # of any maker
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert usable_gpus() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert usable_gpus() == 0


def test_without_a_driver_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert usable_gpus() == 0


def test_a_driver_that_fails_counts_as_none(driver):
    (driver / "nvidia-smi").write_text("#!/bin/sh\necho no devices were found\nexit 9\n")
    assert usable_gpus() == 0


def test_a_job_on_a_gpu_leaves_cores_to_those_on_the_others():
    assert model_threads(0) == ALL_CORES
    assert 1 <= model_threads(2) < 16


def test_given_limits_are_left_alone(driver):
    assert limits({"device": "auto"})["gpu"] == 2
    assert set(limits({"device": "auto"}, given={"gpu"})) == {"mem_mb", "mirror_connections"}


@pytest.mark.parametrize(
    ("options", "gpus"), [([], 1), (["--resources", "gpu=0"], 0), (["--config", "device=cpu"], 0)]
)
def test_a_gpu_is_used_when_there_is_one_and_can_be_forbidden(checkout, driver, options, gpus):
    printed = checkout.run("-n", "-p", "pretrain", *options)
    assert f"--gpus {gpus} --log results/trial/pretrain/train.log" in printed


def test_jobs_run_this_interpreter_and_this_checkout_whatever_is_active(checkout, tmp_path):
    other = tmp_path / "other"
    venv.create(other)
    (other / "packages/nanoeuler").mkdir(parents=True)
    (other / "packages/nanoeuler/__init__.py").write_text("raise ImportError('another nanoeuler')")
    environment = {
        "PATH": f"{other}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{other}/packages",
        "VIRTUAL_ENV": str(other),
    }
    checkout.run("check_gradients", environment=environment)
    written = (checkout.path / "results/trial/gradients.json").read_text()
    assert written.startswith(f"{sys.executable} {checkout.path}/nanoeuler/__main__.py")


def test_the_environment_of_jobs_is_not_repeated(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = job_environment("/checkout")
    assert environment == {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
        "PYTHONPATH": "/checkout",
        STARTER: identity(os.getpid()),  # with which they end
    }


def test_the_memory_asked_for_follows_the_model():
    small, large = ({"model": PRESETS[name]} for name in ("small", "large"))
    assert 1500 < training_megabytes(small) < 2000
    assert 16_000 < training_megabytes(large) < 24_000
