"""`nanoeuler rl`: what it learns, kills, ranks, collapse, and refusals."""

import json
import re
import shutil
import signal

import numpy as np
import psutil
import pytest

from nanoeuler.backend.cpu.engine import FEW_ROWS, CpuBackend
from nanoeuler.config.settings import Rl
from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.loop import COSTS
from nanoeuler.training.rewards import Rewards
from nanoeuler.training.rollouts import RolloutStream, Sampler, read_problems
from tests.waiting import CEILING

SPOKEN = {"reward": "regex:hen", "epochs": 4, "group": 8, "batch_tokens": 8000}
"""Any of these models can learn to say `hen`, whatever it is asked."""


def test_it_earns_more_and_resumes_to_the_bit_with_the_replies_that_it_had(trainer, tuned):
    trainer.config["rl"] |= SPOKEN | {"uses": 3, "kl": 0.02, "learning_rate": 1e-2}
    trainer.run("rl", "--parent", str(tuned))
    whole, measured = trainer.weights("rl"), trainer.metrics("rl")
    shutil.rmtree(trainer.output / "rl")
    trainer.config["rl"]["checkpoint_minutes"] = 0.0001
    for step in (5, 31):  # in the middle of the uses of a batch, and behind its last
        process = trainer.start_until(step, "rl", "--parent", str(tuned))
        process.kill()
        process.communicate()
    assert "going on from step" in trainer.run("rl", "--parent", str(tuned))
    assert trainer.weights("rl") == whole
    again = trainer.metrics("rl")
    timeless = [
        [
            {key: line[key] for key in line.keys() - {*COSTS, "tokens_per_second"}}
            for line in lines
            if "step" in line
        ]
        for lines in (measured, again)
    ]
    assert timeless[0] == timeless[1]
    steps = [line for line in measured if "loss" in line]
    assert steps[-1]["reward"] > 0.6 > 0.2 > steps[0]["reward"]
    assert steps[-1]["kl"] > 1 > abs(steps[0]["kl"])
    assert all(line["ratio"] < 1 + 1e-4 for line in steps[::3])
    assert any(line["clipped"] > 0 for line in steps)
    validations = [line["validation"] for line in measured if "validation" in line]
    assert set(validations[0]) == {"reward", "reply_tokens", "ended"}
    assert validations[-1]["reward"] > 0.9
    saved = load_model(trainer.output / "rl" / "model")
    assert (saved.stage, saved.template) == ("rl", "alpaca")
    assert saved.info["problems"] == {"name": "spoken", "licence": "none"}
    assert saved.info["instructions"] == {"name": "words", "licence": "none"}


def test_ranks_share_the_replies_and_the_step(trainer, tuned):
    trainer.config["rl"] |= SPOKEN | {"epochs": 1}
    trainer.run("rl", "--parent", str(tuned))
    alone = [line for line in trainer.metrics("rl") if "loss" in line]
    shutil.rmtree(trainer.output / "rl")
    trainer.run("rl", "--parent", str(tuned), "--ranks", "2")
    shared = [line for line in trainer.metrics("rl") if "loss" in line]
    for key in ("reward", "entropy", "reply_tokens", "ended"):
        assert shared[0][key] == alone[0][key], "the first replies have the same bits"
    assert shared[0]["gradient_norm"] == pytest.approx(alone[0]["gradient_norm"], rel=1e-4)


def test_problems_whose_replies_all_earn_the_same_are_counted_and_skipped(trainer, tuned):
    trainer.config["rl"] |= SPOKEN | {"epochs": 1, "skip_decided": True}
    trainer.run("rl", "--parent", str(tuned))
    first = next(line for line in trainer.metrics("rl") if "loss" in line)
    assert first["all_right"] == 0
    assert 0 < first["all_wrong"] < 1
    shutil.rmtree(trainer.output / "rl")
    trainer.config["rl"]["skip_decided"] = False
    trainer.run("rl", "--parent", str(tuned))
    unskipped = next(line for line in trainer.metrics("rl") if "loss" in line)
    left = 1 - first["all_wrong"]
    assert unskipped["gradient_norm"] == pytest.approx(left * first["gradient_norm"], rel=1e-4)


def test_a_collapse_stops_it_and_a_lower_floor_goes_on(trainer, tuned):
    trainer.config["rl"] |= SPOKEN | {"checkpoint_minutes": 0.0001}
    trainer.config["rl"] |= {"entropy_floor": 9.0, "entropy_steps": 3, "epochs": 2}
    said = trainer.run("rl", "--parent", str(tuned), status=1)
    assert "less than rl.entropy_floor = 9 nats per token in 3 batches in a row" in said
    assert "Traceback" not in said
    assert trainer.last_step("rl") == 2
    said = trainer.run("rl", "--parent", str(tuned), status=1)
    assert "in 3 batches in a row" in said, "it has not forgotten how many there were"
    trainer.config["rl"]["entropy_floor"] = 0
    said = trainer.run("rl", "--parent", str(tuned))
    assert "going on from step 2" in said


REWARD = """
def raises(prompt, reply, answer):
    return {}[reply]

def nan(prompt, reply, answer):
    return float("nan")

def text(prompt, reply, answer):
    return "1"

def leaves(prompt, reply, answer):
    import os
    os._exit(3)

def endless(prompt, reply, answer):
    while True:
        pass

def prints(prompt, reply, answer):
    print("asked", prompt, reply, answer, input if False else "")
    return len(reply) / 10
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("raises", r"raises with the reply '.*': KeyError: .* \(line 3\); correct it"),
        ("nan", r"nan with the reply '.*' returned nan: it must return a finite number"),
        ("text", r"TypeError: .*it returned .*1.*, which is no number.*; correct it"),
        ("leaves", r"leaves with the reply '.*' ended its process; .*reward-output\.txt has what"),
        ("endless", r"endless with the reply '.*' took more than 0\.5 seconds; make it faster"),
        ("nothing", r"cannot be loaded: AttributeError: .*defines no function nothing"),
    ],
)
def test_a_function_that_fails_is_one_sentence(tmp_path, name, sentence):
    (tmp_path / "mine.py").write_text(REWARD)

    def reward():
        rewards = Rewards(f"{tmp_path}/mine.py:{name}", 0.5, tmp_path)
        return rewards.of("Say hen.", "hen", "hen")

    with pytest.raises(UserError, match=sentence) as raised:
        reward()
    assert str(raised.value).startswith("rl.reward: ")


def test_a_function_that_prints_does_so_into_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(REWARD)
    rewards = Rewards([f"{tmp_path}/mine.py:prints", "0.5 * number"], 5, tmp_path)
    assert rewards.of("Add.", "It is 1,000.", "1000.0") == pytest.approx(1.2 + 0.5)
    rewards.close()
    assert "asked Add. It is 1,000. 1000.0" in (tmp_path / "reward-output.txt").read_text()


def test_a_function_that_fails_leaves_the_state_whole(trainer, tuned, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("calls = 0\ndef mine(prompt, reply, answer):\n    return len(reply)\n")
    trainer.config["rl"] |= SPOKEN | {"reward": f"{own}:mine", "checkpoint_minutes": 0.0001}
    trainer.config["rl"] |= {"epochs": 1}
    said = trainer.run("rl", "--parent", str(tuned))
    before = trainer.weights("rl")
    own.write_text("def mine(prompt, reply, answer):\n    return 1 / 0\n")
    said = trainer.run("rl", "--parent", str(tuned), status=1)
    assert "ZeroDivisionError: 'division by zero' (line 2)" in said
    assert "Traceback" not in said
    assert trainer.weights("rl") == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_all_processes_saves_and_the_rerun_goes_on(trainer, tuned, tmp_path, number):
    own = tmp_path / "mine.py"
    own.write_text(
        "import time\ndef mine(prompt, reply, answer):\n"
        "    time.sleep(0.002)\n    return 'hen' in reply\n"
    )
    trainer.config["rl"] |= SPOKEN | {"reward": f"{own}:mine"}
    process = trainer.start_until(3, "rl", "--parent", str(tuned))
    for each in (*psutil.Process(process.pid).children(), process):
        each.send_signal(number)
    _, said = process.communicate(timeout=CEILING)
    assert process.returncode == 128 + number
    assert "saving after this step" in said
    assert "error" not in said
    assert "going on from step" in trainer.run("rl", "--parent", str(tuned))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": 256}, "rl.max_new_tokens is 256, and a problem with its reply has"),
        ({"context": 150, "max_new_tokens": 60}, "leave room for a reply of 60 tokens in rl.conte"),
        ({"reward": "maybe"}, "rl.reward: 'maybe' is no reward; give answer, number, regex"),
        ({"reward": []}, "rl.reward is an empty list; name a reward, such as answer"),
        ({"reward": "number"}, "number needs answers with a number, and 'pig' has none"),
        ({"reward": "regex:("}, "regex:( cannot be loaded: error: "),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(trainer, tuned, changes, sentence):
    trainer.config["rl"] |= changes
    said = trainer.run("rl", "--parent", str(tuned), status=1)
    assert sentence in said.replace("'fox'", "'pig'")
    assert "Traceback" not in said


def test_records_without_answers_are_refused(trainer, tuned):
    trainer.data = shutil.copytree(trainer.data, trainer.output / "data")
    shutil.rmtree(trainer.data / "problems")
    shutil.copytree(trainer.data / "instructions", trainer.data / "problems")
    said = trainer.run("rl", "--parent", str(tuned), status=1)
    assert re.search("holds no problems with answers; give the manifest.json that", said)


# ---- the sampler and the trainer


def sums_do_not_depend_on_the_number_of_rows(engine, dim):
    x, weight = np.random.default_rng(1).standard_normal((2, 1000, dim)).astype(np.float32)
    every = np.empty((len(x), len(weight)), np.float32)
    engine.linear(x, weight, every)
    for rows in range(FEW_ROWS + 1, 4 * FEW_ROWS):
        some = np.empty((rows, len(weight)), np.float32)
        engine.linear(x[:rows], weight, some)
        if not np.array_equal(some, every[:rows]):
            return False
    return True


def test_log_probabilities_of_many_rows_have_the_trainer_s_bits(tokenizer, tmp_path):
    """The CPU engine computes up to FEW_ROWS rows by other sums; above, decoding rounds as
    training does, where BLAS does: with AVX2, it adds up the last rows of a product otherwise."""
    model = ModelConfig(
        vocab_size=288, dim=32, layers=2, heads=4, kv_heads=2, ffn=64, context=64, mtp_heads=2
    )
    problems = [{"instruction": "Say hen.", "input": "", "answer": "hen"}]
    (tmp_path / "train.jsonl").write_text(json.dumps(problems[0]))
    read, _ = read_problems(tmp_path / "train.jsonl", tokenizer, "chat", 40)
    engine = CpuBackend(2)
    transformer = Transformer(
        model, engine.from_host(initial_parameters(model, 1).astype(np.float32) * 5), engine
    )
    sampler = Sampler(
        tokenizer, Rewards("answer", 1, tmp_path), 12, lambda count, part: map(part, range(count))
    )
    stream = RolloutStream(read, sampler, Rl(), 1, model.mtp_heads, seed=1)
    rows = FEW_ROWS + 16
    sampling = Sampling(temperature=1.0, top_p=1.0, seed=3)
    replies = sampler.replies(transformer, read * rows, sampling)
    found = stream.logprobs(transformer, stream.reply_rows(read * rows, replies))
    first = len(read[0].prompt) - 1
    least = min(map(len, replies.tokens))  # until then, no row has left
    assert least > 3
    alike = sums_do_not_depend_on_the_number_of_rows(engine, model.dim)
    for row, sampled in enumerate(replies.logprobs):
        if alike:
            assert found[row, first : first + least].tolist() == sampled[:least]
        assert found[row, first : first + len(sampled)] == pytest.approx(
            sampled, rel=1e-5, abs=1e-5
        )
