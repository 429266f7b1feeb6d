"""Joules by the counters that there are, through wraps and losses."""

import logging
import time

import pytest

from nanoeuler.system import energy
from nanoeuler.system.energy import CPU, GPU, Meter
from tests.energy import RANGE, count, zone
from tests.waiting import wait_until


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    return tmp_path


def test_packages_and_memory_count_and_nothing_twice(powercap):
    files = {
        name: zone(powercap, number, name, 5)
        for number, name in (
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:0:1", "dram"),
            ("intel-rapl:2", "psys"),
        )
    }
    mmio = zone(powercap, "intel-rapl-mmio:0", "package-0")
    meter = Meter(None, cpu=True)
    assert meter.joules() == {CPU: 0.0}
    for amount, file in enumerate([*files.values(), mmio]):
        count(file, 5 + 10**amount * 1_000_000)
    assert meter.joules() == {CPU: 1.0 + 10.0 + 1000.0}


def test_a_counter_that_wraps_goes_on(powercap):
    file = zone(powercap, "intel-rapl:0", "package-0", RANGE - 999_999)
    meter = Meter(None, cpu=True)
    for microjoules, joules in ((1_000_000, 2.0), (3_000_000, 4.0), (2_999_999, 4.0 + RANGE / 1e6)):
        count(file, microjoules)
        assert meter.joules() == {CPU: pytest.approx(joules)}


def test_a_counter_that_vanishes_is_told_once_and_counts_no_more(powercap, caplog):
    caplog.set_level(logging.INFO)
    file = zone(powercap, "intel-rapl:0", "package-0")
    zone(powercap, "intel-rapl:1", "package-1")
    meter = Meter(None, cpu=True)
    file.unlink()
    assert meter.joules() == meter.joules() == {}
    (said,) = caplog.messages
    assert said.startswith(f"notice  {file}: cannot be read any more (")
    assert said.endswith("); this stage's energy is not measured")


@pytest.mark.parametrize("text", ["", "secret\n"])
def test_without_a_counter_nothing_is_measured(powercap, text):
    assert Meter(None, cpu=True).joules() == {}
    zone(powercap, "intel-rapl:0", "package-0").write_text(text)  # as of a strange kernel
    assert Meter(None, cpu=True).joules() == {}
    assert Meter(None, cpu=False).joules() == {CPU: 0.0}  # another process counts


def test_counters_are_read_before_they_wrap_twice(powercap, monkeypatch):
    monkeypatch.setattr(energy, "READ_SECONDS", 0.01)
    file = zone(powercap, "intel-rapl:0", "package-0")
    meter = Meter(None, cpu=True)
    (zones,) = meter.counters[CPU]
    for microjoules in (200_000_000_000, 100_000_000_000):
        count(file, microjoules)
        wait_until(lambda expected=microjoules: zones.__self__.last == expected)
    count(file, 150_000_000_000)
    assert meter.joules() == {CPU: pytest.approx(150_000 + (RANGE + 1) / 1e6)}
    file.unlink()  # ends the thread


@pytest.mark.gpu
def test_a_gpu_counts_what_its_work_takes():
    from nanoeuler.backend import make_backend

    cupy = pytest.importorskip("cupy")
    backend = make_backend("cuda")
    meter = Meter(backend.device.address, cpu=False)
    if GPU not in meter.joules():
        pytest.skip("this GPU counts no energy")
    a = cupy.ones((4096, 4096), cupy.float32)
    before, until = meter.joules()[GPU], time.monotonic() + 2
    while time.monotonic() < until:
        a @ a
        cupy.cuda.get_current_stream().synchronize()
    watts = (meter.joules()[GPU] - before) / 2  # others' tests may take some of them
    assert 50 < watts < 1500
