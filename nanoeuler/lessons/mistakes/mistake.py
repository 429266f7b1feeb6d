"""A mistake: the specification of an op with one piece of its source replaced."""

import functools
import inspect
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Mistake:
    """The specification of an op with one piece of its source replaced."""

    op: str
    function: str  # the function of the op, or a helper, that is changed
    right: str  # a piece of its source, which it has once
    wrong: str
    sentence: str  # what a learner who made it is told
    unseen: bool = False  # by a gradient check: what is computed has this derivative

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


def of(op: str, *rows: tuple[str, str, str, str], unseen: bool = False) -> list[Mistake]:
    """Mistakes in `op`: function, right, wrong, sentence."""
    return [Mistake(op, *row, unseen) for row in rows]
