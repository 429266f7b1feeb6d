"""Ctrl-C, put off where it must not break off: between threads that wait for each other."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Within, Ctrl-C is noted; it does what it does at the end.

    Otherwise it may raise KeyboardInterrupt in the middle of Python's own locks, which then stay
    shut. It reaches the main thread alone, so others have nothing to do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if noted:
        handler(*noted[0])
