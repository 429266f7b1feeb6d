"""The depth picture's numbers against closed forms: for vectors, and for a model's own flow."""

import numpy as np
import pytest

from nanoeuler.backend import make_backend
from nanoeuler.evaluation.trajectory import angle, follow, stream, summarise
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Batch, Transformer

H = 0.25


def euler(matrix: np.ndarray, steps: int) -> list[np.ndarray]:
    """x ← x + h·A·x from 50 random starts."""
    points = [np.random.default_rng(1).standard_normal((50, len(matrix)))]
    for _ in range(steps):
        points.append(points[-1] + H * points[-1] @ matrix.T)
    return points


def rotation(planes: int, speed: float) -> np.ndarray:
    """A skew matrix with A² = −speed²·I: every vector rotates with the same speed."""
    return np.kron(np.eye(planes), np.array([[0.0, -speed], [speed, 0.0]]))


def test_a_rotation_rotates_every_step_by_one_angle_and_lengthens_by_one_factor():
    speed = 2.0
    measured = follow(euler(rotation(3, speed), steps=5))
    np.testing.assert_allclose(measured["relative_step"], H * speed, rtol=1e-12)
    np.testing.assert_allclose(measured["cosine"], 0, atol=1e-12)
    np.testing.assert_allclose(
        measured["stream_angle"], np.degrees(np.arctan(H * speed)), rtol=1e-12
    )
    np.testing.assert_allclose(measured["step_angle"], np.degrees(np.arctan(H * speed)), rtol=1e-12)
    np.testing.assert_allclose(
        measured["norm"][1:] / measured["norm"][:-1], np.sqrt(1 + (H * speed) ** 2), rtol=1e-12
    )
    assert measured["norm"].shape == (6, 50)
    assert measured["step_angle"].shape == (4, 50)


def test_a_decay_shrinks_along_a_straight_line():
    measured = follow(euler(-np.eye(6), steps=4))
    np.testing.assert_allclose(
        measured["norm"], measured["norm"][0] * (1 - H) ** np.arange(5)[:, None], rtol=1e-12
    )
    np.testing.assert_allclose(measured["relative_step"], H, rtol=1e-12)
    np.testing.assert_allclose(measured["cosine"], -1, rtol=1e-12)
    np.testing.assert_allclose(measured["stream_angle"], 0, atol=1e-6)
    np.testing.assert_allclose(measured["step_angle"], 0, atol=1e-6)


def test_growth_and_rotation_together():
    """A = a·I + ω·J: the multiplier 1 + h(a + iω) is one complex number."""
    measured = follow(euler(0.5 * np.eye(4) + rotation(2, 1.0), steps=3))
    multiplier = 1 + H * (0.5 + 1.0j)
    np.testing.assert_allclose(
        measured["norm"][1:] / measured["norm"][:-1], abs(multiplier), rtol=1e-12
    )
    np.testing.assert_allclose(
        measured["stream_angle"], np.degrees(np.angle(multiplier)), rtol=1e-12
    )
    np.testing.assert_allclose(measured["cosine"], 0.5 / abs(0.5 + 1.0j), rtol=1e-12)


def test_small_and_straight_angles_are_exact():
    a, tiny = np.array([[1.0, 0.0]] * 3), 1e-9
    b = np.array([[np.cos(tiny), np.sin(tiny)], [-2.0, 0.0], [0.0, 3.0]])
    np.testing.assert_allclose(angle(a, b), [np.degrees(tiny), 180, 90], rtol=1e-9)


def linear_model(speed: float, layers: int) -> Transformer:
    """A model whose attention rotates x/rms(x) by a skew matrix, token by token, and whose MLP
    does nothing."""
    shape = {
        "dim": 8,
        "layers": layers,
        "heads": 2,
        "kv_heads": 2,
        "ffn": 8,
        "context": 4,
        "mtp_heads": 1,
        "vocab_size": 32,
        "step_size": H,
    }
    config, backend = ModelConfig.from_dict(shape), make_backend("reference")
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    # This makes a stream of length about 1, where the norm's epsilon is small.
    model.weights.embedding[...] *= 50
    for block, weights in zip(model.blocks[::2], model.weights.blocks[::2], strict=True):
        weights.query_key_value[...] = 0
        weights.query_key_value[block.form.value] = np.eye(8)
        weights.output[...] = rotation(4, speed)
    for weights in model.weights.blocks[1::2]:
        weights.down[...] = 0
    return model


def test_a_models_own_flow_has_the_closed_form():
    """x ← x + h·A·x/rms(x) with A skew: every step of attention lets rms² grow by (hω)² and rotates
    x by atan(hω / rms)."""
    speed, layers = 1.5, 3
    model = linear_model(speed, layers)
    # Every token is a document of its own, so that attention sees it alone.
    starts = np.arange(4, dtype=np.int32)[None]
    measured = follow(stream(model, Batch(np.array([[3, 5, 7, 9]], np.int32), starts, starts)))
    rms_0 = measured["norm"][0]
    assert rms_0.min() > 0.3
    expected = np.sqrt(rms_0**2 + (H * speed) ** 2 * np.arange(layers + 1)[:, None])
    np.testing.assert_allclose(measured["norm"][::2], expected, rtol=1e-4)
    np.testing.assert_allclose(measured["relative_step"][::2], H * speed / expected[:-1], rtol=1e-4)
    np.testing.assert_allclose(
        measured["stream_angle"][::2], np.degrees(np.arctan(H * speed / expected[:-1])), rtol=1e-4
    )
    np.testing.assert_allclose(measured["cosine"][::2], 0, atol=1e-5)
    assert (measured["relative_step"][1::2] == 0).all()  # the MLP's
    summary = summarise(measured)
    assert summary["tokens"] == 4
    assert summary["cosine"][1] is None  # a step of length 0 has no direction
    assert summary["step_angle"] == [None] * (2 * layers - 1)
    assert summary["norm"][0]["mean"] == pytest.approx(rms_0.mean())
    low, high = summary["norm"][0]["quartiles"]
    assert rms_0.min() <= low <= high <= rms_0.max()


def test_values_that_are_no_numbers_are_left_out():
    points = [np.array([[1.0, 0.0], [np.nan, 1.0]]), np.array([[1.0, 1.0], [2.0, 1.0]])]
    summary = summarise(follow(points))
    assert summary["relative_step"][0] == {"mean": 1.0, "quartiles": [1.0, 1.0]}
