"""Signals that stop a training stage after the present step, when it has saved its state."""

import contextlib
import signal
from collections.abc import Iterator

from nanoeuler import log


class Stopped(Exception):
    """Training was stopped by a signal and has saved its state."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM. A second signal of the same kind acts as usual."""
    received: list[int] = []
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: object) -> None:
        received.append(number)
        log.line("stopping", f"{signal.Signals(number).name}: saving after this step")
        signal.signal(number, earlier[signal.Signals(number)])

    for number in earlier:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
