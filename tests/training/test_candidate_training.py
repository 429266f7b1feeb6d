"""Training with ops that a learner wrote."""

import inspect
import textwrap

import pytest

from nanoeuler.backend.reference import ReferenceBackend

SWIGLU = """
import numpy as np

def swiglu(gate, up, out):
    out[...] = gate / (1 + np.exp(-gate)) * up
"""


@pytest.fixture
def train(trainer, tmp_path):
    """train(source) → what pretraining with these ops says."""
    path = tmp_path / "mine.py"
    trainer.config["pretrain"]["tokens"] = 20 * 128

    def run(source, *extra, status=0):
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return trainer.run("pretrain", "--candidate", str(path), *extra, status=status)

    return run


def test_the_specifications_own_op_trains_to_its_weights_in_a_run_of_its_own(train, trainer):
    method = textwrap.dedent(inspect.getsource(ReferenceBackend.swiglu))
    said = train(f"from nanoeuler.backend.reference import *\n\n{method}")
    assert "mine.py computes swiglu" in said
    weights, header = trainer.weights(), trainer.metrics()[0]
    assert header["check"]["passed"]
    said = trainer.run()  # without a candidate it is another run
    assert "its checkpoints are kept in" in said
    assert trainer.weights() == weights
    assert trainer.metrics()[0]["fingerprint"] != header["fingerprint"]
    said = train(SWIGLU, status=1)
    assert "holds a run without --candidate, which this one would replace" in said
    assert trainer.weights() == weights


def test_a_wrong_op_is_trained_with_a_warning(train, trainer):
    said = train(SWIGLU.replace("* up", "+ up"))
    assert "these ops do not compute what the specification says" in said
    assert not trainer.metrics()[0]["check"]["passed"]
    assert trainer.metrics()[-1]["finished"]


def test_an_op_that_fails_is_one_sentence_with_its_line(train):
    said = train(SWIGLU.replace("* up", "* up @ up"), status=1)
    assert "mine.py: line 5: training raises ValueError: matmul" in said
    assert "Traceback" not in said
    said = train(SWIGLU.replace("(gate, up, out)", "(gate, up)"), status=1)
    assert "mine.py: line 4: swiglu cannot be called as swiglu(…) (too many positional" in said


def test_a_loss_that_is_no_number_is_blamed_on_the_op_and_not_on_the_learning_rate(train):
    said = train(SWIGLU.replace("* up", "* np.inf"), status=1)
    assert "the loss is not a number at step 1" in said
    assert "rewinds; `nanoeuler check --op` says whether your ops are to blame" in said
    assert "learning_rate" not in said.splitlines()[-1]


def test_a_file_without_an_op_of_training_is_refused(train):
    helper = "def zeros(shape):\n    return None\n"  # an engine has a method of this name
    assert "mine.py: defines no op of training" in train(helper, status=1)
    assert "leave out --ranks, --gpus and --device" in train(SWIGLU, "--device", "cpu", status=1)
