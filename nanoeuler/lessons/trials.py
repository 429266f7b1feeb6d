"""Trials of each op: calls with small inputs of odd shapes.

A call of a backward pass gets what the specification's forward pass saved, so that each function is
judged by itself. Arrays that a call has to write hold other numbers beforehand, as memory does.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from nanoeuler.backend import reference, reference_drafts
from nanoeuler.backend.records import (
    AdamWConstants,
    AttentionArrays,
    DraftRows,
    LayerNorm,
    LogitRows,
    NormGradients,
    ParameterRun,
    PreferencePairs,
    RmsNorm,
)
from nanoeuler.tokenizer import reference as tokenizer_reference
from nanoeuler.training import rollouts, streams
from nanoeuler.training.optimizer.muon import POLYNOMIALS

N, D, F, V = 5, 6, 7, 9
"""Tokens, dim, ffn and vocabulary."""


@dataclass(frozen=True)
class Call:
    """A call of one of the op's functions."""

    function: str
    arguments: tuple[Any, ...]  # arrays, numbers, and records of them
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        records = (each._asdict() for each in self.arguments if hasattr(each, "_asdict"))
        told = [pair for record in records for pair in record.items() if isinstance(pair[1], bool)]
        given = "".join(f", {name}={value}" for name, value in (*told, *self.options.items()))
        return f"{self.function}(…{given})"

    def values(self, holder: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Every array after the call of the holder's function: those given, under `names`, and
        those returned."""
        arguments = copy.deepcopy(self.arguments)
        with np.errstate(all="ignore"):
            result = getattr(holder, self.function)(*arguments, **self.options)
        return named(names, arguments) | dict(arrays("result", result))

    def given(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Every array before the call."""
        return named(names, self.arguments)


def named(names: Sequence[str], arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    pairs = zip(names, arguments, strict=False)
    return {name: array for start, value in pairs for name, array in arrays(start, value)}


def arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of an argument or a result, by their names in it."""
    if isinstance(value, np.ndarray):
        yield name, 1 * value if value.dtype == bool else value  # truth values have no differences
    elif isinstance(value, list):
        nested = any(isinstance(each, list | tuple | np.ndarray) for each in value)
        yield name, np.array(value, object if nested else None)
    elif isinstance(value, tuple):
        parts = getattr(value, "_fields", range(len(value)))
        for part, each in zip(parts, value, strict=True):
            yield from arrays(f"{name}.{part}", each)


@dataclass(frozen=True)
class Trial:
    """An op that can be written anew: its functions, and the calls that try them."""

    functions: tuple[str, ...]
    calls: Callable[[], Sequence[Call]]
    module: ModuleType = reference  # holds the specification
    owner: str | None = "ReferenceBackend"  # the class that has the functions; None: the module

    def of(self, module: ModuleType) -> Any:
        """An implementation: an engine in float64, or a module."""
        return getattr(module, self.owner)(np.float64) if self.owner else module

    def parameters(self, function: str) -> list[str]:
        """Names of the positional parameters that the specification's function has."""
        found = inspect.signature(getattr(self.of(self.module), function)).parameters.values()
        return [each.name for each in found if each.kind is each.POSITIONAL_OR_KEYWORD]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers that differ from call to call of the same trial by their seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def linear() -> list[Call]:
    x, weight, dout = normal(N, D), normal(F, D), normal(N, F, seed=1)
    into = [normal(N, F, seed=2), normal(N, D, seed=2), normal(F, D, seed=2)]
    calls = [Call("linear", (x, weight, into[0]))]
    for scale in (1.0, 0.5):
        scaled = {"scale": scale}
        calls.append(Call("linear_backward_input", (dout, weight, into[1]), scaled))
        calls += [
            Call("linear_backward_weight", (dout, x, into[2]), {"accumulate": accumulate} | scaled)
            for accumulate in (False, True)
        ]
    return calls


def bias() -> list[Call]:
    dout, before = normal(N, F), normal(F, seed=1)
    return [
        Call("add_bias", (normal(N, F, seed=2), normal(F, seed=2))),
        Call("bias_backward", (dout, before), {"accumulate": False, "scale": 0.5}),
        Call("bias_backward", (dout, before), {"accumulate": True, "scale": 0.5}),
    ]


IDS = np.array([3, 0, 3, 8, 3], np.int32)


def embedding() -> list[Call]:
    calls = [Call("embedding", (IDS, normal(V, D), normal(N, D)))]
    given = IDS, normal(N, D, seed=1), normal(V, D, seed=2)
    for accumulate in (False, True):
        calls.append(Call("embedding_backward", given, {"accumulate": accumulate}))
    return calls


def embedding_at() -> list[Call]:
    positions = np.array([0, 1, 2, 0, 1], np.int32)
    tables = normal(V, D), positions, normal(V, D, seed=1)
    return [Call("embedding_at", (IDS, *tables, normal(N, D)))]


def rms_norm() -> list[Call]:
    x, weight, dout = normal(N, D, seed=1), normal(D), normal(N, D, seed=2)
    before, dweight, epsilon = normal(N, D, seed=3), normal(D, seed=3), 0.01
    inverse = 1 / np.sqrt((x * x).mean(axis=1) + epsilon)
    norm = RmsNorm(before, weight, epsilon, normal(N, D, seed=4), normal(N))
    calls = [
        Call("rms_norm", (norm._replace(x_ND=x),)),
        Call("add_rms_norm", (x, dout, 0.7, norm)),
    ]
    saved = norm._replace(x_ND=x, inverse_rms_N=inverse)
    for add in (False, True):
        into = NormGradients(before, dweight, None, add, add)
        calls.append(Call("rms_norm_backward", (dout, saved, into)))
    return calls


def layer_norm() -> list[Call]:
    x, dout, before = (normal(N, D, seed=seed) for seed in range(3))
    weight, bias, step_bias = (normal(D, seed=seed) for seed in range(3))
    centred = x - x.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(axis=1) + 0.01)
    norm = LayerNorm(x, weight, bias, 0.01, before, normal(N))
    added = norm._replace(x_ND=normal(N, D, seed=3))
    saved = norm._replace(inverse_rms_N=inverse)
    calls = [
        Call("layer_norm", (norm,)),
        Call("add_layer_norm", (x, dout, step_bias, 0.7, added)),
    ]
    into = NormGradients(normal(N, D, seed=4), normal(D, seed=4), normal(D, seed=5))
    for add in (False, True):
        to = into._replace(add_to_dx=add, accumulate=add)
        calls.append(Call("layer_norm_backward", (dout, saved, to)))
    return calls


def rope() -> list[Call]:
    table = reference.ReferenceBackend(np.float64).rope_table(10, 6, 100.0)
    given = normal(N, 2, 6), np.array([0, 1, 2, 0, 9], np.int32), table
    return [
        Call("rope", given),
        Call("rope", given, {"inverse": True}),
        Call("rope_table", (4, 6, 100.0)),
    ]


def attention() -> list[Call]:
    """Grouped heads, an odd length, and two documents in the second row; then two new queries of
    each row on five keys, as in decoding, where keys behind the queries hold no text yet."""
    B, T, H, G, E = 2, 5, 6, 2, 4
    query, key, value = normal(B, T, H, E), normal(B, T, G, E), normal(B, T, G, E, seed=1)
    starts = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 3, 3]], np.int32)
    offset, out, lse = np.zeros(B, np.int32), normal(B, T, H, E, seed=2), normal(B, H, T)
    right_out, right_lse = np.empty_like(out), np.empty_like(lse)
    specification = reference.ReferenceBackend(np.float64)
    saved = AttentionArrays(query, key, value, right_out)
    specification.attention(saved, starts, offset, right_lse)
    into = AttentionArrays(
        normal(B, T, H, E, seed=3),
        normal(B, T, G, E, seed=3),
        normal(B, T, G, E, seed=4),
        normal(B, T, H, E, seed=5),
    )
    new = AttentionArrays(query[:, :2], key, value, out[:, :2].copy())
    places = np.array([[0, 0], [1, 1]], np.int32), np.array([3, 2], np.int32)
    return [
        Call("attention", (AttentionArrays(query, key, value, out), starts, offset, lse)),
        Call("attention", (new, *places, lse[:, :, :2].copy())),
        Call("attention_backward", (saved, into, starts, right_lse)),
    ]


def swiglu() -> list[Call]:
    gate, up, dout, first, second = (normal(N, F, seed=seed) for seed in range(5))
    return [
        Call("swiglu", (gate, up, first)),
        Call("swiglu_backward", (dout, gate, up, first, second)),
    ]


def gelu() -> list[Call]:
    x, dout, before = (normal(N, F, seed=seed) for seed in range(3))
    return [Call("gelu", (x, before)), Call("gelu_backward", (dout, x, before))]


def cross_entropy() -> list[Call]:
    """One of the rows has no target, and one has large logits."""
    logits = 3 * normal(N, V)
    logits[4] += 800
    targets = np.array([0, 8, -1, 4, 4], np.int32)
    top = logits.max(axis=1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    weights = np.linspace(0.1, 0.5, N)
    found = LogitRows(logits, targets, normal(N), normal(N, seed=1))
    return [
        Call("cross_entropy", (found,)),
        Call("cross_entropy_backward", (found._replace(lse_R=lse, weights_R=weights),)),
    ]


def loss_weights() -> list[Call]:
    """The second head has no target in the second step."""
    targets = np.array([[[4, 5], [5, -1], [-1, -1]], [[1, 2], [2, 3], [3, -1]]], np.int32)
    lonely = np.where(np.arange(2) == 1, -1, targets)
    importance = np.array([[0.5, 0.5, 1.0], [1.0, 2.0, 0.25]])
    return [
        Call("loss_weights", (targets, (0.75, 0.25))),
        Call("loss_weights", (targets, (0.75, 0.25), importance)),
        Call("loss_weights", (lonely, (0.75, 0.25))),
    ]


def preference() -> list[Call]:
    """Two pairs in the first row; one and an empty slot in the second."""
    pairs = PreferencePairs(
        spans_RP3=np.array([[[0, 2, 4], [5, 6, 9]], [[1, 4, 9], [0, 0, 0]]], np.int32),
        reference_RP2=-np.abs(normal(2, 2, 2)),
        scales_RP2=np.abs(normal(2, 2, 2, seed=1)),
        shares_RP=np.array([[0.5, 0.2], [0.3, 0.0]]),
    )
    logprobs, weights = -np.abs(normal(2, 9, 2)), np.zeros((2, 9, 2))
    return [Call("preference", (logprobs, pairs, 0.3, 0.1, weights, np.zeros(2)))]


def adamw() -> list[Call]:
    """The second update of a matrix, which decays, and of a norm's weight, which does not."""
    given = normal(F), normal(F, seed=1), 0.1 * normal(F, seed=2), np.abs(normal(F, seed=3))
    constants, scalars = AdamWConstants(0.9, 0.95, 0.1, 0.1), np.array([1.0, 0.5, 0.01, 2.0])
    runs = ParameterRun(slice(0, F), True), ParameterRun(slice(0, F), False, 0.5)
    return [Call("adamw_run", (*given, run, constants, scalars)) for run in runs]


def muon() -> list[Call]:
    shapes = (D, F), (F, D)
    return [Call("orthogonalize", (normal(*s), POLYNOMIALS)) for s in shapes]


def merge() -> list[Call]:
    texts = [1, 2, 3, 1, 2, 2, 1], [1, 1, 1, 2], [3, 1, 2], [2, 1]
    pairs = (1, 2), (1, 1), (1, 2), (1, 2)
    return [Call("replace", (symbols, pair, 9)) for symbols, pair in zip(texts, pairs, strict=True)]


def accept_drafts() -> list[Call]:
    """None, one, and all of three drafts are right; behind the one comes a wrong and a right one.

    Three rows, four places each.
    """
    drafts = np.array([[5, 6, 7], [4, 2, 6], [1, 2, 3]], np.int32)
    chosen = np.array([[4, 6, 8, 1], [4, 5, 6, 9], [1, 2, 3, 7]], np.int32)
    x = normal(12, D)
    counts = np.array([3, 4, 5], np.int32), np.array([10, 20, 30], np.int32)
    tokens = np.array([8, 8, 8], np.int32)
    rows = DraftRows(tokens, drafts, *counts)
    return [Call("accept_drafts", (chosen, x, rows, normal(3, D)))]


def policy_gradient() -> list[Call]:
    """Groups of four, one of them of equal rewards; replies behind prompts of several lengths."""
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [2.0, 0.5, -1.0, 0.0]])
    first, behind = np.array([[1], [2], [0], [3]]), np.array([[4], [6], [5], [4]])
    learned = (np.arange(7) >= first) & (np.arange(7) < behind)
    given = learned, np.where(learned, 0.5 * normal(4, 7), 0), np.array([1.0, -0.5, -2.0, 0.25])
    return [
        Call("advantages", (rewards,)),
        Call("advantages", (rewards,), {"by_spread": True}),
        *(Call("token_weights", given, {"clip": clip}) for clip in (None, 0.2)),
    ]


TRIALS = {
    "merge": Trial(("replace",), merge, tokenizer_reference, owner=None),
    "embedding": Trial(("embedding", "embedding_backward"), embedding),
    "embedding_at": Trial(("embedding_at",), embedding_at),
    "linear": Trial(("linear", "linear_backward_input", "linear_backward_weight"), linear),
    "bias": Trial(("add_bias", "bias_backward"), bias),
    "rms_norm": Trial(("rms_norm", "add_rms_norm", "rms_norm_backward"), rms_norm),
    "layer_norm": Trial(("layer_norm", "add_layer_norm", "layer_norm_backward"), layer_norm),
    "attention": Trial(("attention", "attention_backward"), attention),
    "rope": Trial(("rope", "rope_table"), rope),
    "swiglu": Trial(("swiglu", "swiglu_backward"), swiglu),
    "gelu": Trial(("gelu", "gelu_backward"), gelu),
    "cross_entropy": Trial(("cross_entropy", "cross_entropy_backward"), cross_entropy),
    "adamw": Trial(("adamw_run",), adamw),
    "muon": Trial(("orthogonalize",), muon),
    "accept_drafts": Trial(("accept_drafts",), accept_drafts, reference_drafts, owner=None),
    "loss_weights": Trial(("loss_weights",), loss_weights, streams, owner=None),
    "preference": Trial(("preference",), preference),
    "policy_gradient": Trial(
        ("advantages", "token_weights"), policy_gradient, rollouts, owner=None
    ),
}
"""By the name of the op."""
