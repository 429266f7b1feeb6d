"""Training on a GPU: real processes, really killed; and its models on the other engines."""

import signal

import numpy as np
import pytest

from nanoeuler.backend import make_backend
from nanoeuler.inference.api import load
from nanoeuler.inference.sampling import GREEDY
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.check_form import ADAMW, source_rows
from nanoeuler.training.state import TrainingState

pytestmark = pytest.mark.gpu
DEVICE = ("--device", "cuda")


@pytest.fixture
def cuda_trainer(trainer):
    trainer.config["model"] |= {"dim": 64, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 84}
    trainer.config["pretrain"] |= {"checkpoint_minutes": 0.001, "micro_batch_rows": 4}
    return trainer


def kill_at(trainer, step):
    process = trainer.start_until(step, "pretrain", *DEVICE)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(cuda_trainer, precision):
    cuda_trainer.config["pretrain"]["precision"] = precision
    cuda_trainer.run("pretrain", *DEVICE)
    whole, losses = cuda_trainer.weights(), [entry.get("loss") for entry in cuda_trainer.metrics()]
    cuda_trainer.output = cuda_trainer.output / "killed"
    kill_at(cuda_trainer, 17)
    assert "going on from step" in cuda_trainer.run("pretrain", *DEVICE)
    assert cuda_trainer.weights() == whole
    assert [entry.get("loss") for entry in cuda_trainer.metrics()] == losses


def test_texts_written_meanwhile_change_no_bit(cuda_trainer):
    cuda_trainer.run("pretrain", *DEVICE)
    silent = cuda_trainer.weights()
    cuda_trainer.output = cuda_trainer.output / "writing"
    cuda_trainer.config["pretrain"]["sample_prompt"] = "The"
    assert cuda_trainer.run("pretrain", *DEVICE).count("sample") >= 3
    assert cuda_trainer.weights() == silent


def test_a_recorded_step_keeps_its_table_when_the_context_grows():
    import cupy

    config = ModelConfig.from_dict({"preset": "small"})
    ends = []
    for grows in (False, True):
        start = initial_parameters(config, 1)
        state = TrainingState(config, make_backend("cuda"), start, ADAMW)
        stream = source_rows(config, 16, 128, seed=5)
        for step in range(6):
            if grows and step == 3:
                sizes = [table.size for table in state.model.rotary.whole]
                state.model.rotary.need(1000)
                junk = [cupy.full(size, np.nan, np.float32) for size in sizes * 64]
            state.train_step(stream.rows(step), 16, 1e-3)
        ends.append(state.backend.to_host(state.parameters))
    assert len(junk) == 128
    assert np.array_equal(*ends)


def test_rows_that_overflow_are_left_out_and_a_kill_changes_nothing(cuda_trainer, data):
    cuda_trainer.run("pretrain", *DEVICE)
    model = load_model(cuda_trainer.output / "pretrain" / "model")
    (token,) = Tokenizer.load(data / "tokenizer.json").encode("~")
    FlatBuffer(model.config, model.parameters)["model.embed_tokens.weight"][token] = np.inf
    poisoned = cuda_trainer.output / "poisoned"
    save_model(poisoned, model)
    cuda_trainer.config["pretrain"] |= {"init_from": str(poisoned), "rewinds": 30}
    cuda_trainer.output = cuda_trainer.output / "whole"
    assert "the loss is not a number at step" in cuda_trainer.run("pretrain", *DEVICE)
    whole, skipped = cuda_trainer.weights(), cuda_trainer.metrics()[0]["skipped"]
    cuda_trainer.output = cuda_trainer.output / "killed"
    kill_at(cuda_trainer, 40)
    cuda_trainer.run("pretrain", *DEVICE)
    assert cuda_trainer.weights() == whole
    assert cuda_trainer.metrics()[0]["skipped"] == skipped


def test_a_model_trained_on_the_gpu_is_the_same_model_on_the_others(cuda_trainer):
    cuda_trainer.config["pretrain"]["precision"] = "fp32"
    cuda_trainer.run("pretrain", *DEVICE)
    folder = cuda_trainer.output / "pretrain" / "model"
    ids = np.random.default_rng(1).integers(0, 288, (2, 16))
    on_gpu, on_cpu = load(folder, "cuda", precision="fp32"), load(folder, "reference")
    np.testing.assert_allclose(on_gpu.logits(ids), on_cpu.logits(ids), rtol=1e-4, atol=1e-5)
    assert on_gpu.generate("The cat", temperature=0, max_tokens=20) == on_cpu.generate(
        "The cat", temperature=0, max_tokens=20
    )


def test_many_texts_outgrow_the_context_together_as_on_the_others(cuda_trainer):
    cuda_trainer.config["pretrain"]["precision"] = "fp32"
    cuda_trainer.run("pretrain", *DEVICE)
    written = []
    for device in ("cuda", "reference"):
        writer = load(cuda_trainer.output / "pretrain" / "model", device, precision="fp32").writer
        prompts = [writer.frame("The cat sees the dog. "[:length]) for length in (1, 4, 9, 14, 22)]
        written.append([continuation.ids for continuation in writer.batch(prompts, GREEDY, 30)])
    assert written[0] == written[1]


def test_fine_tuning_runs_on_the_gpu(cuda_trainer):
    cuda_trainer.run("pretrain", *DEVICE)
    said = cuda_trainer.run(
        "sft", "--parent", str(cuda_trainer.output / "pretrain" / "model"), *DEVICE
    )
    losses = [entry["loss"] for entry in cuda_trainer.metrics("sft") if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    assert "engine=cuda" in said


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1 + 1e-4), ("bf16", 1.25)])
def test_rewards_are_learned_on_the_gpu_and_a_kill_changes_nothing(cuda_trainer, precision, bound):
    cuda_trainer.run("sft", *DEVICE)
    cuda_trainer.config["rl"] |= {
        "reward": "regex:hen",  # any model can learn to say it, whatever it is asked
        "epochs": 8,
        "group": 16,
        "batch_tokens": 16000,
        "learning_rate": 3e-3,
        "checkpoint_minutes": 0.0001,
        "precision": precision,
    }
    parent = cuda_trainer.output / "sft/model"
    options = "rl", "--parent", str(parent), *DEVICE
    cuda_trainer.run(*options)
    whole = cuda_trainer.weights("rl")
    steps = [line for line in cuda_trainer.metrics("rl") if "loss" in line]
    assert steps[-1]["reward"] > 0.6 > 0.2 > steps[0]["reward"]
    # sampler and trainer compute the same products in other orders
    assert max(line["ratio"] for line in steps) < bound
    cuda_trainer.output = cuda_trainer.output / "killed"
    process = cuda_trainer.start_until(5, *options)
    process.kill()
    process.communicate()
    assert "going on from step" in cuda_trainer.run(*options)
    assert cuda_trainer.weights("rl") == whole
