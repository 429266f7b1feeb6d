"""Sums about the shops and ferries of the isles, which a calculator solves once they are written.

A worked answer has the calculator's call as GSM8K writes it: `<<3*14=42>>42 marks`. Some worked
sums among the instructions show the form, and problems for `rl` teach the rest by their answers
alone.
"""

from collections.abc import Callable
from typing import NamedTuple

from nanoeuler.corpus.sample.world import VILLAGES, Dice
from nanoeuler.shipped import tables_beside

TEXT = tables_beside(__file__)
WORKED, PROBLEMS = 1000, 480
"""How many sums are instructions, and problems."""


class Sum(NamedTuple):
    kind: str
    text: str
    expression: str
    result: int

    @property
    def answer(self) -> str:
        return f"{self.result} marks"

    @property
    def worked(self) -> str:
        return f"<<{self.expression}={self.result}>>{self.answer}"


class Shop:
    """Writes sums."""

    def __init__(self, dice: Dice):
        self.dice = dice
        self.kinds: tuple[Callable[[], Sum], ...] = (
            self.several,
            self.both,
            self.left,
            self.fare,
        )

    def sums(self, count: int, known: set[str]) -> list[Sum]:
        """`count` sums, of each kind equally many, or ±1. Their questions are new to `known`."""
        sums: list[Sum] = []
        while len(sums) < count:
            made = self.kinds[len(sums) % len(self.kinds)]()
            if made.text not in known:
                known.add(made.text)
                sums.append(made)
        return self.dice.shuffled(sums)

    def sum(self, kind: str, expression: str, result: int, **words: str | int) -> Sum:
        return Sum(kind, self.dice.pick(TEXT["asked"][kind]).format(**words), expression, result)

    def digit(self) -> int:
        return self.dice.between(2, 9)

    def several(self) -> Sum:
        n, p, goods = self.digit(), self.digit(), self.dice.pick(TEXT["goods"])
        return self.sum("several", f"{n}*{p}", n * p, n=n, p=p, goods=goods)

    def both(self) -> Sum:
        p, q = self.digit(), self.digit()
        goods, other = self.dice.sample(TEXT["goods"], 2)
        return self.sum("both", f"{p}+{q}", p + q, p=p, q=q, goods=goods, other=other)

    def left(self) -> Sum:
        m, p, goods = self.dice.pick(TEXT["purses"]), self.digit(), self.dice.pick(TEXT["goods"])
        return self.sum("left", f"{m}-{p}", m - p, m=m, p=p, goods=goods)

    def fare(self) -> Sum:
        n, p, village = self.digit(), self.digit(), self.dice.pick(VILLAGES)
        return self.sum("fare", f"{n}*{p}", n * p, n=n, p=p, village=village)


def write_sums(seed: int) -> tuple[list[Sum], list[Sum]]:
    """Worked sums and problems. No question stands in both."""
    shop, known = Shop(Dice(seed, "sums")), set[str]()
    return shop.sums(WORKED, known), shop.sums(PROBLEMS, known)
