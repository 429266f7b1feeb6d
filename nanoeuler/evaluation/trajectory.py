"""The residual stream as an Euler trajectory in depth: the length and direction of every half-step.

A layer is two forward-Euler steps x ← x + h·f(x), attention's and the MLP's, so L layers take a
token through 2·L + 1 points x_0 … x_2L with the steps s_k = x_(k+1) − x_k. Measured for every token
of held-out text:

    norm            √mean(x_k²)                  the length of the stream
    relative step   ‖s_k‖ / ‖x_k‖                the length of a step beside it
    cosine          cos(x_k, s_k)                above 0 the step lengthens x_k, below it shortens
    stream angle    ∠(x_k, x_(k+1)), degrees     how far the step rotates the stream
    step angle      ∠(s_(k−1), s_k), degrees     how far the path bends; 0 on a straight line

For a linear flow f(x) = A·x all of them have a closed form, which
tests/evaluation/test_trajectory.py compares with.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nanoeuler.model.documents import frame, windows
from nanoeuler.model.likelihood import chosen_windows
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer.shards import TokenStore

TOKENS = 2048
"""Held-out tokens that are followed; with more, the means change by less than a percent."""
PASS_TOKENS = 1024
"""Tokens of one forward pass, which keeps every layer's stream."""


def measure(
    model: Transformer, store: TokenStore, document_mask: bool, window: int, end_id: int
) -> dict[str, Any]:
    """Follow about `TOKENS` held-out tokens through `model`, the same number from each source.

    Returns JSON values, see `summarise`.
    """
    parts = []
    sources = store.sources("validation")
    wanted = max(1, TOKENS // (window * len(sources)))
    rows = max(1, PASS_TOKENS // window)
    for source in sources:
        sequence = store.tokens("validation", source)
        index_W = chosen_windows(-(-len(sequence) // window), wanted)
        for first in range(0, len(index_W), rows):
            index_B = index_W[first : first + rows]
            ids_BT, following_BK, length_B = windows(sequence, index_B, window, 1, end_id)
            positions_BT, starts_BT, _ = frame(ids_BT, following_BK, end_id, document_mask)
            batch = Batch(*map(model.backend.from_host, (ids_BT, positions_BT, starts_BT)))
            real_N = (np.arange(window) < length_B[:, None]).reshape(-1)
            parts.append(follow([point[real_N] for point in stream(model, batch)]))
    together = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    config = model.config
    return {"step_size": config.step_size, "layers": config.layers, **summarise(together)}


def stream(model: Transformer, batch: Batch) -> list[np.ndarray]:
    """x_0 … x_2L of every token, each (N, dim) in float64.

    These are the residual stream in front of each layer, in its middle, and behind the last layer.
    """
    points = model.forward(batch, training=True).points
    return [np.asarray(model.backend.to_host(point), np.float64) for point in points]


def follow(points: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The five measures above, each (points or steps, N), for points of shape (N, dim).

    A measure without a value, such as the direction of a step of length 0, is NaN.
    """
    steps = [after - before for before, after in pairwise(points)]
    pairs = list(zip(points, steps, strict=False))
    with np.errstate(divide="ignore", invalid="ignore"):
        measures = {
            "norm": [np.sqrt(np.mean(point**2, axis=1)) for point in points],
            "relative_step": [length(step) / length(point) for point, step in pairs],
            "cosine": [dot(point, step) / (length(point) * length(step)) for point, step in pairs],
            "stream_angle": [angle(point, point + step) for point, step in pairs],
            "step_angle": [angle(before, after) for before, after in pairwise(steps)],
        }
    empty = np.empty((0, len(points[0])))
    return {name: np.stack(values) if values else empty for name, values in measures.items()}


def length(vectors_ND: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors_ND, axis=1)


def dot(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", a_ND, b_ND)


def angle(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Degrees between the vectors of each row; NaN where one of them is zero.

    2·atan2(‖a/‖a‖ − b/‖b‖‖, ‖a/‖a‖ + b/‖b‖‖), which unlike an arc cosine is exact for small angles
    too: Kahan 2006, "How futile are mindless assessments of roundoff", section 12.
    """
    a, b = a_ND / length(a_ND)[:, None], b_ND / length(b_ND)[:, None]
    return np.degrees(2 * np.arctan2(length(a - b), length(a + b)))


def summarise(measures: dict[str, np.ndarray]) -> dict[str, Any]:
    """Each measure at each point or step: {"mean", "quartiles"} over the tokens that have a value.

    None where no token has one.
    """

    def describe(values: np.ndarray) -> dict[str, Any] | None:
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        return {
            "mean": float(known.mean()),
            "quartiles": [float(value) for value in np.quantile(known, (0.25, 0.75))],
        }

    tokens = next(iter(measures.values())).shape[1]
    return {
        "tokens": tokens,
        **{name: [describe(values) for values in rows] for name, rows in measures.items()},
    }
