"""Adapters that are trained on weights of 8 or 4 bits (QLoRA, Dettmers et al. 2023)."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from nanoeuler.interchange.adapters import import_adapters
from nanoeuler.interchange.quantizing import quantize_folder
from nanoeuler.model.files import load_model
from nanoeuler.storage.files import sha256_file
from tests.training.conftest import Trainer

LORA = {"rank": 4, "dropout": 0.2, "targets": "all"}
WIDE = {"dim": 32, "head_size": 16, "ffn": 40}
"""Rows of whole blocks."""


@pytest.fixture
def adapting(trainer):
    trainer.config["model"] |= WIDE
    for stage in ("sft", "dpo", "rl"):
        trainer.config[stage] |= {"lora": LORA, "checkpoint_minutes": 0.0001}
    trainer.config["rl"] |= {"reward": "regex:hen", "epochs": 1, "batch_tokens": 2000, "kl": 0.1}
    return trainer


@pytest.fixture(scope="module")
def wide(data, tmp_path_factory):
    """The folder of a model that was fine-tuned from random weights."""
    trainer = Trainer(data, tmp_path_factory.mktemp("wide"))
    trainer.config["model"] |= WIDE
    trainer.run("sft")
    return trainer.output / "sft" / "model"


@pytest.fixture(params=["int8", "int4"])
def base(request, wide, tmp_path):
    """The folder of that model in codes."""
    quantize_folder(wide, tmp_path / request.param, request.param)
    return tmp_path / request.param


@pytest.mark.parametrize("stage", ["sft", "dpo", "rl"])
def test_a_stage_trains_adapters_on_codes(adapting, base, stage):
    said = adapting.run(stage, "--parent", str(base))
    assert f"adapters and weights in {base.name}, in float32" in said
    folder = adapting.output / stage
    keys = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert keys["revision"] == sha256_file(base / "model.safetensors")
    codes, model = load_model(base), load_model(folder / "model")
    assert model.quantized is None
    assert model.config == codes.config
    tensors = load_file(folder / "adapter" / "adapter_model.safetensors")
    after = load_file(folder / "model" / "model.safetensors")
    module = "model.layers.0.mlp.down_proj"
    down, up = (tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
    before = codes.quantized[f"{module}.weight"].dense()
    assert np.abs(up @ down).max() > 1e-4
    np.testing.assert_allclose(after[f"{module}.weight"], before + 2 * up @ down, atol=1e-6)
    head = "lm_head.weight"
    assert np.array_equal(after[head], codes.quantized[head].dense())
    again = import_adapters(folder / "adapter", base, adapting.output / "again")
    np.testing.assert_allclose(again.parameters, model.parameters, atol=1e-6)


def test_they_resume_to_the_bit_after_kill_9(adapting, base):
    adapting.run("sft", "--parent", str(base))
    whole = adapting.weights("sft")
    shutil.rmtree(adapting.output / "sft")
    process = adapting.start_until(3, "sft", "--parent", str(base), saved=True)
    process.kill()
    process.communicate()
    assert "going on from step" in adapting.run("sft", "--parent", str(base))
    assert adapting.weights("sft") == whole


def test_ranks_share_them(adapting, base):
    adapting.run("sft", "--parent", str(base))
    path = adapting.output / "sft" / "adapter" / "adapter_model.safetensors"
    alone = load_file(path)
    shutil.rmtree(adapting.output / "sft")
    adapting.run("sft", "--parent", str(base), "--ranks", "2")
    shared = load_file(path)
    for name, values in alone.items():
        assert np.linalg.norm(shared[name] - values) < 1e-3 * np.linalg.norm(values), name


def test_a_damaged_base_and_one_of_another_step_are_refused(adapting, base):
    adapting.config["model"]["step_size"] = 0.5
    said = adapting.run("sft", "--parent", str(base), status=1)
    assert "step_size 1.0 there, 0.5 here" in said
    assert "set model.step_size to 1" in said
    path = base / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = adapting.run("sft", "--parent", str(base), status=1)
    assert f"{path}: its bytes are not those" in said
    assert "Traceback" not in said


def test_without_adapters_it_is_refused(adapting, base):
    del adapting.config["sft"]["lora"]
    said = adapting.run("sft", "--parent", str(base), status=1)
    assert f"{base}: its weights are {base.name}, which nothing but adapters can be trained" in said
    assert "set lora: {} for a stage" in said
