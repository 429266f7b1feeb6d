"""Stages that train adapters: what they leave on disk, kills, ranks, and refusals."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from nanoeuler.config.settings import Lora
from nanoeuler.errors import UserError
from nanoeuler.interchange.adapters import import_adapters
from nanoeuler.model.adapters import adapted
from nanoeuler.model.files import load_model
from nanoeuler.model.weights_file import load_parameters
from nanoeuler.storage.files import sha256_file
from nanoeuler.training.parents import Parent

LORA = {"rank": 4, "dropout": 0.2, "targets": "all"}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture
def adapting(trainer):
    for stage in ("sft", "dpo", "rl"):
        trainer.config[stage] |= {"lora": LORA, "checkpoint_minutes": 0.0001}
    trainer.config["rl"] |= {"reward": "regex:hen", "epochs": 3, "batch_tokens": 2000}
    return trainer


def run_stage(trainer, stage, parent, *extra):
    return trainer.run(stage, "--parent", str(parent), *extra)


@pytest.mark.parametrize("stage", ["sft", "dpo", "rl"])
def test_a_stage_trains_adapters_and_leaves_them_beside_the_merged_model(adapting, tuned, stage):
    said = run_stage(adapting, stage, tuned)
    assert "trained=" in said
    folder = adapting.output / stage
    keys = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert keys["revision"] == sha256_file(tuned / "model.safetensors")
    assert (keys["r"], keys["lora_alpha"], keys["target_modules"]) == (4, 8, TARGETS)
    tensors = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert len(tensors) == 2 * len(TARGETS)
    *_, checkpoint = adapting.checkpoints(stage)
    for name in ("model", "optimizer"):
        stored = load_file(checkpoint / f"{name}.safetensors")
        assert stored
        assert all("lora_" in each for each in stored), "no frozen tensor is in a checkpoint"
    base, model = load_model(tuned), load_model(folder / "model")
    assert model.config == base.config
    module = "model.layers.0.self_attn.q_proj"
    down, up = (tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
    before, after = (load_file(each / "model.safetensors") for each in (tuned, folder / "model"))
    change = after[f"{module}.weight"] - before[f"{module}.weight"]
    np.testing.assert_allclose(change, 2 * up @ down, atol=1e-6)
    for name in before.keys() - {f"{each}.weight" for each in modules(tensors)}:
        assert np.array_equal(before[name], after[name]), f"{name} is frozen"
    assert all(values.any() for values in tensors.values())
    again = import_adapters(folder / "adapter", tuned, adapting.output / "again")
    np.testing.assert_allclose(again.parameters, model.parameters, atol=1e-6)


def modules(tensors):
    return {name.removeprefix("base_model.model.").split(".lora_")[0] for name in tensors}


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_adapters_resume_to_the_bit_after_kill_9(adapting, tuned, stage):
    run_stage(adapting, stage, tuned)
    whole = adapting.weights(stage)
    shutil.rmtree(adapting.output / stage)
    for step in (2, 5):
        process = adapting.start_until(step, stage, "--parent", str(tuned))
        process.kill()
        process.communicate()
    assert "going on from step" in run_stage(adapting, stage, tuned)
    assert adapting.weights(stage) == whole
    shutil.rmtree(adapting.output / stage / "model")
    assert "exporting its model again" in run_stage(adapting, stage, tuned)
    assert adapting.weights(stage) == whole


def test_a_start_that_is_made_again_is_the_same_although_an_engine_trained_in_its_memory(tuned):
    saved = load_model(tuned)
    model = adapted(saved.config, Lora(rank=4))
    weights = load_parameters(tuned / "model.safetensors", saved.config)
    parent = Parent(tuned, weights, "", {})
    adapters = parent.start(model, 3)
    first = adapters.copy()
    assert np.array_equal(parent.weights, saved.parameters)
    assert first.any()
    adapters[:] = 7
    assert np.array_equal(parent.start(model, 3), first)
    assert not np.array_equal(parent.start(model, 4), first)
    whole = Parent(tuned, saved.parameters.copy(), "", {})
    whole.start(saved.config, 3)[:] = 7
    assert np.array_equal(whole.start(saved.config, 3), saved.parameters)


def test_ranks_share_the_adapters(adapting, tuned):
    run_stage(adapting, "sft", tuned)
    alone = load_file(adapting.output / "sft" / "adapter" / "adapter_model.safetensors")
    shutil.rmtree(adapting.output / "sft")
    run_stage(adapting, "sft", tuned, "--ranks", "2")
    shared = load_file(adapting.output / "sft" / "adapter" / "adapter_model.safetensors")
    for name, values in alone.items():
        assert np.linalg.norm(shared[name] - values) < 1e-3 * np.linalg.norm(values), name


def test_other_adapters_train_afresh(adapting, tuned):
    run_stage(adapting, "sft", tuned)
    before = adapting.weights("sft")
    adapting.config["sft"]["lora"] = LORA | {"dropout": 0.0}
    assert "its checkpoints are kept in" in run_stage(adapting, "sft", tuned)
    assert adapting.weights("sft") != before


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 0}, "lora.rank is 0: it must be a whole number from 1 on"),
        ({"rank": 17}, "lora.rank is 17, above model.dim = 16"),
        ({"dropout": 1.0}, "lora.dropout is 1.0: it must be from 0 to below 1"),
        ({"targets": ["c_attn"]}, "lora.targets has 'c_attn', and the blocks of this model have"),
    ],
)
def test_adapters_that_cannot_be_are_refused_in_a_sentence(adapting, tuned, lora, said):
    adapting.config["sft"]["lora"] = LORA | lora
    told = adapting.run("sft", "--parent", str(tuned), status=1)
    assert said in told
    assert "Traceback" not in told


def test_a_checkpoint_of_adapters_is_no_model_to_start_from(adapting, tuned):
    run_stage(adapting, "sft", tuned)
    *_, checkpoint = adapting.checkpoints("sft")
    told = adapting.run("dpo", "--parent", str(checkpoint), status=1)
    assert f"{checkpoint}: a checkpoint of adapters without the model that they belong to" in told


def test_adapters_of_another_model_are_refused(adapting, tuned):
    run_stage(adapting, "sft", tuned)
    folder, other = adapting.output / "sft" / "adapter", adapting.output / "sft" / "model"
    with pytest.raises(UserError, match="these adapters were trained on another model than"):
        import_adapters(folder, other, adapting.output / "again")
    assert not (adapting.output / "again").exists()
