"""The one exception for users' mistakes: its text is the whole message."""

from collections.abc import Iterable


class UserError(Exception):
    """Something outside the program is wrong: a file, a key, a value, a server, a full disk.

    The text is one sentence that says what is wrong, where (file, line or key) and what to do about
    it. The command line prints it without a traceback and exits with status 1.
    """


LONGEST, LONGEST_PATH = 60, 300
"""Characters of a wrong value that a message shows."""


def brief(value: object, longest: int = LONGEST) -> str:
    """`repr(value)`, shortened when long, for a message about a wrong value."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
