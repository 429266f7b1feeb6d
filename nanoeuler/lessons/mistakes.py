"""The mistakes that people make in each op: a bank of small changes of the specification.

The tests plant each one and see that the checks catch it. `nanoeuler check --candidate` compares
what a learner's op computes with what each mistake computes, and says the sentence of the one that
computes the same.

The bank is `mistakes.txt`. A line `[op function]` begins the mistakes in a function of the op or in
a helper of it. A mistake is its sentence, then lines that the source has (`- `) and lines that take
their place (`+ `). Gradient checks cannot see the `unseen`: what they compute has this derivative.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

BANK = Path(__file__).with_suffix(".txt")
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
