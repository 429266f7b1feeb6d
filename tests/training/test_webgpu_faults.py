"""A GPU that WebGPU reaches is lost while it trains, or its driver computes wrongly."""

from dataclasses import replace

import pytest

from nanoeuler.backend.webgpu import kernels, parts
from nanoeuler.backend.webgpu.device import Device, adapters, found
from nanoeuler.backend.webgpu.engine import WebGpuBackend
from nanoeuler.config.settings import Pretrain
from nanoeuler.errors import UserError
from nanoeuler.training import start_check
from nanoeuler.training.loop import train
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.stages.pretrain import job


@pytest.fixture
def pretrain(data, trainer, monkeypatch):
    """Pretrains by a device of its own, into the trainer's folder."""
    if problem := found():
        pytest.skip(f"no WebGPU adapter answers here: {problem}")
    checked = trainer.output / "checked"
    monkeypatch.setattr(start_check, "cache_folder", lambda: checked)
    monkeypatch.setattr(parts, "device", lambda: Device(adapters()[0]))
    trainer.config["pretrain"] |= {"tokens": 20 * 128, "checkpoint_minutes": 0.001}

    def run(engine):
        files = data / "tokens/manifest.json", data / "tokenizer.json", trainer.output / "pretrain"
        settings = Pretrain.read(trainer.config["pretrain"])
        return train(job(Inputs(trainer.config, settings, *files), engine))

    return run


def test_a_device_that_is_lost_in_training_ends_it_and_a_rerun_resumes(
    pretrain, trainer, monkeypatch, caplog
):
    pretrain(WebGpuBackend())
    whole, losses = trainer.weights(), [entry.get("loss") for entry in trainer.metrics()]
    trainer.output = trainer.output / "lost"
    engine = WebGpuBackend()
    write = engine.kernels.write

    def lose(*given):
        if trainer.last_step() >= 9 and trainer.checkpoints():
            engine.kernels.opened.destroy()
        write(*given)

    monkeypatch.setattr(engine.kernels, "write", lose)
    with pytest.raises(UserError, match=r"is lost .* run the same command again to go on from it"):
        pretrain(engine)
    assert trainer.checkpoints()
    assert not (trainer.output / "pretrain/model").exists()
    with caplog.at_level("INFO", "nanoeuler"):
        pretrain(WebGpuBackend())
    assert "going on from step" in caplog.text
    assert trainer.weights() == whole
    assert [entry.get("loss") for entry in trainer.metrics()] == losses


def test_a_driver_that_computes_wrongly_trains_nothing_and_is_named_with_the_op(
    pretrain, trainer, monkeypatch
):
    source = kernels.source

    def wrong(name, *given):
        found = source(name, *given)
        return replace(found, text=found.text.replace("k = share; k <", "k = share + 1u; k <"))

    monkeypatch.setattr(kernels, "source", wrong)
    engine = WebGpuBackend()
    with pytest.raises(UserError) as refused:
        pretrain(engine)
    said = str(refused.value)
    assert said.startswith(f"pretrain: engine webgpu in fp32 on {engine.device.name} does not ")
    assert "; op 'linear 1 × 8 × 24' differs by " in said
    assert not (trainer.output / "pretrain/metrics.jsonl").exists()
    assert not (trainer.output / "pretrain/model").exists()


def test_numbers_beyond_float16_end_the_stage_with_a_sentence_that_names_the_key(pretrain, trainer):
    engine = WebGpuBackend("fp16")
    if engine.precision == "fp32":
        pytest.skip("the adapter reads no float16")
    trainer.config["pretrain"] |= {"learning_rate": 1e4, "warmup_steps": 1, "rewinds": 1}
    with pytest.raises(UserError) as ended:
        pretrain(engine)
    assert "the loss is not a number at step" in str(ended.value)
    assert ", or leave pretrain.precision out: numbers of 16 bits end at 65,504" in str(ended.value)
