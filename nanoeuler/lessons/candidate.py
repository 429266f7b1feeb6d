"""Read a file in which a learner has written functions of an op, and run them.

A function has the parameters of the specification's, with or without `self`, so that a copy of the
specification is a candidate, too. Whatever goes wrong in the file becomes one sentence with its
line.
"""

import contextlib
import inspect
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.lessons.trials import TRIALS, Call, Trial
from nanoeuler.storage.files import read_text, sha256_text

SECONDS = 10
"""The longest that the file, or a call of its functions, may take."""
LARGEST = 1 << 20
"""Bytes of a file."""
LONGEST = 200
"""Characters of a message that are shown."""


class TooLong(BaseException):
    """The time is over. `except Exception` does not catch it."""


@dataclass(frozen=True)
class Candidate:
    """The functions of a file, by name."""

    path: Path
    hash: str  # of the file's text
    functions: dict[str, FunctionType]

    def engine(self, base: type) -> Any:
        """The class of engines `base` with the candidate's functions in the place of its own."""
        ops = {name for trial in TRIALS.values() for name in trial.functions}
        members: dict[str, Any] = {
            name: function if takes_self(function) else staticmethod(function)
            for name, function in self.functions.items()
            if name in ops and hasattr(base, name)
        }
        members |= {"name": f"candidate-{self.hash[:8]}", "candidate": self.hash}
        return type("CandidateBackend", (base,), members)

    def ops(self, trial: Trial) -> Any:
        """An implementation of an op: an engine in float64, or a namespace."""
        if trial.owner:
            return self.engine(getattr(trial.module, trial.owner))(np.float64)
        return SimpleNamespace(**self.functions)

    def values(self, trial: Trial, call: Call) -> dict[str, np.ndarray]:
        """The arrays of a call of the candidate. Raises `UserError` where it cannot be called."""
        self.check_parameters(trial, call)
        with guarded(self.path, call.function):
            return call.values(self.ops(trial), trial.parameters(call.function))

    def check_calls(self) -> None:
        """Raise `UserError` for a function that cannot be called as the specification's is."""
        for trial in TRIALS.values():
            for call in trial.calls():
                if call.function in self.functions:
                    self.check_parameters(trial, call)

    def check_parameters(self, trial: Trial, call: Call) -> None:
        function = self.functions[call.function]
        arguments = (None, *call.arguments) if takes_self(function) else call.arguments
        try:
            inspect.signature(function).bind(*arguments, **call.options)
        except TypeError as error:
            asked = ", ".join([*trial.parameters(call.function), *call.options])
            raise UserError(
                f"{self.path}: line {function.__code__.co_firstlineno}: {call.function} cannot be "
                f"called as {call.title} ({error}); give it the specification's parameters: {asked}"
            ) from None


def takes_self(function: FunctionType) -> bool:
    return function.__code__.co_varnames[:1] == ("self",)


def read_candidate(path: Path) -> Candidate:
    """The functions that the file defines. Raises `UserError` where it cannot be run."""
    try:
        text = read_text(path, LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); give your Python file") from None
    namespace: dict[str, Any] = {"__name__": "candidate", "__file__": str(path)}
    with guarded(path, "the file"):
        exec(compile(text, str(path), "exec"), namespace)
    functions = {
        name: value
        for name, value in namespace.items()
        if isinstance(value, FunctionType) and value.__code__.co_filename == str(path)
    }
    return Candidate(path, sha256_text(text), functions)


@contextlib.contextmanager
def guarded(path: Path, what: str) -> Iterator[None]:
    """Run code of the file `path`: prints are counted, and what it raises is a `UserError`.

    So is more than `SECONDS` of it.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), limited(path, what):
            yield
    except UserError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserError(explain(path, what, error)) from None
    if text := printed.getvalue().strip():
        first = text.splitlines()[0][:LONGEST]
        log.line(
            "prints",
            f"{path}: {what} prints {first!r}; take the print out before you train, where an op "
            "is called thousands of times",
        )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Where code of the file `path` raises in a training step, say so in one sentence."""
    try:
        yield
    except Exception as error:
        if lines_of(path, error):
            raise UserError(explain(path, "training", error)) from None
        raise


@contextlib.contextmanager
def limited(path: Path, what: str) -> Iterator[None]:
    """Raise `TooLong` after `SECONDS`, where Python can be interrupted."""
    alarms = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal alarms
        alarms += 1
        if alarms < 3:
            raise TooLong
        # the file catches everything
        log.line("error", f"{path}: {what} does not end; {ENDLESS}")
        sys.stderr.flush()
        os._exit(1)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


ENDLESS = "look for a loop whose condition never becomes false"


def explain(path: Path, what: str, error: BaseException) -> str:
    """One sentence about what code of the file raised, with the file's own line."""
    lines = lines_of(path, error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, message = [error.lineno], f"{type(error).__name__}: {error.msg}"
    else:
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}".rstrip(": ")
    where = f"{path}: line {lines[-1]}" if lines else f"{path}"
    if isinstance(error, TooLong):
        return f"{where}: {what} does not end within {SECONDS} seconds; {ENDLESS}"
    if isinstance(error, SystemExit):
        return f"{where}: {what} ends the program; take the exit out"
    return f"{where}: {what} raises {message}; mend that line and check again"


def lines_of(path: Path, error: BaseException) -> list[int | None]:
    """Lines of the file that were at work when `error` was raised, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == str(path)]
