"""Waiting for an event: it costs no time once the event is there, however slow the machine is."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CEILING = 600.0  # seconds, which only a test that hangs reaches


def wait_until(
    happened: Callable[[], object],
    process: subprocess.Popen | None = None,
    log: Path | None = None,
) -> None:
    """Return when `happened()` is true; fails when `process`, which writes `log`, ends first."""
    deadline = time.monotonic() + CEILING
    while not happened():
        if time.monotonic() > deadline:
            if process is not None:
                process.kill()
            raise TimeoutError(f"nothing happened within {CEILING:.0f} s")
        if process is not None and process.poll() is not None and not happened():
            said = log.read_text() if log else process.stderr.read() if process.stderr else ""
            raise AssertionError(f"ended too early with status {process.returncode}\n{said}")
        time.sleep(0.002)
