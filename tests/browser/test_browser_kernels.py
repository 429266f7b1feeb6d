"""What pages are told of kernels is what the engine's files say."""

from nanoeuler.backend.webgpu.kernel_sources import FOLDER
from nanoeuler.browser.kernels import TRAINING, kernels
from nanoeuler.model.config import ModelConfig


def test_a_page_has_the_files_of_the_engine():
    found = kernels(ModelConfig.from_dict({"preset": "small"}), TRAINING)
    assert set(found["files"]) == set(TRAINING)
    for name, file in found["files"].items():
        assert file["code"] == (FOLDER / f"{name}.wgsl").read_text(encoding="utf-8")
        assert "p" in file["bindings"]
        assert file["fields"]
    assert "const HEAD_SIZE = 32u;" in found["prelude"]
    assert found["numbers"].keys() == {1, 4}
    assert "fn exponential(" in found["prelude"]


def test_heads_that_the_kernels_do_not_read_are_refused():
    shape = {"vocab_size": 300, "dim": 36, "layers": 1, "heads": 6, "kv_heads": 2, "ffn": 8}
    assert kernels(ModelConfig.from_dict(shape | {"context": 8})) is None
