"""The read-answer loop of `nanoeuler chat`.

Every line is a turn, and so are lines that are pasted together at a terminal. An empty line
continues a reply that was broken off; a line that starts with `/` is a command. Ctrl-C stops only
the reply that is being written; Ctrl-D leaves.
"""

import dataclasses
import difflib
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

from nanoeuler.errors import UserError
from nanoeuler.inference.conversation import Conversation, table
from nanoeuler.inference.generate import Reply
from nanoeuler.inference.sampling import Sampling, at_least_one
from nanoeuler.log import counted, printable

T = TypeVar("T")

HELP = """\
/why             what else each token of the last reply might have been
/temperature X   0: always the likeliest token; 1: as the model is
/top-k K         choose among the K likeliest tokens; 0: all
/top-p P         choose among the fewest tokens that hold the share P; 1: all
/seed N          the same seed and turns give the same replies
/max-tokens N    longest reply
/history on|off  whether earlier turns are seen
/reset           forget the conversation
/quit            leave, as Ctrl-D does
An empty line goes on with a reply that was cut off.
A space in front of a line that starts with / sends it as text."""


class Chat:
    """A conversation. `write` shows text at once; notices stand in parentheses.

    At a terminal, `notice_style` makes them look different from replies, `fit` breaks lines between
    words, and `shows_speed` says how fast each reply came.
    """

    def __init__(
        self,
        conversation: Conversation,
        sampling: Sampling,
        max_tokens: int,
        write: Callable[[str], None],
        *,
        notice_style: Callable[[str], str] = str,
        fit: Callable[[str], str] = str,
        shows_speed: bool = False,
    ):
        self.conversation = conversation
        self.sampling = sampling
        self.write = write
        self.max_tokens = max_tokens
        self.notice_style = notice_style
        self.shows_speed = shows_speed
        self.pasting = ""  # what becomes of a pasted text, for /help
        self.commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self.write(fit(f"{HELP}\n{self.pasting}".strip()) + "\n"),
            "/why": self.why,
            "/reset": self.reset,
            "/temperature": lambda value: self.set_sampling("temperature", float, value),
            "/top-k": lambda value: self.set_sampling("top_k", int, value),
            "/top-p": lambda value: self.set_sampling("top_p", float, value),
            "/seed": self.set_seed,
            "/max-tokens": self.set_max_tokens,
            "/history": self.set_history,
        }

    def run(self, read_line: Callable[[], str]) -> None:
        """Serve lines until `read_line` raises EOFError or the line is /quit."""
        self.greet()
        while True:
            try:
                line = read_line()
                if line.strip() == "/quit":
                    return
                self.serve(line)
            except EOFError:
                return
            except KeyboardInterrupt:
                self.notice("nothing to stop; Ctrl-D or /quit leaves", fresh_line=True)
            except UserError as error:
                self.notice(str(error))

    def greet(self) -> None:
        if self.conversation.template is None:
            self.notice("a base model, not tuned to answer: it continues the text that you type")
        keys = "/help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves"
        self.notice(f"{self.history_in_words()}; {keys}")

    def serve(self, line: str) -> None:
        if line.startswith("/") and "\n" not in line:  # a pasted text is no command
            self.obey(line)
        elif line.strip():
            if "\ufffd" in line:  # put there by `lenient`
                self.notice("the model reads \ufffd where this was not UTF-8")
            self.conversation.say(line.strip())
            self.answer()
        elif self.conversation.unfinished:
            self.answer()

    def answer(self) -> None:
        """Write the reply, or more of it, until it ends, reaches the limit or Ctrl-C is pressed."""
        context = self.conversation.writer.model.config.context
        full = f"the context of {context} tokens is full"
        if forgotten := self.conversation.forget(self.max_tokens):
            self.notice(f"{full}: {counted(forgotten, 'oldest turn')} dropped")
        reply = self.conversation.reply(self.sampling, self.max_tokens)
        stopped = False
        try:
            for piece in reply:
                if reply.called:
                    self.write(self.notice_style(f"[{printable(reply.called)}=]"))
                self.write(printable(piece))
        except KeyboardInterrupt:
            stopped = True
        self.conversation.hear(reply)
        self.write("\n")
        if self.shows_speed:
            self.notice(speed(reply))
        if reply.dropped:
            self.notice(f"{full}: its {counted(reply.dropped, 'oldest token')} dropped")
        if stopped:
            self.notice("stopped; an empty line goes on")
        elif not reply.ended:
            self.notice(
                f"cut off at {counted(self.max_tokens, 'token')}; "
                "an empty line goes on, /max-tokens N changes the limit"
            )

    def notice(self, text: str, fresh_line: bool = False) -> None:
        self.write(("\n" if fresh_line else "") + self.notice_style(f"({text})") + "\n")

    # ---- commands

    def obey(self, line: str) -> None:
        name, _, value = line.strip().partition(" ")
        if name not in self.commands:
            near = difflib.get_close_matches(name, [*self.commands, "/quit"], n=1)
            if near:
                raise UserError(f"{name} is no command; did you mean {near[0]}?")
            raise UserError(
                f"{name} is no command; there are {', '.join(self.commands)} and /quit, "
                "and a space in front sends the line as text"
            )
        self.commands[name](value.strip())

    def why(self, _: str) -> None:
        """Show the alternatives of the last reply's tokens."""
        found = self.conversation.last_choices()
        if not found:
            self.notice("there is no reply yet")
            return
        self.notice(
            "each token and the likeliest others, as chances at temperature 1; · is a space"
        )
        columns = min(shutil.get_terminal_size().columns or 80, 100)
        self.write(table(self.conversation.writer, found, columns) + "\n")

    def reset(self, _: str) -> None:
        self.conversation.reset()
        self.notice("the conversation is forgotten")

    def set_sampling(self, field: str, kind: Callable[[str], float], value: str) -> None:
        name = field.replace("_", "-")
        if value:
            change: dict[str, Any] = {field: number(kind, name, value)}
            self.sampling = dataclasses.replace(self.sampling, **change)
        self.notice(f"{name} is {getattr(self.sampling, field)}")

    def set_seed(self, value: str) -> None:
        self.set_sampling("seed", int, value)
        if value:  # the same turns after the same /seed get the same replies
            self.conversation.position = 0

    def set_max_tokens(self, value: str) -> None:
        if value:
            self.max_tokens = at_least_one(number(int, "max-tokens", value))
        self.notice(f"max-tokens is {self.max_tokens}")

    def set_history(self, value: str) -> None:
        if value not in ("on", "off", ""):
            raise UserError(f"/history {value}: it is on or off")
        if value:
            self.conversation.history = value == "on"
        self.notice(self.history_in_words())

    def history_in_words(self) -> str:
        if self.conversation.history:
            return "history is on: earlier turns are seen as far as the context allows"
        return "history is off: every line is taken by itself"


def speed(reply: Reply) -> str:
    rate = reply.tokens_per_second
    return counted(len(reply.ids), "token") + (f", {rate:,.0f} tokens/s" if rate else "")


def number(kind: Callable[[str], T], name: str, value: str) -> T:
    try:
        return kind(value)
    except ValueError as error:
        wanted = "whole number" if kind is int else "number"
        raise UserError(f"/{name} {value}: it takes a {wanted}") from error
