"""The gradient checks catch the mistakes that people make, planted one at a time in each op.

The mistakes are the bank of `nanoeuler/lessons/mistakes.txt`, which also tells learners what they
have done: a sign, a swap or transpose, a term left out. The check has to fail, and to blame the
right op. Mistakes that show only in a whole model, such as sums that are overwritten, have to fail
in `check_model`.
"""

from pathlib import Path

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.lessons.candidate import Candidate
from nanoeuler.lessons.trials import TRIALS
from nanoeuler.lessons.verdict import BANK, MISTAKES, check_gradient, judge
from nanoeuler.model.checks.model_gradients import CASES, check_model
from nanoeuler.model.checks.op_gradients import check_ops

CHECKED = {
    case: {"add_rms_norm": "rms_norm", "add_layer_norm": "layer_norm"}.get(case, case)
    for case in dict.fromkeys(comparison.case for comparison in check_ops())
}
"""Ops by their names in `check_ops`."""
SEEN = [mistake for mistake in MISTAKES if mistake.op in CHECKED.values() and not mistake.unseen]


def failures(comparisons):
    return {comparison.case for comparison in comparisons if not comparison.passed}


def planted(mistake):
    """The specification with a mistake."""
    trial = TRIALS[mistake.op]
    return trial.of(mistake.plant(trial.module, trial.owner))


def test_no_line_of_the_bank_is_skipped():
    read = [
        *(word for each in MISTAKES for word in each.sentence.split()),
        *(f"- {line}" for each in MISTAKES for line in each.right.splitlines()),
        *(f"+ {line}" for each in MISTAKES for line in each.wrong.splitlines()),
    ]
    lines = [line for line in BANK.read_text(encoding="utf-8").splitlines() if line[:1] not in "["]
    kept = [[line] if line[:2] in ("- ", "+ ") else line.split() for line in lines]
    assert sorted(read) == sorted(word for words in kept for word in words)


@pytest.mark.parametrize("op", TRIALS)
def test_a_mistake_fails_the_check_of_its_op_unless_it_is_its_derivative(op):
    for mistake in MISTAKES:
        if mistake.op == op and (rows := check_gradient(op, planted(mistake))):
            assert (failures(rows) == set()) == mistake.unseen, mistake.sentence


@pytest.mark.parametrize("op", TRIALS)
def test_a_learner_who_made_a_mistake_is_told_that_one_and_no_other(op):
    trial = TRIALS[op]
    for mistake in MISTAKES:
        if mistake.op == op:
            ops = planted(mistake)
            holder = type(ops) if trial.owner else ops
            functions = {name: getattr(holder, name) for name in trial.functions}
            results = judge(op, Candidate(Path("mine.py"), "", functions))
            told = {result.likely for result in results if result.fault}
            assert told == {mistake.sentence}


def test_a_mistake_fails_the_check_of_no_other_op():
    first = {mistake.op: mistake for mistake in reversed(SEEN)}
    for op, mistake in first.items():
        blamed = {CHECKED[case] for case in failures(check_ops(planted(mistake)))}
        # LayerNorm is an RMSNorm of what is left of x without its mean, GEGLU has a GELU, and
        # attention is checked with a cap, too
        also = {"gelu": {"geglu"}, "attention": {"attention with a cap"}}.get(op, set())
        assert blamed - {"layer_norm"} == ({op} | also) - {"layer_norm"}


def test_every_op_of_the_lessons_has_a_sign_a_swap_and_a_missing_term_planted():
    """An op that no lesson is about may have none."""
    for op in TRIALS:
        assert sum(mistake.op == op for mistake in MISTAKES) >= 3


class TiedGradientOverwritten(ReferenceBackend):
    """The embedding's gradient replaces head 0's instead of adding to it.

    No op is wrong, but the model is.
    """

    def embedding_backward(self, ids_N, dout_ND, dtable_VD, *, accumulate):
        super().embedding_backward(ids_N, dout_ND, dtable_VD, accumulate=False)


class EulerStepIgnored(ReferenceBackend):
    """The backward pass leaves out h."""

    def linear_backward_input(self, dout_NO, weight_OI, dx_NI, scale=1.0):
        super().linear_backward_input(dout_NO, weight_OI, dx_NI)


class HeadNormIgnored(ReferenceBackend):
    """The backward pass takes the norm of heads for no norm at all."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        if dweight_E is not None:
            dweight_E[...] = 0


class HeadNormWithoutItsProjection(ReferenceBackend):
    """The gradient along the head itself, which the norm takes away, stays."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        before = dx_NHE.copy()
        super().head_norm_backward(dx_NHE, norm, dweight_E, accumulate=accumulate)
        weight = 1.0 if norm.weight_E is None else norm.weight_E
        dx_NHE[...] = before * weight * norm.inverse_rms_NH[..., None]


class HeadNormWeightForgotten(ReferenceBackend):
    """The gradient of a head's input leaves the weight out."""

    def head_norm_backward(self, dx_NHE, norm, dweight_E, *, accumulate):
        plain, scratch = norm._replace(weight_E=None), dx_NHE.copy()
        super().head_norm_backward(scratch, norm, dweight_E, accumulate=accumulate)
        super().head_norm_backward(dx_NHE, plain, None, accumulate=False)


QK_NORM = "QK-norm with weights, one key/value head"


@pytest.mark.parametrize(
    ("mistaken", "case"),
    [
        (HeadNormIgnored, "QK-norm without weights"),
        (HeadNormIgnored, QK_NORM),
        (HeadNormWithoutItsProjection, "QK-norm without weights"),
        (HeadNormWithoutItsProjection, QK_NORM),
        (HeadNormWeightForgotten, QK_NORM),
        (TiedGradientOverwritten, "tied heads, head size apart from dim / heads"),
        (EulerStepIgnored, "one layer, K = 2, step size 0.5, two documents a row"),
    ],
)
def test_a_mistake_between_the_ops_fails_the_check_of_the_model(mistaken, case):
    assert failures(check_model(case, mistaken(np.float64))) == {case}


def test_the_quick_form_catches_a_mistake_in_the_backward_pass_of_every_op():
    llama, gpt2 = list(CASES)[-1], list(CASES)[-2]
    chosen = {
        mistake.op: mistake
        for mistake in sorted(reversed(SEEN), key=lambda each: "backward" in each.function)
        if mistake.op != "preference"  # preferences are no part of a model
    }
    for op, mistake in chosen.items():
        quick = gpt2 if op in ("bias", "embedding_at", "layer_norm", "gelu") else llama
        assert failures(check_model(quick, planted(mistake))) == {quick}, op
