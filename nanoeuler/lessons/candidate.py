"""The file in which a learner writes functions of an op: print it to fill in, read it, and run it.

A function has the parameters of the specification's, with or without `self`, so that a copy of the
specification is a candidate, too. Whatever goes wrong in the file becomes one sentence with its
line.
"""

import ast
import contextlib
import inspect
import io
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.backend import records as backend_records
from nanoeuler.errors import UserError
from nanoeuler.lessons.trials import TRIALS, Call, Trial
from nanoeuler.storage.files import read_text, sha256_text

SECONDS = 10
"""The longest that the file, or a call of its functions, may take."""
LARGEST = 1 << 20
"""Bytes of a file."""
LONGEST = 200
"""Characters of a message that are shown."""
HEADER = (
    "# Delete the functions that you do not write: the specification's stand in for them.",
    "# An array argument is written in place, as in `out[...] = x`; its letters are its shape.",
)
IMPORT = "import numpy as np\n"


def task(trial: Trial) -> str:
    """A file to fill in: each function with its parameters and what the contract says of it."""
    specification = trial.of(trial.module)
    header = "\n".join([*HEADER, *records(specification, trial.functions), "", IMPORT])
    return "\n\n".join([header, *(empty(specification, name) for name in trial.functions)])


def empty(specification: object, name: str) -> str:
    """A function without its body and its types."""
    method = getattr(specification, name)
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    given.args = [each for each in given.args if each.arg != "self"]
    for each in [*given.args, *given.kwonlyargs]:
        each.annotation = None
    function.returns = None
    meaning = textwrap.indent(contract(specification, name), "    ").strip()
    if "\n" in meaning:
        meaning += "\n    "
    docstring = [ast.Expr(ast.Constant(meaning))] if meaning else []
    function.body = [*docstring, *ast.parse("raise NotImplementedError").body]
    return ast.unparse(ast.fix_missing_locations(function)) + "\n"


def contract(specification: object, name: str) -> str:
    """The docstring of the engines' contract, and what the specification's own adds to it.

    That of a backward pass has the gradients: where there is a contract, to find them is the task.
    """
    kinds = [vars(kind).get(name) for kind in reversed(type(specification).__mro__)]
    texts = [inspect.cleandoc(each.__doc__) for each in kinds if each and each.__doc__]
    if "backward" in name:
        texts = texts[:1]
    return "\n\n".join(texts) or inspect.getdoc(getattr(specification, name)) or ""


def records(specification: object, names: Sequence[str]) -> Iterator[str]:
    """The fields of the records among the arguments of functions, as comments."""
    told: set[str] = set()
    for name in names:
        for argument, kind in inspect.get_annotations(getattr(specification, name)).items():
            if getattr(kind, "__module__", "") == backend_records.__name__ and argument not in told:
                told.add(argument)
                yield f"# The fields of `{argument}`:"
                yield from (f"#     {line}" for line in fields(kind))


def fields(kind: type) -> list[str]:
    """The lines of a record's source that hold its fields."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (definition,) = ast.parse("\n".join(lines)).body
    assert isinstance(definition, ast.ClassDef)
    first = next(each for each in definition.body if isinstance(each, ast.AnnAssign))
    return textwrap.dedent("\n".join(lines[first.lineno - 1 :])).splitlines()


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
        exec(compile(text.encode(), str(path), "exec"), namespace)  # bytes may begin with a mark
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
