"""Seeded choices that are the same on every machine and with every version of Python."""

import hashlib
import random
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Dice:
    """Random choices that depend on `key` alone, so that parts of the world can change separately.

    They all come from `random.Random(integer).random()`, the one method whose sequence Python
    promises to keep.
    """

    def __init__(self, *key: str | int):
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
        self.roll = random.Random(int.from_bytes(digest, "big")).random

    def below(self, count: int) -> int:
        """Return a whole number from 0 to count − 1."""
        return int(self.roll() * count)

    def between(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, share: float) -> bool:
        return self.roll() < share

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Return a shuffled copy (Fisher and Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """Return up to `count` different items, in random order."""
        return self.shuffled(items)[:count]


class Rounds(Generic[Item]):
    """Draws items in shuffled rounds: none is drawn again before all others were."""

    def __init__(self, dice: Dice, items: Sequence[Item]):
        self.dice, self.items = dice, items
        self.waiting: list[Item] = []

    def next(self) -> Item:
        if not self.waiting:
            self.waiting = self.dice.shuffled(self.items)
        return self.waiting.pop()

    def several(self, count: int) -> list[Item]:
        """Draw `count` different items; one that a new round repeats waits for the next call."""
        taken: list[Item] = []
        again: list[Item] = []
        while len(taken) < count:
            item = self.next()
            (again if item in taken else taken).append(item)
        self.waiting += again
        return taken
