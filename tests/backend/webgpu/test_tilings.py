"""The tiles of large products are chosen by measuring, kept, and change no bit."""

import numpy as np
import pytest

from nanoeuler.backend.webgpu import tilings as module
from nanoeuler.backend.webgpu.tilings import TILINGS, Tilings, fits


@pytest.fixture
def tilings(engine, monkeypatch, tmp_path):
    """Those of an engine that measures, whatever the adapter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "LEAST_MEASURED", 1)
    found = Tilings(engine.device)
    found.measures = True
    monkeypatch.setattr(engine, "tilings", found)
    return found


def operands(engine):
    random = np.random.default_rng(1)
    left, right, out = ((68, 520), (132, 520), (68, 132))  # in two parts of the inner dimension
    return [engine.from_host(random.standard_normal(shape)) for shape in (left, right, out)]


def test_all_tilings_give_the_same_bits(engine, tilings, monkeypatch):
    left, right, out = operands(engine)
    found = []
    for tiling in TILINGS:
        if fits(tiling, engine.device):
            monkeypatch.setattr(tilings, "of", lambda *asked, tiling=tiling: tiling)
            total = out.copy()
            engine.multiply(left, right, total, 2.0, total, 0.5)
            found.append(engine.to_host(total))
    assert len(found) > 1
    assert all(np.array_equal(found[0], each) for each in found)


def test_a_choice_is_measured_once_and_leaves_the_sum_alone(engine, tilings):
    left, right, out = operands(engine)
    expected = engine.to_host(out) + engine.to_host(left) @ engine.to_host(right).T
    engine.multiply(left, right, out, 1.0, out)
    np.testing.assert_allclose(engine.to_host(out), expected, atol=1e-4)
    (product,) = tilings.chosen
    again = Tilings(engine.device)
    again.measures = True
    again.chosen = again.kept()
    kept = again.of(product, 1, lambda tiling: pytest.fail("measured again"))
    assert kept == tilings.chosen[product]


@pytest.mark.parametrize("content", ["", "[1]", '{"a": "3x3x3", "b": 4, "c": null}', "\xff"])
def test_a_file_that_nobody_can_read_is_as_good_as_none(tilings, content):
    tilings.file.parent.mkdir(parents=True)
    tilings.file.write_bytes(content.encode("latin-1"))
    assert tilings.kept() == {}


def test_a_tiling_needs_memory_and_threads(engine, monkeypatch):
    monkeypatch.setattr(engine.device, "workgroup_bytes", 16384)
    assert not fits((128, 128, 8), engine.device)
    assert fits((128, 64, 8), engine.device)
    monkeypatch.setattr(engine.device, "workgroup_threads", 64)
    assert not fits((128, 64, 8), engine.device)
    assert fits((64, 64, 8), engine.device)
