"""One step does the same whatever its micro-batches, and AdamW is AdamW."""

from dataclasses import replace

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.training.micro_batches import even_share
from nanoeuler.training.optimizer.adamw import AdamW, parameter_runs
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import TINY


def make_state(dtype=np.float64, recompute=False, **changes):
    constants = {
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
    } | changes
    ops, parameters = ReferenceBackend(dtype), initial_parameters(TINY, 1)
    return TrainingState(TINY, ops, parameters, AdamW(**constants), recompute=recompute)


@pytest.fixture
def rows():
    tokens = np.random.default_rng(1).integers(0, 50, 1000).astype(np.int32)
    return TextStream(tokens, 8, 96, TINY.mtp_weights, 0, True, 1, "text").rows(0)


@pytest.mark.parametrize("micro_batch_rows", [1, 4, 6])
def test_micro_batches_change_a_step_only_by_rounding(rows, micro_batch_rows):
    whole, parts = make_state(), make_state()
    expected = whole.train_step(rows, 12, 1e-2)
    found = parts.train_step(rows, micro_batch_rows, 1e-2)
    assert found.loss == pytest.approx(expected.loss, rel=1e-7)
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("rows", "limit", "share"),
    [(12, 8, 6), (12, 5, 4), (7, 7, 7), (7, 4, 4), (127, 64, 64), (127, 50, 43), (7, 1, 1)],
)
def test_a_prime_number_of_rows_is_computed_in_as_few_parts_as_another(rows, limit, share):
    assert even_share(rows, limit) == share


@pytest.mark.parametrize("micro_batch_rows", [5, 7, 8])
def test_empty_rows_change_a_step_only_by_rounding(rows, micro_batch_rows):
    whole, parts = make_state(), make_state()
    expected = whole.train_step(rows, 12, 1e-2)
    padded = rows.padded(micro_batch_rows)
    assert len(padded.ids) % micro_batch_rows == 0
    found = parts.train_step(padded, micro_batch_rows, 1e-2)
    assert found.loss == pytest.approx(expected.loss, rel=1e-7)
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-5, atol=1e-9)


def test_a_state_that_starts_again_repeats_its_first_step(rows):
    state = make_state()
    state.train_step(rows, 12, 1e-2)
    once = state.parameters.copy()
    state.train_step(rows, 12, 1e-2)
    state.restart(initial_parameters(TINY, 1))
    state.train_step(rows, 12, 1e-2)
    np.testing.assert_array_equal(state.parameters, once)


def test_adamw_follows_its_definition(rows):
    state = make_state(clip_norm=1e9)
    parameters, first, second = state.parameters.copy(), 0.0, 0.0
    for step in range(1, 4):
        state.train_step(rows, 12, 1e-2)
        gradient = state.gradients
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        decay = np.zeros_like(parameters)
        for part, decays, _ in parameter_runs(TINY):
            decay[part] = 0.1 if decays else 0.0
        parameters = parameters - 1e-2 * (
            first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
            + decay * parameters
        )
        np.testing.assert_allclose(state.parameters, parameters, rtol=1e-10, atol=1e-13)


def test_a_long_gradient_is_cut_to_the_clip_norm(rows):
    free, clipped = make_state(clip_norm=1e9), make_state(clip_norm=1e-3)
    norm = free.train_step(rows, 12, 1e-2).gradient_norm
    assert clipped.train_step(rows, 12, 1e-2).gradient_norm == norm
    np.testing.assert_allclose(
        clipped.optimizer.tensors["first_moment"],
        free.optimizer.tensors["first_moment"] * 1e-3 / norm,
        rtol=1e-5,
    )


def test_norms_do_not_decay_and_matrices_do():
    state = make_state()
    before = FlatBuffer(TINY, state.parameters.copy())
    state.schedule.load(np.array([1e-2, 0]))
    state.update()  # all gradients are zero
    after = FlatBuffer(TINY, state.parameters)
    for tensor in before.table:
        factor = 1 - 1e-2 * 0.1 if len(tensor.shape) == 2 else 1.0
        np.testing.assert_allclose(
            after[tensor.name], before[tensor.name] * factor, rtol=1e-12, err_msg=tensor.name
        )


def test_padding_stays_zero(rows):
    state = make_state()
    for _ in range(3):
        state.train_step(rows, 12, 1e-2)
    inside = FlatBuffer(TINY, np.zeros(state.parameters.shape, bool))
    for tensor in inside.table:
        inside[tensor.name][...] = True
    for array in (state.gradients, *state.tensors().values()):
        assert not array[~inside.array].any()


def test_an_update_that_is_not_finite_is_not_made(rows):
    state = make_state()
    state.parameters[0] = np.nan
    before = state.parameters.copy()
    assert not np.isfinite(state.train_step(rows, 12, 1e-2).loss)
    np.testing.assert_array_equal(state.parameters, before)
    assert state.step == 0
    assert state.report[1] == 1


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_alone_or_a_gradient_alone_that_is_not_finite_is_reason_enough(what):
    state = make_state()
    before = state.parameters.copy()
    state.gradients[...] = 1e-3
    wrong = state.portions[0].losses if what == "loss" else state.gradients
    wrong[0] = np.inf
    state.schedule.load(np.array([1e-2, 0]))
    state.update()
    np.testing.assert_array_equal(state.parameters, before)
    assert state.report[1] == 1


def test_rows_may_be_handed_over_while_a_step_is_under_way(rows):
    tokens = np.random.default_rng(2).integers(0, 50, 1000).astype(np.int32)
    following = TextStream(tokens, 8, 96, TINY.mtp_weights, 0, True, 1, "text").rows(0)
    one_by_one, overlapped = make_state(), make_state()
    expected = [one_by_one.train_step(each, 4, 1e-2) for each in (rows, following)]
    overlapped.stage(rows)
    overlapped.start(4, 1e-2)
    overlapped.stage(following)
    found = [overlapped.finish()]
    overlapped.start(4, 1e-2)
    assert [*found, overlapped.finish()] == expected
    np.testing.assert_array_equal(overlapped.parameters, one_by_one.parameters)


def test_heads_that_take_the_tokens_in_parts_change_a_step_only_by_rounding(rows, monkeypatch):
    whole = make_state()
    monkeypatch.setattr(ReferenceBackend, "logits_at_once", 2000)
    parts = make_state()
    names = "ids", "positions", "starts", "targets", "weights"
    rows = replace(rows, **{name: np.concatenate([getattr(rows, name)] * 24) for name in names})
    expected, found = (state.train_step(rows, len(rows.ids), 1e-2) for state in (whole, parts))
    buffers = parts.model.buffers(len(rows.ids), 8, training=True)
    assert len(parts.model.heads.parts(buffers, rows.ids.size)) > 1
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-9, atol=1e-13)


def test_a_part_has_as_many_tokens_as_the_engine_asks_for(rows, monkeypatch):
    monkeypatch.setattr(ReferenceBackend, "logits_at_once", 2000)
    monkeypatch.setattr(ReferenceBackend, "least_logit_tokens", 256)
    state = make_state()
    buffers = state.model.buffers(72, 8, training=True)
    sizes = [part.stop - part.start for part in state.model.heads.parts(buffers, 576)]
    assert sizes == [256, 256, 64]


def test_computing_the_gate_and_up_products_again_changes_no_bit(rows):
    kept, again = make_state(), make_state(recompute=True)
    for state in (kept, again):
        state.train_step(rows, 6, 1e-2)
    blocks = again.model.buffers(6, 8, training=True).blocks
    assert len({id(mlp.gate_up) for mlp in blocks[1::2]}) == 1
    np.testing.assert_array_equal(again.parameters, kept.parameters)


def test_it_learns_a_repeated_row(rows):
    state = make_state(np.float32)
    losses = [state.train_step(rows, 12, 1e-2).loss for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]
