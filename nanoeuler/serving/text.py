"""The text of a reply, token by token, up to the first stop string."""

from collections.abc import Sequence

from nanoeuler.tokenizer import StreamDecoder, Tokenizer


class ReplyText:
    """Text appears once it is whole UTF-8 and cannot be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self.decoder = StreamDecoder(tokenizer)
        self.stops = stops
        self.held = ""
        """Text that a stop string may yet turn out to begin with."""
        self.stopped = False

    def push(self, *tokens: int) -> str:
        """Return the text that `tokens` make certain. `stopped` is set behind a stop string."""
        return self.take(self.decoder.push(*tokens))

    def end(self) -> str:
        """Return what was held back, once no token follows."""
        if self.stopped:
            return ""
        text = self.take(self.decoder.flush())
        rest, self.held = self.held, ""
        return text + rest

    def take(self, text: str) -> str:
        if not self.stops:
            return text
        self.held += text
        found = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            certain, self.held, self.stopped = self.held[: min(found)], "", True
            return certain
        border = len(self.held) - self.possible_start()
        certain, self.held = self.held[:border], self.held[border:]
        return certain

    def possible_start(self) -> int:
        """Characters at the end of `held` with which a stop string begins."""
        longest = min(len(self.held), max(map(len, self.stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stops):
                return length
        return 0
