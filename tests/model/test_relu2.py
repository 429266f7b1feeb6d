"""ReLU² in the MLP: `model.activation: relu2`."""

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.playable import obstacle
from nanoeuler.interchange.plain_model import plain_model
from nanoeuler.model.checks.model_gradients import check_model
from nanoeuler.model.checks.op_gradients import check_ops
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count, training_flops_per_token
from nanoeuler.model.transformers_config import transformers_keys
from nanoeuler.training.check_form import check_form

CASE = "ReLU², step size 0.5, two documents a row"
CONFIG = ModelConfig.from_dict({"preset": "small", "layers": 2, "activation": "relu2"})


def failures(comparisons):
    return [row for row in comparisons if not row.passed]


def test_it_is_its_definition():
    x = np.array([[-2.0, -0.0, 0.5, 3.0, np.nan]])
    out, dx, again = np.empty((3, 1, 5))
    ops = ReferenceBackend(np.float64)
    ops.relu2(x, out)
    ops.relu2_backward(np.full_like(x, 10.0), x, dx, again)
    np.testing.assert_array_equal(out, [[0, 0, 0.25, 9, np.nan]])
    np.testing.assert_array_equal(again, out)
    np.testing.assert_array_equal(dx, [[0, 0, 10, 60, np.nan]])


def test_its_mlp_has_no_gate_and_two_thirds_of_the_work():
    gated = ModelConfig.from_dict({"preset": "small", "layers": 2})
    assert parameter_count(gated) - parameter_count(CONFIG) == 2 * 128 * 341
    saved = training_flops_per_token(gated, 64) - training_flops_per_token(CONFIG, 64)
    assert saved == 3 * 2 * 2 * 128 * 341


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("engine", [CpuBackend(2), ReferenceBackend(np.float64)], ids=["cpu", "64"])
def test_an_engine_trains_and_decodes_it_as_the_specification_does(engine, recompute):
    rows = list(check_form(engine, CONFIG, recompute=recompute))
    assert failures(rows) == []
    assert max(row.error for row in rows) < (1e-4 if engine.name == "cpu" else 1e-11)


class SquareForgotten(ReferenceBackend):
    def relu2(self, x, out):
        np.maximum(x, 0, out=out)


class FactorForgotten(ReferenceBackend):
    def relu2_backward(self, dout, x, dx, out=None):
        super().relu2_backward(0.5 * dout, x, dx, out)


class NegativesPass(ReferenceBackend):
    def relu2_backward(self, dout, x, dx, out=None):
        super().relu2_backward(dout, np.abs(x), dx, out)


class OutputNotSquared(ReferenceBackend):
    """The output that the weight's gradient takes, which no derivative of the op shows."""

    def relu2_backward(self, dout, x, dx, out=None):
        positive = np.maximum(x, 0)
        super().relu2_backward(dout, x, dx, out)
        if out is not None:
            out[...] = positive


@pytest.mark.parametrize(
    "mistaken", [SquareForgotten, FactorForgotten, NegativesPass, OutputNotSquared]
)
def test_planted_mistakes_fail_the_checks(mistaken):
    blamed = {row.case for row in failures(check_ops(mistaken(np.float64)))}
    assert blamed == (set() if mistaken is OutputNotSquared else {"relu2"})
    if mistaken is not SquareForgotten:  # the forward pass is the specification's own there
        assert failures(check_model(CASE, mistaken(np.float64)))
    assert failures(check_form(mistaken(np.float64), CONFIG))


def test_other_programs_do_not_get_it(tmp_path):
    saved = SavedModel(CONFIG, initial_parameters(CONFIG, 1), tmp_path, "pretrain", None)
    with pytest.raises(UserError, match=r"model\.activation is relu2, which other programs do not"):
        plain_model(saved)
    assert transformers_keys(CONFIG, 0) == {}
    assert obstacle(CONFIG) == "the page does not compute model.activation"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"activation": "relu"}, "model.activation is 'relu'; there are swiglu, geglu, relu2"),
        (
            {"preset": "gpt2-tiny", "activation": "relu2"},
            "model.activation is 'relu2', but model.family gpt2 has swiglu here",
        ),
    ],
)
def test_what_does_not_exist_is_refused(fields, told):
    with pytest.raises(UserError, match=told):
        ModelConfig.from_dict({"preset": "small"} | fields)
