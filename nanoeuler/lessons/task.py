"""What a learner has to write: the functions of an op, without what they compute."""

import ast
import inspect
import textwrap

from nanoeuler.lessons.trials import Trial

HEADER = """\
# Delete the functions that you do not write: the specification's stand in for them.
# An array argument is written in place, as in `out[...] = x`; its letters are its shape.

import numpy as np
"""


def task(trial: Trial) -> str:
    """A file to fill in: each function with its parameters and what the contract says of it."""
    specification = trial.of(trial.module)
    return "\n\n".join([HEADER, *(empty(specification, name) for name in trial.functions)])


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
    """The docstring of the engines' contract, or of the function itself."""
    for kind in reversed(type(specification).__mro__):
        if name in vars(kind) and (text := vars(kind)[name].__doc__):
            return inspect.cleandoc(text)
    return inspect.getdoc(getattr(specification, name)) or ""
