"""Which adapter is taken, and what is said where there is none or no more memory."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.backend import make_backend, reason, webgpu_problem
from nanoeuler.backend.webgpu import device
from nanoeuler.backend.webgpu.device import Device, adapters, rank
from nanoeuler.backend.webgpu.kernels import Kernels
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import make_blocks

INFO = [sys.executable, "-m", "nanoeuler", "info", "--device", "webgpu"]


def adapter(kind, interface="Vulkan", vendor=0x1002):
    info = {"adapter_type": kind, "backend_type": interface, "vendor_id": vendor, "device": kind}
    return SimpleNamespace(info=info)


def test_a_card_of_its_own_comes_first_and_software_last():
    kinds = ["CPU", "IntegratedGPU", "Unknown", "DiscreteGPU"]
    found = sorted(map(adapter, kinds), key=rank)
    assert [each.info["adapter_type"] for each in found] == [
        *("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
    ]
    two = adapter("DiscreteGPU", "D3D12"), adapter("DiscreteGPU", "Vulkan")
    assert min(two, key=rank) is two[1]


@pytest.fixture
def dev(monkeypatch, tmp_path):
    """As /dev of a machine with a GPU, whose render node it is."""
    pytest.importorskip("wgpu")
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri/renderD128").touch()
    return tmp_path


def test_auto_asks_wgpu_only_where_there_may_be_a_gpu(monkeypatch, dev):
    monkeypatch.setattr(device, "adapters", lambda: [adapter("DiscreteGPU")])
    monkeypatch.setattr(sys, "platform", "linux")
    assert webgpu_problem() is None
    (dev / "dri/renderD128").rename(dev / "dri/card0")  # a screen alone
    assert webgpu_problem() == f"no GPU shows itself in {dev}"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert webgpu_problem() is None


def test_auto_takes_no_software_and_no_card_that_is_hidden(monkeypatch, dev):
    monkeypatch.setattr(device, "adapters", lambda: [adapter("CPU")])
    assert "no GPU answers" in webgpu_problem()
    monkeypatch.setattr(device, "adapters", lambda: [adapter("DiscreteGPU", vendor=device.NVIDIA)])
    assert webgpu_problem() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "no GPU answers" in webgpu_problem()


def test_an_adapter_is_named_with_its_kind(engine):
    if engine.device.software:
        assert make_backend("auto").name != "webgpu"
        assert f"WebGPU reaches {engine.device.name} (software, by Vulkan)" in reason()
    assert make_backend("webgpu").environment()["device"] == engine.device.name


def test_without_an_adapter_one_sentence_says_so():
    pytest.importorskip("wgpu")
    hidden = {"VK_ICD_FILENAMES": os.devnull, "VK_DRIVER_FILES": os.devnull}
    if sys.platform != "linux":
        pytest.skip("only Vulkan's loader can be told to find no driver")
    found = subprocess.run(INFO, capture_output=True, text=True, env=os.environ | hidden)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].endswith(
        "--device webgpu: no GPU answers by Vulkan, Metal or Direct3D 12; install its driver"
    )


def test_without_wgpu_one_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    device.device.cache_clear()
    try:
        with pytest.raises(UserError, match=r"wgpu is not installed; install it with make"):
            make_backend("webgpu")
    finally:
        device.device.cache_clear()


def test_it_contradicts_a_request_for_no_gpu():
    with pytest.raises(UserError, match="--device webgpu with --gpus 0 contradict each other"):
        make_backend("webgpu", gpus=0)


def test_more_memory_than_there_is_is_asked_for(engine):
    with pytest.raises(MemoryError, match=r"gives no .* MB at once .*micro_batch_rows"):
        engine.empty((1 << 40,))


def test_an_array_that_no_kernel_can_see_is_named(engine, monkeypatch):
    monkeypatch.setattr(engine.kernels, "most_bytes", 1000)
    with pytest.raises(UserError, match=r"the array 'x' \(20, 20\) has 0 MB"):
        engine.gelu(engine.zeros((20, 20)), engine.zeros((20, 20)))


def test_heads_that_the_kernels_cannot_read_are_refused(engine):
    config = ModelConfig.from_dict({"preset": "small", "head_size": 6})
    with pytest.raises(UserError, match="must be a multiple of 4"):
        engine.check_form(make_blocks(config)[0].form, config.dim)


def test_a_lost_device_ends_the_work_with_a_sentence(engine):
    kernels = Kernels(Device(adapters()[0]))
    array, other = (kernels.from_host(np.ones(4, np.float32)) for _ in range(2))
    with kernels.recording() as recorded:
        kernels.copy(array, other)
    kernels.finish()
    kernels.opened.destroy()
    for work in (
        lambda: kernels.to_host(array),
        lambda: kernels.write(array, np.ones(4, np.float32)),
        lambda: kernels.empty((4,), np.float32),
        lambda: kernels.fill(array, 2.0),
        lambda: kernels.replay(recorded),
    ):
        with pytest.raises(UserError, match=r"is lost .* run the same command again"):
            work()
