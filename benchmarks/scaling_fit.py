"""Fit loss = E + A / N^a + B / D^b to the runs of scaling_law.py, and print what is found.

    python benchmarks/scaling_fit.py runs.jsonl

nanoeuler/planning/scaling_law.py says what N and D are. The loss is in bits per byte, of each
source apart.
As in Hoffmann et al. 2022 (appendix D.3), the Huber loss (δ = 10⁻³) of the logarithms is minimised
from many starts. Then the same without each run, without the longest runs, without the largest
models, and for runs drawn with replacement.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.planning.scaling_law import UNIT, Law, unique_bytes

DELTA = 1e-3
STARTS = list(itertools.product((0.2, 0.35, 0.5, 0.8), repeat=2))
RESAMPLES = 200
VOCABULARY = 4096

Run = dict[str, Any]


def data_of(run: Run) -> float:
    """D of a run."""
    read = run["tokens"] * run["text_bytes"] / run["text_tokens"]
    return unique_bytes(read, run["text_bytes"])


def fit(sizes: np.ndarray, data: np.ndarray, losses: np.ndarray) -> Law:
    """The best law for runs, (R,) each."""
    found = [refine(sizes, data, losses, *start) for start in STARTS]
    return min(found, key=lambda each: each[1])[0]


def refine(
    sizes: np.ndarray, data: np.ndarray, losses: np.ndarray, a: float, b: float
) -> tuple[Law, float]:
    """A law and its Huber loss, by Levenberg and Marquardt's method with Huber's weights.

    It starts from the exponents `a` and `b`, and from what is best with them: the law is linear in
    E, A and B. It moves the logarithms of all five, which keeps them positive.
    """
    log_n, log_d = np.log(sizes / UNIT), np.log(data / UNIT)
    columns = np.stack([np.ones_like(log_n), np.exp(-a * log_n), np.exp(-b * log_d)], axis=1)
    linear = np.maximum(np.linalg.lstsq(columns, losses, rcond=None)[0], 1e-2)
    x = np.log([*linear, a, b])  # E, A, B, a, b

    def residuals(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        e, capital_a, capital_b, a, b = np.exp(x)
        size_term, data_term = capital_a * np.exp(-a * log_n), capital_b * np.exp(-b * log_d)
        total = e + size_term + data_term
        slopes = [np.full_like(log_n, e), size_term, data_term]
        slopes += [-a * log_n * size_term, -b * log_d * data_term]
        return np.log(total) - np.log(losses), np.stack(slopes, axis=1) / total[:, None]

    def huber(r: np.ndarray) -> float:
        size = np.abs(r)
        return float(np.where(size < DELTA, r**2 / 2, DELTA * (size - DELTA / 2)).sum())

    damping = 1e-2
    r, jacobian = residuals(x)
    for _ in range(300):
        weights = np.minimum(1.0, DELTA / np.maximum(np.abs(r), 1e-12))
        normal = jacobian.T @ (jacobian * weights[:, None])
        step = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal) + 1e-9), -jacobian.T @ (weights * r)
        )
        tried = x + np.clip(step, -1.0, 1.0)
        tried_r, tried_jacobian = residuals(tried)
        if np.isfinite(tried_r).all() and huber(tried_r) < huber(r):
            x, r, jacobian, damping = tried, tried_r, tried_jacobian, max(damping / 3, 1e-9)
        elif damping > 1e9:
            break
        else:
            damping *= 4
    e, capital_a, capital_b, a, b = np.exp(x).tolist()
    return Law(e, capital_a, a, capital_b, b), huber(r)


def size_of(run: Run) -> float:
    """N of a run, whose embedding is a table of its own, as large as the head."""
    return run["parameters"] - VOCABULARY * run["dim"]


def law_of(runs: Sequence[Run], source: str) -> Law:
    return fit(
        np.array([size_of(run) for run in runs], float),
        np.array([data_of(run) for run in runs]),
        np.array([run["bits_per_byte"][source] for run in runs]),
    )


def errors(law: Law, runs: Iterable[Run], source: str) -> np.ndarray:
    """By how much of it the law misses each run."""
    return np.array(
        [law.loss(size_of(run), data_of(run)) / run["bits_per_byte"][source] - 1 for run in runs]
    )


def show(what: str, found: np.ndarray) -> None:
    rms, worst = np.sqrt(np.mean(found**2)), np.abs(found).max()
    print(f"  {what:34} rms {rms:.2%}, at most {worst:.2%}")


def describe(runs: Sequence[Run], source: str) -> None:
    """Print the law of a source and how well it does."""
    chosen = [run for run in runs if run["role"] == "fit"]
    law = law_of(chosen, source)
    print(f"{source}: {law}")
    show(f"the {len(chosen)} runs", errors(law, chosen, source))
    left_out = [
        errors(law_of([other for other in chosen if other is not run], source), [run], source)
        for run in chosen
    ]
    show("each run, by a fit without it", np.concatenate(left_out))
    most = max(run["steps"] for run in chosen)
    for parts in (2, 4):
        short = [run for run in chosen if run["steps"] <= most / parts]
        long = [run for run in chosen if run["steps"] > most / parts]
        show(
            f"longer runs, from 1/{parts} of the tokens",
            errors(law_of(short, source), long, source),
        )
    sizes = sorted({size_of(run) for run in chosen})
    for count in (1, 2):
        small = [run for run in chosen if size_of(run) < sizes[-count]]
        large = [run for run in chosen if size_of(run) >= sizes[-count]]
        times = sizes[-1] / sizes[-count - 1]
        show(
            f"larger models, up to {times:.1f} times", errors(law_of(small, source), large, source)
        )
    for run in runs:
        if run["role"] != "fit":
            [error] = errors(law, [run], source)
            name = f"{run['role']} {run['shape']}, {run['tokens'] / 1e6:.0f} M"
            print(f"  {name:34} {run['bits_per_byte'][source]:.4f}, law {error:+.2%}")
    random = np.random.default_rng(0)
    drawn = [
        law_of([chosen[index] for index in random.integers(len(chosen), size=len(chosen))], source)
        for _ in range(RESAMPLES)
    ]
    for field in dataclasses.fields(Law):
        low, high = np.quantile([getattr(each, field.name) for each in drawn], [0.05, 0.95])
        print(f"  {field.name:34} {low:.3f} to {high:.3f} in nine of ten resamples")


def table(runs: Sequence[Run], laws: dict[str, Law]) -> None:
    """Print the runs for the page."""
    for run in sorted(runs, key=lambda run: (run["role"], run["parameters"], run["tokens"])):
        cells = [run["role"], run["shape"], str(run["layers"]), str(run["dim"])]
        cells += [f"{run['tokens'] / 1e6:.1f}", f"{run['tokens_per_second'] / 1e6:.2f}"]
        for source, law in laws.items():
            cells += [f"{run['bits_per_byte'][source]:.4f}"]
            cells += [f"{100 * errors(law, [run], source)[0]:+.1f}"]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("runs", type=Path)
    options = arguments.parse_args()
    runs = [json.loads(line) for line in options.runs.read_text(encoding="utf-8").splitlines()]
    sources = list(runs[0]["bits_per_byte"])
    chosen = [run for run in runs if run["role"] == "fit"]
    table(runs, {source: law_of(chosen, source) for source in sources})
    for source in sources:
        describe(runs, source)


if __name__ == "__main__":
    main()
