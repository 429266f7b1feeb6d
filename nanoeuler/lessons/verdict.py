"""The verdict on a learner's op: which array is wrong, where, by how much, and probably why.

`mistakes.txt` is a bank of the mistakes that people make in each op: small changes of the
specification. A result that is wrong is compared with what each mistake computes, and the sentence
of the one that computes the same is told. The tests plant each one and see that the checks catch
it.

A line `[op function]` begins the mistakes in a function of the op or in a helper of it. A mistake
is its sentence, then lines that the source has (`- `) and lines that take their place (`+ `).
Gradient checks cannot see the `unseen`: what they compute has this derivative.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.lessons.candidate import Candidate, guarded
from nanoeuler.lessons.trials import TRIALS, Call, Trial
from nanoeuler.model.checks.comparison import Comparison
from nanoeuler.model.checks.op_gradients import CHECKS

LIMIT = 1e-6
"""Largest difference allowed, relative to the array's largest number: rounding in float64, or of a
float32 constant, stays below, and every mistake of the bank is above.
"""
BANK = Path(__file__).with_name("mistakes.txt")
MISTAKE = re.compile(r"((?:[^-+].*\n)+)((?:- .*\n)+)((?:\+ .*\n)+)")
"""Sentence, right and wrong."""


@dataclass(frozen=True)
class Mistake:
    """The specification of an op with one piece of its source replaced."""

    op: str
    function: str  # the function of the op, or a helper, that is changed
    right: str  # a piece of its source, which it has once
    wrong: str
    sentence: str  # what a learner who made it is told
    unseen: bool  # by a gradient check

    @functools.cache  # noqa: B019 the bank lives as long as the program
    def plant(self, module: ModuleType, owner: str | None) -> ModuleType:
        """A copy of `module` with this mistake in a function of its class `owner`, or its own."""
        holder = getattr(module, owner) if owner else module
        function = inspect.getsource(
            getattr(holder, self.function, None) or getattr(module, self.function)
        )
        if function.count(self.right) != 1:
            raise ValueError(f"{self.function} does not have {self.right!r} once")
        planted = function.replace(self.right, self.wrong)
        source = inspect.getsource(module).replace(function, planted)
        changed = ModuleType(module.__name__)
        exec(compile(source, f"<{self.op}: {self.sentence}>", "exec"), vars(changed))
        return changed


def read_bank(text: str) -> Iterator[Mistake]:
    for section in text.rstrip("\n").split("\n\n"):
        head, _, body = section.partition("\n")
        op, function, *unseen = head.strip("[]").split()
        for sentence, *pieces in MISTAKE.findall(f"{body}\n"):
            right, wrong = ("\n".join(line[2:] for line in each.splitlines()) for each in pieces)
            yield Mistake(op, function, right, wrong, " ".join(sentence.split()), bool(unseen))


MISTAKES = list(read_bank(BANK.read_text(encoding="utf-8")))


@dataclass(frozen=True, eq=False)
class Result:
    """An array after a call of the candidate."""

    call: Call
    name: str
    found: np.ndarray | None  # None: it was to be returned, and was not
    right: np.ndarray
    is_input: bool  # not to be written
    fault: str | None  # where it is wrong, and by how much
    likely: str | None = None  # the mistake that probably was made


def judge(op: str, candidate: Candidate) -> list[Result]:
    """Every array that the candidate's functions of the op write, and inputs that they changed.

    Raises `UserError` where it has none of them, or one cannot be called.
    """
    trial = TRIALS[op]
    if not set(trial.functions) & set(candidate.functions):
        raise UserError(
            f"{candidate.path}: defines no function of the op {op}; "
            f"define {' or '.join(trial.functions)}"
        )
    calls = [call for call in trial.calls() if call.function in candidate.functions]
    results = [result for call in calls for result in results_of(trial, call, candidate)]
    causes = list(planted(op, trial, calls, results))
    return [with_cause(result, trial, results, causes) for result in results]


def results_of(trial: Trial, call: Call, candidate: Candidate) -> Iterator[Result]:
    names = trial.parameters(call.function)
    before, right = call.given(names), call.values(trial.of(trial.module), names)
    found = candidate.values(trial, call)
    for name, expected in right.items():
        is_input = name in before and np.array_equal(before[name], expected)
        value = found.get(name)
        fault = (
            "is not returned as it must be" if value is None else differences(name, value, expected)
        )
        if fault or not is_input:
            yield Result(call, name, value, expected, is_input, fault)


def with_cause(
    result: Result, trial: Trial, results: list[Result], causes: list[tuple[str, list[Result]]]
) -> Result:
    """`result` with the mistake that probably made it wrong."""
    if result.fault is None:
        return result
    if result.is_input:
        likely: str | None = "it is an input, which must stay as it is; work on a copy"
    elif result.found is None:
        likely = "the function ends without a `return`, or returns another type"
    else:
        likely = next((text for text, wrong in causes if result in wrong), None)
        likely = likely or familiar(result, trial, results)
    return replace(result, likely=likely)


def planted(
    op: str, trial: Trial, calls: list[Call], results: list[Result]
) -> Iterator[tuple[str, list[Result]]]:
    """Mistakes of the bank that explain wrong results, with these: the likeliest mistake first."""
    found = []
    for mistake in MISTAKES if any(result.fault for result in results) else ():
        if mistake.op == op:
            ops = trial.of(mistake.plant(trial.module, trial.owner))
            values = [(call, call.values(ops, trial.parameters(call.function))) for call in calls]
            alike = [
                result
                for call, named in values
                for result in results
                if result.call is call and same(result.found, named.get(result.name))
            ]
            wrong = [result for result in alike if result.fault]
            if wrong:
                found.append((len(alike), mistake.sentence, wrong))
    found.sort(key=lambda each: -each[0])
    yield from ((sentence, wrong) for _, sentence, wrong in found)


def agree(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Which numbers of two arrays of one shape agree within `LIMIT`."""
    finite = np.abs(expected[np.isfinite(expected)])
    scale = finite.max() if finite.size else 1.0
    with np.errstate(invalid="ignore"):
        near = np.abs(found - expected) <= LIMIT * max(scale, 1e-300)
    return near | (found == expected) | (np.isnan(found) & np.isnan(expected))


def same(found: np.ndarray | None, expected: np.ndarray | None) -> bool:
    if found is None or expected is None or found.shape != expected.shape:
        return False
    return found.dtype.kind in "biuf" and bool(agree(found, expected).all())


def differences(name: str, found: np.ndarray, expected: np.ndarray) -> str | None:
    """Where two arrays differ, and by how much; None if nowhere."""
    if found.dtype.kind not in "biuf":
        return f"holds {found.dtype.name} values, and must hold numbers"
    if found.shape != expected.shape:
        return f"has the shape {found.shape}, and must have {expected.shape}"
    wrong = ~agree(found, expected)
    if not wrong.any():
        return None
    places = np.argwhere(wrong)
    first = tuple(places[0].tolist())
    letters = axes(name, found.ndim)
    limits = [
        f"{letter} = {', '.join(map(str, sorted(seen)))}"
        for letter, seen, size in zip(
            letters, (set(column.tolist()) for column in places.T), found.shape, strict=True
        )
        if len(seen) < size
    ]
    only = f", only where {' and '.join(limits)}" if limits else ""
    index = ", ".join(map(str, first))
    values = f"[{index}] is {found[first]:.6g} and must be {expected[first]:.6g}"
    return f"wrong in {len(places)} of {found.size} numbers{only}: {values}"


AXES = {"query": "BTHE", "key": "BSGE", "value": "BSGE", "out": "BTHE"}
"""Axes of `AttentionArrays`, whose names do not end in them."""


def axes(name: str, count: int) -> list[str]:
    """Letters of the axes, from the suffix of the name, or their numbers."""
    letters = AXES.get(name.rpartition(".")[2], name.rpartition("_")[2])
    if len(letters) == count and letters.isupper():
        return list(letters)
    return [f"axis {number}" for number in range(count)]


def familiar(result: Result, trial: Trial, results: list[Result]) -> str | None:
    """A common mistake of any op that explains an array, such as a factor or a sign."""
    name, found, expected = result.name, result.found, result.right
    if found is None or found.shape != expected.shape or found.dtype.kind not in "biuf":
        return None
    if not np.isfinite(found).all():
        return NOT_FINITE
    old = result.call.given(trial.parameters(result.call.function)).get(name)
    if old is not None and same(found, old):
        return f"it is as it was before: `{name}[...] = …` writes into it, `{name} = …` does not"
    if old is not None and same(found, old + expected):
        return "it is added to what was there before, and must be overwritten"
    if old is not None and same(found + old, expected):
        return "it overwrites what was there before, and must be added"
    if same(-found, expected):
        return "the wrong sign: all of it is the negative of what it must be"
    for other in results:
        if other.call is result.call and other.name != name and same(found, other.right):
            return f"swapped: this is what {other.name} must be"
    if same(found, expected.T.reshape(expected.shape)):
        return "a transpose: rows and columns are exchanged"
    if (factor := ratio(found, expected)) is not None:
        return f"a factor: all of it is {factor:.6g} times what it must be"
    for axis, letter in enumerate(axes(name, found.ndim)):
        for shift in (1, -1):
            if same(found, np.roll(expected, shift, axis)):
                return f"off by one: everything is shifted by {shift:+d} along {letter}"
    return None


NOT_FINITE = (
    "it has numbers that are infinite or no number: a division by 0, the logarithm of 0, an "
    "exponential of a large number, or an array that was read before it was written"
)


def ratio(found: np.ndarray, expected: np.ndarray) -> float | None:
    """c where found = c · expected."""
    square = float(np.sum(expected * expected))
    if square == 0 or expected.size < 3:
        return None
    factor = float(np.sum(found * expected)) / square
    return factor if same(found, factor * expected) else None


def check_gradient(op: str, ops: Any) -> list[Comparison]:
    """The gradient of an op beside finite differences of its own forward pass."""
    check = CHECKS.get(op)
    with np.errstate(all="ignore"):
        return list(check(ops, np.random.default_rng(1))) if check else []


def remark(op: str, candidate: Candidate, results: list[Result]) -> str | None:
    """Finite differences of a wrong candidate, where they tell a learner more."""
    wrong = {result.call.function for result in results if result.fault}
    if len(wrong) < 2 and wrong != {"rope"}:
        return None
    try:
        with guarded(candidate.path, op):
            rows = check_gradient(op, candidate.ops(TRIALS[op]))
    except UserError:  # the check has other shapes
        return None
    if not rows or not all(row.passed for row in rows):
        return None
    return "The gradient is the derivative of this forward pass: mend the forward pass first."
