"""Log for people: `tag key=value` lines, and a progress line with rate and time left.

Lines go to standard error and, with `--log`, to a file in append mode, so that a retry, or a stage
that is refused while another process is at work, keeps the lines that are there. Machines read
`metrics.jsonl` and manifests, never these lines.
"""

import contextlib
import errno
import io
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from nanoeuler.errors import UserError

LOGGER = logging.getLogger("nanoeuler")
UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabs and line ends
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # those that turn the direction of writing
    r"\ud800-\udfff]"  # halves of characters
)


WholeRun = Callable[[str, float, float], float | None]
"""Seconds until the whole run ends, from the tag, the rate and the seconds left of its work now;
None where that is unknown, or nothing follows."""
ATTEMPT = "attempt process="
"""How the first line of a process begins in a file that has lines of earlier ones."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ERASE = "\r\x1b[K"
"""Returns a terminal to the start of its line and erases it."""


def printable(text: str) -> str:
    """Escape what a terminal would obey in a text from outside: "\\x1b", "\\u202e".

    Tabs and line ends stay. Every text of a server, a file or a model that reaches a terminal or a
    log passes through here; `line` and `Progress` see to theirs.
    """
    return UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


class PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Terminal(logging.StreamHandler):
    """Standard error. On a terminal, a line takes the place of the progress line, which follows."""

    progress = ""
    whole_run: WholeRun | None = None
    in_text = False
    """Does the terminal's line hold the beginning of a text, such as a reply?"""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        Terminal.in_text = False
        if self.progress:
            self.draw(self.progress)

    def format(self, record: logging.LogRecord) -> str:
        before = "\n" if self.in_text else ERASE
        return (before if self.stream.isatty() else "") + super().format(record)

    def draw(self, text: str) -> None:
        """Rewrite the progress line; an empty text erases it."""
        self.progress = text
        tell(ERASE + text, self.stream, end="")

    def handleError(self, record: logging.LogRecord) -> None:
        if is_closed(sys.exception()):
            forget(self.stream)
        else:
            super().handleError(record)


class LogFile(logging.FileHandler):
    """A file to which lines are appended.

    On a full disk they are still on standard error, which says once that the file lacks some.
    """

    lacks_lines = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.lacks_lines:
            self.lacks_lines = True
            problem = sys.exception()
            line("warning", f"--log {self.baseFilename}: lacks lines from here on ({problem})")


def start(path: str | Path | None = None, whole_run: WholeRun | None = None) -> None:
    """Send log lines to standard error and append them to the file at `path`, if given.

    Progress lines say how long the whole run takes, if `whole_run` knows. Makes the file's folder.
    Raises `UserError` when the file cannot be opened.
    """
    LOGGER.handlers.clear()
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    terminal = Terminal(sys.stderr)
    terminal.whole_run = whole_run
    add(terminal)
    if path is not None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            file = LogFile(path, mode="a", encoding="utf-8")
            add(file)
            if Path(path).stat().st_size:
                began = time.strftime("%Y-%m-%d %H:%M:%S")
                file.emit(logging.makeLogRecord({"msg": f"{ATTEMPT}{os.getpid()}  began {began}"}))
        except OSError as error:
            raise UserError(
                f"--log {path}: cannot be written ({error.strerror}); "
                "give the path of a file that can"
            ) from error


def silence() -> None:
    """Write no more lines."""
    LOGGER.handlers.clear()


def add(handler: logging.Handler) -> None:
    handler.setFormatter(PrintableFormatter("%(message)s"))
    LOGGER.addHandler(handler)


def has_file() -> bool:
    """Whether lines go to a file, too, as those of the workflow's stages do."""
    return any(isinstance(handler, LogFile) for handler in LOGGER.handlers)


def open_closed() -> None:
    """Let standard streams that were closed (`>&-`) lead nowhere. Otherwise the first file that is
    opened takes the place of one, and gets what child processes print."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - open as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def lenient(stream: TextIO) -> None:
    """Make `stream` replace characters that its encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def tell(text: str, stream: TextIO, end: str = "\n") -> None:
    """Print where a person may read it: a terminal that has been closed is no error."""
    try:
        print(text, file=stream, end=end, flush=True)
    except OSError as error:
        if not is_closed(error):
            raise
        forget(stream)


def write(text: str) -> None:
    """Write a part of a text to standard output, at once. A line of the log that comes between its
    parts leaves on a terminal what is there."""
    sys.stdout.write(text)
    sys.stdout.flush()
    if shown := COLOUR.sub("", text):
        Terminal.in_text = sys.stdout.isatty() and not shown.endswith("\n")


def is_closed(error: BaseException | None) -> bool:
    """Whether this is how writing to a closed terminal fails, or to a pipe that nobody reads."""
    return isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPIPE)


def forget(stream: TextIO) -> None:
    """Let what is written to `stream` go nowhere, also what it could not write until now."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def line(tag: str, message: str = "", **values: Any) -> None:
    """Log `tag key=value …  message`. Floats are shown with four significant digits."""
    parts = [tag, *(f"{key}={format_value(value)}" for key, value in values.items())]
    LOGGER.info("  ".join([" ".join(parts), message]) if message else " ".join(parts))


def format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_seconds(seconds: float) -> str:
    """Write a duration the way people say it: 8s, 2m05s, 3h10m."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def size(amount: float) -> str:
    """Write a number of bytes: 12 kB, 5.0 GB."""
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB" if amount < 1000 else f"{amount / 1000:.1f} TB"


def counted(number: float, noun: str) -> str:
    """Write a number of things the way people say it: 1 pair, 2,400 pairs, 0.5 epochs."""
    written = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{written} {noun}{'' if number == 1 else 's'}"


def rounded(number: float) -> str:
    """Write an amount in a few figures: 7, 950, 9.95k, 12.00M."""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= least:
            return f"{number / least:.2f}{unit}"
    return f"{number:.0f}"


class Progress:
    """Share done, time left and rate of a stage, to be used as a context manager.

    On a terminal that is one line, which is rewritten in place; in a log it is a line every
    ten seconds. `unit` names what is counted ("MB", "tokens", "steps"); `scale` converts the
    amounts given to `update` into that unit. The rate is that of the last minute, without the first
    amount, during which machine code is compiled; before the second the time left is not known.
    Nothing is printed for work that ends within two seconds.
    """

    WINDOW, INTERVAL = 60.0, 10.0  # seconds

    def __init__(
        self,
        tag: str,
        total: float | None,
        unit: str,
        scale: float = 1.0,
        done: float = 0.0,
    ):
        self.tag, self.total = tag, total
        self.unit, self.scale = unit, scale
        self.first = self.done = done
        self.began = time.monotonic()
        self.shown = self.began - self.INTERVAL + 2.0
        self.reached: deque[tuple[float, float]] = deque()
        """The last minute's times, and what was done by then."""
        found = next((each for each in LOGGER.handlers if isinstance(each, Terminal)), None)
        self.whole_run = found.whole_run if found else None
        draws = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.terminal = found if draws else None

    def update(self, amount: float, **values: Any) -> None:
        """Count `amount` more as done; `values` are shown behind the rest."""
        self.done += amount
        now = time.monotonic()
        if not self.reached or now - self.reached[-1][0] >= 0.5:
            self.reached.append((now, self.done))
            while now - self.reached[0][0] > self.WINDOW and len(self.reached) > 2:
                self.reached.popleft()
        interval = 0.5 if self.terminal and now - self.began > 2.0 else self.INTERVAL
        if now - self.shown >= interval:
            self.shown = now
            since, before = self.reached[0] if len(self.reached) > 1 else (self.began, self.first)
            self.show((self.done - before) / max(now - since, 1e-9), values)

    def show(self, rate: float, values: dict[str, Any]) -> None:
        """Show the line; `rate` is the amount of a second."""
        left = None
        if self.total and rate > 0 and len(self.reached) > 1:
            left = (self.total - self.done) / rate
        whole = self.whole_run(self.tag, rate, left) if self.whole_run and left else None
        if self.terminal:
            columns = 0
            with contextlib.suppress(OSError):  # it has been closed
                columns = os.get_terminal_size(sys.stderr.fileno()).columns
            text = printable("  ".join(self.parts(rate, left, whole, values)))
            self.terminal.draw(text[: (columns or 80) - 1])  # a line that wraps cannot be erased
            return
        shown = {"done": f"{self.done * self.scale:,.0f}{self.unit}".replace(",", "_")}
        if self.total:
            shown["share"] = f"{100 * self.done / self.total:.0f}%"
        shown["rate"] = f"{rate * self.scale:.4g}{self.unit}/s"
        if left is not None:
            shown["eta"] = format_seconds(left)
        if whole is not None:
            shown["eta_of_whole_run"] = format_seconds(whole)
        line(self.tag, **shown, **values)

    def parts(
        self, rate: float, left: float | None, whole: float | None, values: dict[str, Any]
    ) -> Iterator[str]:
        """The parts of a terminal's line, what matters most first: a narrow one cuts the rest."""
        yield f"{self.tag} {self.done / self.total:4.0%}" if self.total else self.tag
        if left is not None:
            yield f"{format_seconds(left)} left" + (
                f" ({format_seconds(whole)} of the whole run)" if whole is not None else ""
            )
        for key, value in values.items():
            if value != "n/a":
                yield f"{key} {format_value(value)}"
        of = f" of {rounded(self.total * self.scale)}" if self.total else ""
        yield f"{rounded(self.done * self.scale)}{of} {self.unit}"
        yield f"{rounded(rate * self.scale)} {self.unit}/s"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.terminal and self.terminal.progress:
            self.terminal.draw("")
