"""Speculative decoding by the model's own heads: how many drafts a pass takes.

Head 0 writes, the heads 1 … K − 1 draft the tokens behind the next one, and a pass over the next
token and its drafts checks them all and drafts again (Leviathan et al. 2023; the heads: Gloeckle et
al. 2024). A draft is right when it is the token that the sampler chooses there, by the random
number of its position. So a reply is the same with drafts and without, token for token: a certain
draft x passes with the probability p(x), which is Leviathan's rule for it.
"""

from collections.abc import Sequence

import numpy as np

TRIAL = 16
"""Passes with all drafts, which show how many of them pay."""
PERIOD = 256
"""Passes with that many, until there is another trial."""


class Speculation:
    """How many drafts the passes of a reply take, and what they brought.

    That is decided by counts and by a cost that the engine states, not by the clock: the same
    reply takes the same passes each time.
    """

    def __init__(self, heads: int, draft_cost: float):
        """`heads`: those of the model, K. `draft_cost`: see `Backend.draft_cost`."""
        self.draft_cost = draft_cost
        self.passes, self.tokens = 0, 0  # of all sequences
        self.drafted, self.right = [0] * (heads - 1), [0] * (heads - 1)  # by head
        self.drafts = heads - 1
        """Drafts that the next pass takes for each sequence, where there is room."""
        self.count = 0
        self.before_trial = self.drafted.copy(), self.right.copy()

    def note(self, drafted: int, right: Sequence[int], tokens: int) -> None:
        """Count a pass: drafts for each sequence, the right ones of each, and tokens of all."""
        self.passes += len(right)
        self.tokens += tokens
        for head in range(drafted):
            self.drafted[head] += len(right)
            self.right[head] += sum(each > head for each in right)
        self.count = (self.count + 1) % (TRIAL + PERIOD)
        if self.count == TRIAL:
            self.drafts = self.best(len(right))
        elif self.count == 0:
            self.drafts = len(self.drafted)
            self.before_trial = self.drafted.copy(), self.right.copy()

    def best(self, rows: int) -> int:
        """The drafts that give the most tokens for their cost, by the trial."""
        drafted, right = np.array([self.drafted, self.right]) - self.before_trial
        tokens = 1 + np.append(0, np.cumsum(right / np.maximum(drafted, 1)))
        cost = 1 + self.draft_cost * (rows * np.arange(1, len(tokens) + 1) - 1)
        return int((tokens / cost).argmax())

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / max(self.passes, 1)

    @property
    def acceptance(self) -> list[float]:
        """Of each head's drafts, the share that was right and stood behind right ones."""
        return [
            right / max(drafted, 1) for right, drafted in zip(self.right, self.drafted, strict=True)
        ]
