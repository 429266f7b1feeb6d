"""A served model for a page to compute by itself, over real HTTP."""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.browser.packing import bytes_in_blocks, halves, written_tensors
from nanoeuler.model.files import load_model, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.serving import copies
from tests.serving.server import ServerProcess
from tests.serving.test_guard import KEYS


@pytest.fixture(scope="module")
def server(tmp_path_factory, tuned_folder):
    folder = tmp_path_factory.mktemp("copies")
    (folder / "tuned").symlink_to(tuned_folder)
    with ServerProcess(folder, folder / "tuned") as server:
        yield server


def test_the_weights_come_by_ranges_and_whole(server, tuned_folder):
    saved = load_model(tuned_folder)
    expected = (halves(saved) >> 16).astype(np.uint16)
    (listed,) = json.loads(server.get("/v1/models").data)["data"]
    size = listed["nanoeuler"]["browser"]
    described = json.loads(server.get("/browser/tuned").data)
    assert described["tensors"] == [[t.name, t.size] for t in written_tensors(saved.config)]
    assert size == expected.nbytes == 2 * sum(size for _, size in described["tensors"])
    pieces = []
    for first in range(0, size, 5000):
        piece = server.get("/browser/tuned/weights", Range=f"bytes={first}-{first + 4999}")
        assert piece.status == 206
        last = min(first + 5000, size) - 1
        assert piece.headers["content-range"] == f"bytes {first}-{last}/{size}"
        pieces.append(piece.data)
    assert len(pieces) > 2
    assert np.array_equal(np.frombuffer(b"".join(pieces), "<u2"), expected)
    whole = server.get("/browser/tuned/weights")
    assert whole.status == 200
    assert whole.data == b"".join(pieces)


def test_the_weights_of_a_large_model_come_in_int8(tuned_folder, monkeypatch):
    saved, tokenizer = load_model(tuned_folder), SimpleNamespace(vocabulary=None)
    monkeypatch.setattr(copies, "MOST_BYTES", bytes_in_blocks(saved.config))
    monkeypatch.setattr(copies, "describe", lambda *given: {"config": {}})
    model = copies.ServedModel(tuned_folder, saved.config, tokenizer, "sft", None, "cpu", 1, 64)
    made = copies.Copies({"tuned": model}, given=False)
    described, weights = made.found("tuned")
    assert len(weights) == bytes_in_blocks(saved.config)
    buffer, tensors = FlatBuffer(saved.config, saved.parameters), written_tensors(saved.config)
    vectors = [buffer[each.name] for each in tensors if each.name in described["vectors"]]
    matrices = [buffer[each.name] for each in tensors if each.name not in described["vectors"]]
    assert all(each.ndim == 1 for each in vectors)
    count, block = sum(each.size for each in vectors), described["block"]
    blocks = -(-sum(each.size for each in matrices) // block)
    codes = np.frombuffer(weights, np.int8, block * blocks, 2 * count).reshape(-1, block)
    scales = np.frombuffer(weights, "<f4", blocks, 2 * count + block * blocks)
    exact = np.concatenate([each.reshape(-1) for each in matrices])
    found = (codes * scales[:, None]).reshape(-1)[: len(exact)]
    # half of a step of the block's scale, and its rounding
    assert (np.abs(found - exact) <= 0.501 * np.repeat(scales, block)[: len(exact)]).all()


def test_the_weights_are_those_that_are_served_or_none(tmp_path, tuned_folder):
    """Served in int8, which takes the step size into the weights."""
    saved = load_model(tuned_folder)
    saved = dataclasses.replace(saved, config=dataclasses.replace(saved.config, step_size=0.5))
    for name in ("same", "other"):
        save_model(tmp_path / name, saved)
    models = tmp_path / "same", tmp_path / "other"
    with ServerProcess(tmp_path, *models, "--quantize", "int8") as server:
        save_model(tmp_path / "other", dataclasses.replace(saved, parameters=-saved.parameters))
        assert server.get("/browser/same").status == 200
        refused = server.get("/browser/other/weights")
        assert refused.status == 400
        assert "other has changed; start the server again" in refused.data.decode()


@pytest.mark.parametrize("asked", ["bytes=9-3", "bytes=999999999-", "bytes=-5", "words", ""])
def test_a_range_that_cannot_be_is_refused(server, asked):
    refused = server.get("/browser/tuned/weights", Range=asked)
    assert refused.status == 416
    assert "give bytes=FIRST-LAST" in json.loads(refused.data)["error"]["message"]


def test_a_model_that_is_not_served_has_no_copy(server):
    refused = server.get("/browser/other")
    assert refused.status == 404
    assert json.loads(refused.data)["error"]["code"] == "model_not_found"


def test_with_keys_weights_stay_on_the_server(tmp_path, tuned_folder):
    """With --give-weights they don't: test_guard.py."""
    (tmp_path / "keys").write_text(f"{KEYS[0]}\n")
    (tmp_path / "tuned").symlink_to(tuned_folder)
    with ServerProcess(tmp_path, tmp_path / "tuned", "--api-key-file", tmp_path / "keys") as server:
        assert server.get("/browser/tuned").status == 401
        key = f"Bearer {KEYS[0]}"
        refused = server.get("/browser/tuned", Authorization=key)
        assert refused.status == 400
        assert b"start it with --give-weights" in refused.data
        (listed,) = json.loads(server.get("/v1/models", Authorization=key).data)["data"]
        assert listed["nanoeuler"]["browser"] == copies.KEPT


def test_why_a_page_cannot_have_a_model_is_a_sentence(tuned_folder, monkeypatch):
    config = load_model(tuned_folder).config
    tokenizer = SimpleNamespace(vocabulary=SimpleNamespace(foreign=None))
    model = copies.ServedModel(tuned_folder, config, tokenizer, "sft", None, "cpu", 1, 64)
    size = copies.offer(model)
    assert size > 0
    capped = model._replace(config=dataclasses.replace(config, logit_cap=30.0))
    assert copies.offer(capped) == "its form is not one that the page computes"
    monkeypatch.setattr(copies, "MOST_BYTES", size - 1)
    assert copies.offer(model) == bytes_in_blocks(config) < 0.6 * size
    monkeypatch.setattr(copies, "MOST_BYTES", bytes_in_blocks(config) - 1)
    assert re.fullmatch(r"its weights have \d+ MB in int8, and a page .*", copies.offer(model))
    tokenizer.vocabulary.foreign = "{}"
    assert "words are not GPT-2's" in copies.offer(model)
