"""The functions of an op as a learner gets them: signatures and formulas without bodies."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence

from nanoeuler.backend import records as backend_records
from nanoeuler.lessons.trials import Trial

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
