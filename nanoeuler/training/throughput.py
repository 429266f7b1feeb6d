"""The speed of training."""

import contextlib
import time
from collections.abc import Iterator


class Throughput:
    """Counts the work since the last line in metrics.jsonl, and the time that it took."""

    def __init__(self, tokens_per_step: int, peak_flops: float | None):
        """`peak_flops` is what the device can do in a second; None where that is unknown."""
        self.tokens_per_step, self.peak_flops = tokens_per_step, peak_flops
        self.restart()

    def restart(self) -> None:
        self.began = time.monotonic()
        self.tokens, self.flops = 0, 0.0

    def add_step(self, flops: float) -> None:
        self.tokens += self.tokens_per_step
        self.flops += flops

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that the context takes."""
        began = time.monotonic()
        yield
        self.began += time.monotonic() - began

    def measure(self) -> tuple[float, float | None]:
        """Tokens per second, and floating-point operations per second over the peak ("MFU")."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        mfu = self.flops / seconds / self.peak_flops if self.peak_flops else None
        return self.tokens / seconds, mfu
