"""Ranks share each step: a run is that of one process within rounding, and repeats to the bit.

The ranks are processes on this host, some of which are killed.
"""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from fuzz.material import environment
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import block_matrices
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.distributed import ranks
from nanoeuler.training.distributed.parameters import cuts
from tests.waiting import CEILING, wait_until

TWO, THREE = ("--ranks", "2"), ("--ranks", "3")
STOPPED_SECONDS = 3.0
"""How long a rank of `hasty` may be stopped: less than usual, for the test waits as long."""
HASTY = (
    "import sys; from nanoeuler.cli import main; from nanoeuler.training.distributed import ranks; "
    f"ranks.STOPPED_SECONDS = {STOPPED_SECONDS}; sys.exit(main())"
)


def parameters(trainer, stage="pretrain"):
    return load_file(trainer.output / stage / "model" / "model.safetensors")


def assert_alike(found, expected, limit=1e-3):
    for name, values in expected.items():
        error = np.linalg.norm(found[name] - values) / np.linalg.norm(values)
        assert error < limit, f"{name} differs by {error:.1e}"


def before_dpo(trainer):
    """To the bit: the parent's log-probabilities, and what is measured before the first step."""
    (reference,) = trainer.output.glob("dpo/reference/*/*.safetensors")
    return reference.read_bytes(), trainer.metrics("dpo")[1]["validation"]


def ranks_of(process):
    """The other ranks that a trainer has started."""
    return psutil.Process(process.pid).children()


def wait_for_end(processes):
    wait_until(
        lambda: not any(each.is_running() and each.status() != "zombie" for each in processes)
    )


@pytest.fixture
def hasty(trainer):
    """A trainer whose ranks may be stopped for `STOPPED_SECONDS`."""
    command = trainer.command
    trainer.command = lambda *what: [sys.executable, "-c", HASTY, *command(*what)[3:]]
    return trainer


def test_two_ranks_train_as_one_does(shared, uninterrupted):
    assert_alike(parameters(shared), parameters(uninterrupted))
    found, expected = (
        [entry.get("loss") for entry in x.metrics()] for x in (shared, uninterrupted)
    )
    assert found[1:] == [
        value if value is None else pytest.approx(value, rel=1e-4) for value in expected[1:]
    ]
    assert shared.metrics()[0]["ranks"] == 2
    held_out = [
        [m["validation"] for m in x.metrics() if "validation" in m] for x in (shared, uninterrupted)
    ]
    assert len(held_out[0]) == len(held_out[1]) > 1
    for found, expected in zip(*held_out, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_gradients_summed_in_bf16_train_nearly_as_well(trainer, uninterrupted):
    trainer.config["pretrain"]["sums_precision"] = "bf16"
    trainer.run("pretrain", *TWO)
    expected = parameters(uninterrupted)
    assert_alike(parameters(trainer), expected, limit=0.1)  # training amplifies rounding of 2⁻⁸
    with pytest.raises(AssertionError, match="differs by"):
        assert_alike(parameters(trainer), expected)


@pytest.mark.parametrize("who", ["rank 0", "rank 1"])
def test_a_killed_rank_ends_all_and_the_rerun_goes_on_to_the_same_bits(trainer, shared, who):
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = trainer.start_until(23, "pretrain", *TWO, saved=True)
    others = ranks_of(process)
    (process if who == "rank 0" else others[0]).send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    wait_for_end(others)
    if who == "rank 1":
        assert process.returncode == 1
        assert said.count("rank 1 of 2 was killed by SIGKILL; the other ranks are stopped") == 1
        assert "Traceback" not in said
    assert "going on from step" in trainer.run("pretrain", *TWO)
    assert trainer.weights() == shared.weights()


BUSY = """
import atexit, ctypes, os, sys, time
from pathlib import Path
from nanoeuler.training.distributed.ranks import ranks
with ranks(2, Path()) as group:
    if not group.rank:
        group.admit()
        print(group.exchange(0)[1], flush=True)
        {leader}
    atexit.register(time.sleep, 1000)
    group.exchange(os.getpid())
    {follower}
"""


@pytest.mark.parametrize(
    ("leader", "follower"),
    [
        pytest.param(
            "time.sleep(1000)",
            "ctypes.PyDLL(None).sleep(1000)",  # beside which no thread of Python runs
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
            id="in a call that never returns",
        ),
        pytest.param(
            "group.peers[0].close(); time.sleep(1000)", "group.heed()", id="whose end would wait"
        ),
    ],
)
def test_a_rank_ends_with_rank_0_where_its_device_waits_for_ever(leader, follower):
    script = BUSY.format(leader=leader, follower=follower)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment()
    )
    other = psutil.Process(int(process.stdout.readline()))
    if "close" not in leader:
        process.kill()
    wait_for_end([other])
    process.kill()
    process.communicate()


def test_a_suspended_rank_ends_all_and_the_rerun_goes_on_to_the_same_bits(hasty, shared):
    hasty.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = hasty.start_until(23, "pretrain", *TWO, saved=True)
    (other,) = ranks_of(process)
    other.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)  # which waits for the end of a step that never ends
    _, said = process.communicate(timeout=CEILING)
    wait_for_end([other])
    assert process.returncode == 1
    assert said.count("rank 1 of 2 was suspended (SIGSTOP) for 3 seconds") == 1
    assert ranks.STOPPED_SECONDS == 15, "as docs/scaling.md says"
    assert "Traceback" not in said
    assert "going on from step" in hasty.run("pretrain", *TWO)
    assert hasty.weights() == shared.weights()


def test_a_run_that_is_suspended_as_a_whole_goes_on(hasty, shared):
    """As by Ctrl-Z."""
    process = hasty.start_until(13, "pretrain", *TWO)
    every = [psutil.Process(process.pid), *ranks_of(process)]
    for each in every:
        each.suspend()
    time.sleep(STOPPED_SECONDS + 2)
    for each in every[::-1]:
        each.resume()
    _, said = process.communicate(timeout=CEILING)
    assert process.returncode == 0, said
    assert hasty.weights() == shared.weights()


def test_a_polite_stop_saves_once_and_goes_on(trainer, shared):
    process = trainer.start_until(13, "pretrain", *TWO)
    for each in (process, *ranks_of(process)):  # as a terminal or a cluster does
        each.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=CEILING)
    assert process.returncode == 143
    assert said.count("saving after this step") == 1
    assert len(trainer.checkpoints()) == 1
    trainer.run("pretrain", *TWO)
    assert trainer.weights() == shared.weights()


@pytest.mark.parametrize(("before", "after"), [((), TWO), (TWO, ()), (TWO, THREE)])
def test_another_number_of_ranks_goes_on_within_rounding(trainer, uninterrupted, before, after):
    process = trainer.start_until(23, "pretrain", *before)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=CEILING)
    said = trainer.run("pretrain", *after)
    assert "ranks 1 → 2" in said or "ranks 2 → " in said
    assert_alike(parameters(trainer), parameters(uninterrupted))


@pytest.mark.parametrize("ranks", ["0", "-1", "1000"])
def test_more_ranks_than_a_machine_can_serve_are_refused(trainer, ranks):
    said = trainer.run("pretrain", "--ranks", ranks, status=1)
    assert f"--ranks {ranks}: give 1 to " in said
    assert not trainer.output.joinpath("pretrain").exists()


def test_more_gpus_than_there_are_are_refused(trainer):
    said = trainer.run("pretrain", "--device", "auto", "--gpus", "1000", status=1)
    assert "--gpus 1000: " in said
    assert " can be used here; give as many, or 0 for the CPU" in said
    said = trainer.run("pretrain", "--device", "cpu", "--gpus", "auto", status=1)
    assert "--gpus auto and --device cpu: leave one of them out" in said
    said = trainer.run("pretrain", "--gpus", "all", status=2)
    assert "--gpus: 'all' is neither a number nor auto" in said


def test_a_mistake_is_told_once_and_not_by_each_rank(trainer):
    del trainer.config["pretrain"]["learning_rate"]
    said = trainer.run("pretrain", *TWO, status=1)
    assert said.count("without the key 'learning_rate'") == 1, said
    trainer.config["pretrain"] |= {"learning_rate": 1e-2, "init_from": "nowhere"}
    said = trainer.run("pretrain", *TWO, status=1)
    assert said.count("nowhere") == 1, said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("sys.argv[3] = sys.argv[3].replace('0.95', '0.5')", "rank 1 of 2 has another fingerprint"),
        ("provenance.cpu_name = lambda: 'a Z80'", "rank 1 of 2 has another processor "),
    ],
)
def test_ranks_that_train_otherwise_are_told(trainer, change, sentence):
    """As when a configuration is changed while they start, or a cluster has two kinds of nodes."""
    program = (
        "import os, sys; from nanoeuler.system import provenance; from nanoeuler.cli import main\n"
        f"if '{ranks.RANK}' in os.environ: {change}\n"
        "sys.exit(main())"
    )
    command = trainer.command
    trainer.command = lambda *what: [sys.executable, "-c", program, *command(*what)[3:]]
    trainer.config["pretrain"]["reproducible"] = "ranks"
    said = trainer.run("pretrain", *TWO, status=1)
    assert said.count("error") == 1
    assert sentence in said
    assert not trainer.metrics()


# Muon makes small directions of a gradient as large as the others, and rounding with them
@pytest.mark.parametrize(("optimizer", "limit"), [("adamw", 1e-3), ("muon", 1e-2)])
def test_tuning_stages_and_muon_share_steps_too(trainer, tuned, optimizer, limit):
    for stage, extra in (("sft", ()), ("dpo", ("--parent", str(tuned)))):
        trainer.config[stage] = trainer.config[stage] | {"optimizer": optimizer}
        trainer.run(stage, *extra)
        expected = parameters(trainer, stage)
        before = before_dpo(trainer) if stage == "dpo" else None
        shutil.rmtree(trainer.output / stage)
        trainer.run(stage, *extra, *TWO)
        assert_alike(parameters(trainer, stage), expected, limit)
        assert before is None or before_dpo(trainer) == before


def poison(trainer):
    """Let pretraining start from random weights with which rows that hold a ~ have no loss."""
    tokenizer = trainer.data / "tokenizer.json"
    (token,) = Tokenizer.load(tokenizer).encode("~")
    config = ModelConfig.from_dict(trainer.config["model"])
    parameters = initial_parameters(config, 1)
    FlatBuffer(config, parameters)["model.embed_tokens.weight"][token] = np.inf
    folder = trainer.output / "poisoned"
    save_model(folder, SavedModel(config, parameters, tokenizer, "pretrain", None, {}))
    trainer.config["pretrain"] |= {"init_from": str(folder), "rewinds": 30}


def assert_refused_alike_and_resumed(trainer, whole, *ranks):
    """A run that is refused for losses that one rank alone has, and goes on to the same bits."""
    trainer.config["pretrain"] |= {"rewinds": 1, "checkpoint_minutes": 0.001}
    trainer.output = trainer.output / "refused"
    said = trainer.run("pretrain", *ranks, status=1)
    assert said.count("error") == 1, said
    assert "the loss is not a number at step" in said
    assert "after 1 rewind; lower pretrain.learning_rate" in said
    trainer.config["pretrain"]["rewinds"] = 30
    assert "going on from step" in trainer.run("pretrain", *ranks)
    assert trainer.weights() == whole


def test_losses_that_are_no_number_are_left_out_by_all_ranks(trainer):
    poison(trainer)
    trainer.run()
    header, expected = trainer.metrics()[0], parameters(trainer)
    assert header["skipped"]
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run("pretrain", *TWO)
    assert trainer.metrics()[0]["skipped"] == header["skipped"]
    known = {name: values for name, values in expected.items() if np.isfinite(values).all()}
    assert len(known) == len(expected) - 1
    assert_alike(parameters(trainer), known)
    assert_refused_alike_and_resumed(trainer, trainer.weights(), *TWO)


def test_growth_shares_steps_too(trainer):
    trainer.config["model"] = trainer.config["model"] | {"layers": 2}
    trainer.config["pretrain"] |= {"grow_at": [30]}
    trainer.run()
    expected = parameters(trainer)
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run("pretrain", *TWO)
    assert_alike(parameters(trainer), expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("preset", ["small", "base"])
def test_parts_are_as_long_as_each_other_and_cut_no_matrix(preset, ranks):
    config = ModelConfig.from_dict({"preset": preset})
    found, total = cuts(config, ranks), FlatBuffer.elements(config)
    assert (found[0], found[-1]) == (0, total)
    for matrix in block_matrices(config):
        assert not any(matrix.offset < cut < matrix.stop for cut in found)
    lengths = np.diff(found)
    assert lengths.max() < 1.35 * total / ranks, lengths


def test_a_rank_whose_memory_is_full_says_so_and_all_end(trainer):
    trainer.config["model"] |= {"dim": 512, "ffn": 8_000}
    process = trainer.start("pretrain", *TWO)
    wait_until(lambda: ranks_of(process), process)
    (other,) = ranks_of(process)
    wait_until(lambda: other.memory_info().vms > 100_000_000, process)
    other.rlimit(psutil.RLIMIT_AS, (500_000_000, 500_000_000))
    _, said = process.communicate(timeout=CEILING)
    assert process.returncode == 1
    assert "error  rank 1: pretrain: " in said, said
    assert "rank 1 of 2 ended with status 1, for the reason above" in said
    assert "Traceback" not in said
    wait_for_end([other])


def test_memory_that_is_full_later_leaves_a_checkpoint_to_go_on_from(trainer):
    trainer.config["model"] |= {"dim": 128, "ffn": 4096, "layers": 2}
    trainer.config["pretrain"] |= {"grow_at": [8], "tokens": 12 * 128, "validate_every": 1000}
    trainer.run("pretrain", *TWO)
    whole = trainer.weights()
    trainer.output = trainer.output / "full"
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = trainer.start_until(2, "pretrain", *TWO)
    process.send_signal(signal.SIGSTOP)  # so that the limit is there before the model grows
    assert trainer.last_step() < 8
    (other,) = ranks_of(process)
    limit = other.memory_info().vms
    other.rlimit(psutil.RLIMIT_AS, (limit, limit))
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "error  rank 1: pretrain: " in said, said
    assert "rank 1 of 2 ended with status 1, for the reason above" in said
    assert "Traceback" not in said
    wait_for_end([other])
    assert "going on from step" in trainer.run("pretrain", *TWO)
    assert trainer.weights() == whole
