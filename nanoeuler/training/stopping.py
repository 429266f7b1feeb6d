"""Signals that stop a training stage after the present step, when it has saved its state."""

import contextlib
import signal
from collections.abc import Iterator

from nanoeuler import log
from nanoeuler.system.processes import LEFT_ALONE

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, LEFT_ALONE)


class Stopped(Exception):
    """Training was stopped by a signal and has saved its state."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {reason(signal_number)}")
        self.signal_number = signal_number


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM, the SIGHUP of a terminal that is closed, and the end of the starter.

    A second SIGINT or SIGTERM acts as usual. SIGHUP comes twice, from the shell and the terminal,
    and where it is ignored (`nohup`) it stays so.
    """
    received: list[int] = []
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _frame: object) -> None:
        hung_up = number == signal.SIGHUP
        signal.signal(number, signal.SIG_IGN if hung_up else earlier[signal.Signals(number)])
        received.append(number)
        log.line("stopping", f"{reason(number)}: saving after this step")

    for number, handler in earlier.items():
        if number != signal.SIGHUP or handler != signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def reason(number: int) -> str:
    return "the workflow has ended" if number == LEFT_ALONE else signal.Signals(number).name
