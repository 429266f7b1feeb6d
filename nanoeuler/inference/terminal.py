"""A person at a terminal: lines with history, pasted text as one message, and colours.

Without a terminal at both ends, lines are read as they come, and nothing is coloured.
"""

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from nanoeuler import log
from nanoeuler.system.machine import state_folder

KEPT = 1000
"""Messages of the history that are kept."""
MEANINGS = 17
"""Column in which the help says what a command does."""
MESSAGE, NOTICE, RESET = "\x1b[1;36m", "\x1b[2m", "\x1b[0m"
"""Colours: typed text is bold cyan, notices are dim, a reply has the terminal's own."""


class Terminal:
    """Standard input and output of a chat. `is_one`: both are a terminal."""

    def __init__(self) -> None:
        self.is_one = sys.stdin.isatty() and sys.stdout.isatty()
        self.colours = self.is_one and takes_colours()
        self.prompt = "> " if sys.stdin.isatty() else ""
        self.history: History | None = None
        self.pasting = "Each line of a pasted text is a message of its own."

    def start(self, commands: Iterable[str]) -> None:
        """Edit lines with readline, if it is there: with the history of earlier chats, and with
        `commands` completed by Tab."""
        try:
            import readline
        except ImportError:
            return
        if not self.is_one:
            return
        names = sorted(commands)

        def complete(text: str, index: int) -> str | None:
            found = [f"{name} " for name in names if text and name.startswith(text)]
            return found[index] if index < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims("")
        if "libedit" in (readline.__doc__ or ""):  # of macOS, which knows neither of the others
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("tab: complete")
            if os.environ.get("TERM") != "dumb":
                readline.parse_and_bind("set enable-bracketed-paste on")
                self.pasting = "A pasted text of several lines is one message."
            if self.colours:
                self.prompt = f"\001{MESSAGE}\002> "  # the typed text takes the colour over
        self.history = History(readline)

    def read(self) -> str:
        """One message: a line, or several that were pasted together."""
        try:
            text = input(self.prompt)
        finally:
            if self.colours:
                log.write(RESET)
        if self.history:
            self.history.keep(text)
        return text

    def fit(self, text: str) -> str:
        """Lines broken between words where the terminal ends; a list of commands stays one."""
        if not self.is_one:
            return text
        # not $COLUMNS, which readline leaves to the processes that a program starts
        columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
        indent = MEANINGS if columns >= 2 * MEANINGS else 2
        return "\n".join(
            textwrap.fill(
                line,
                columns,
                subsequent_indent=" " * indent if line.startswith("/") else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in text.split("\n")
        )

    def notice(self, text: str) -> str:
        """The text as a notice looks."""
        return f"{NOTICE}{self.fit(text)}{RESET}" if self.colours else self.fit(text)


class History:
    """The messages of earlier chats, in a file that only its owner can read.

    A file that cannot be written costs the history, not the chat. Its lines are JSON, because a
    message may have several lines.
    """

    def __init__(self, readline: Any):
        self.path = state_folder() / "chat-history.jsonl"
        messages: list[str] = []
        with contextlib.suppress(OSError), open(self.path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    messages += [message] if isinstance(message, str) else []
        for message in messages[-KEPT:]:
            readline.add_history(message)
        self.last = messages[-1] if messages else ""
        if len(messages) > 2 * KEPT:
            self.write(messages[-KEPT:], os.O_TRUNC)

    def keep(self, message: str) -> None:
        if message.strip() and message != self.last:
            self.last = message
            self.write([message], os.O_APPEND)

    def write(self, messages: list[str], mode: int) -> None:
        lines = "".join(json.dumps(message) + "\n" for message in messages)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o600)
                file.write(lines)


def takes_colours() -> bool:
    """Whether the terminal and its owner want colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
