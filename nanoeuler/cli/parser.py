"""A command-line parser that refuses in one sentence, with the name that was probably meant."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from nanoeuler.errors import UserError, nearest

LONGEST = 300
"""Characters of a refusal that are shown; what was typed may be of any length."""


class UsageError(UserError):
    """A command line that cannot be read."""


class Parser(argparse.ArgumentParser):
    """The parser of the command or of a subcommand. Raises `UsageError` instead of exiting."""

    later: Callable[[argparse.ArgumentParser], None] | None = None

    def add_later(self, add: Callable[[argparse.ArgumentParser], None]) -> None:
        """Let `add` add the arguments when they are needed: it has to import what they mean."""
        self.later = add

    def complete(self) -> None:
        """Add the arguments that come later."""
        add, self.later = self.later, None
        if add:
            add(self)

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        self.complete()
        return super().parse_known_args(*given, **named)

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse; an argument that is left over is refused by the subcommand that was given it."""
        options, unknown = self.parse_known_args(arguments)
        while unknown and "words" in options and not unknown[0].startswith("-"):
            options.words.append(unknown.pop(0))  # argparse takes words in one place only
        if unknown:
            getattr(options, "parser", self).refuse_argument(unknown[0])
        return options

    def refuse_argument(self, argument: str) -> NoReturn:
        if not argument.startswith("-"):
            self.refuse(f"{argument!r} is one argument too many", self.help_sentence())
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = argument.partition("=")[0]
        self.refuse(f"there is no option {name}", self.suggestion(name, flags))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.refuse(f"there is no command {value!r}", self.suggestion(value, known))
        flag = "/".join(action.option_strings) or action.metavar or action.dest
        self.refuse(f"{flag} is {value!r}", f"it must be one of {', '.join(known)}")

    def suggestion(self, name: str, known: Iterable[str]) -> str:
        near = nearest(name, known)
        return f"did you mean {near}?" if near else self.help_sentence()

    def help_sentence(self) -> str:
        return f"`{self.prog} --help` lists what there is"

    def error(self, message: str) -> NoReturn:
        self.refuse(message, self.help_sentence())

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        shown = problem if len(problem) <= LONGEST else problem[: LONGEST - 1] + "…"
        raise UsageError(f"{self.prog}: {shown}; {remedy}")
