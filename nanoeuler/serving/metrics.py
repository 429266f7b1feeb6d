"""Counters and histograms in Prometheus's text format (version 0.0.4)."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets."""


class Histogram:
    """How often something took how long."""

    def __init__(self, name: str, meaning: str):
        self.name, self.meaning = name, meaning
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.meaning, "histogram")
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{le="{bound}"}} {below}'
        yield f"{self.name}_sum {self.total:.6f}"
        yield f"{self.name}_count {below}"


class Metrics:
    """Counters of a server since its start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.tokens: Counter[tuple[str, str]] = Counter()  # by model, and prompt or reply
        self.gone = 0
        self.first_token = Histogram(
            "nanoeuler_first_token_seconds", "Time from a request to its first token."
        )
        self.next_token = Histogram(
            "nanoeuler_next_token_seconds", "Time from a token of a reply to the next."
        )

    def text(self, writing: int, waiting: int, connections: int) -> str:
        return "\n".join(self.lines(writing, waiting, connections)) + "\n"

    def lines(self, writing: int, waiting: int, connections: int) -> Iterator[str]:
        yield from head("nanoeuler_requests_total", "Requests answered.", "counter")
        for (path, status), count in sorted(self.requests.items()):
            yield f'nanoeuler_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from head("nanoeuler_tokens_total", "Tokens read and written.", "counter")
        for (model, kind), count in sorted(self.tokens.items()):
            yield f'nanoeuler_tokens_total{{model="{model}",kind="{kind}"}} {count}'
        gone = "Requests whose client went away before the end."
        for name, meaning, kind, value in (
            ("clients_gone_total", gone, "counter", self.gone),
            ("replies_running", "Replies that are being written.", "gauge", writing),
            ("jobs_waiting", "Prompts that wait for a place.", "gauge", waiting),
            ("connections", "Open connections.", "gauge", connections),
        ):
            yield from head(f"nanoeuler_{name}", meaning, kind)
            yield f"nanoeuler_{name} {value}"
        yield from self.first_token.lines()
        yield from self.next_token.lines()


def head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
