"""A served model for a page to compute by itself, over real HTTP."""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.browser.packing import halves, written_tensors
from nanoeuler.model.files import load_model
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
    assert re.fullmatch(r"its weights have \d+ MB, and a page loads .*", copies.offer(model))
    tokenizer.vocabulary.foreign = "{}"
    assert "words are not GPT-2's" in copies.offer(model)
