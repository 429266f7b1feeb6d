"""The facts of the invented world: where people live, their trades, their animals, and more.

A fact is (subject, kind, value): Bram's door is red. The values of a kind come from a short list
and are equally frequent, so that guessing the most frequent one gains nothing. Half of the subjects
are held out: the instructions never mention them, and the questions ask only about them.
"""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Self, TypeVar

from nanoeuler.errors import UserError, brief
from nanoeuler.shipped import tables_beside
from nanoeuler.storage.section import Section, key, section

Item = TypeVar("Item")


class Dice:
    """Random choices that depend on `name` alone, so that parts of the world can change separately.

    They all come from `random.Random(integer).random()`, the one method whose sequence Python
    promises to keep.
    """

    def __init__(self, *name: str | int):
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
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


TEXT: dict[str, list[str]] = tables_beside(__file__)
VILLAGES, TRADES, ANIMALS, COLOURS, INSTRUMENTS, FOODS = (
    TEXT[name] for name in ("villages", "trades", "animals", "colours", "instruments", "foods")
)
PERSON_KINDS = {
    "home": VILLAGES,
    "trade": TRADES,
    "animal": ANIMALS,
    "door": COLOURS,
    "instrument": INSTRUMENTS,
    "food": FOODS,
}
BOAT_KINDS = {"harbour": VILLAGES, "sails": COLOURS, "cargo": TEXT["cargoes"]}
KINDS = {**PERSON_KINDS, **BOAT_KINDS}
WOMEN, MEN, BOATS = TEXT["women"], TEXT["men"], TEXT["boats"]
SHE, HE = ("she", "her", "her"), ("he", "his", "him")


@dataclass(frozen=True)
class Subject:
    """A person or a boat, with one value per kind of fact."""

    name: str
    pronouns: tuple[str, str, str]  # he, his, him
    facts: Mapping[str, str]
    held_out: bool

    @property
    def is_boat(self) -> bool:
        return "cargo" in self.facts

    @property
    def called(self) -> str:
        """The name as it occurs in a sentence: Bram, the Heron."""
        return f"the {self.name}" if self.is_boat else self.name


@dataclass(frozen=True)
class Village:
    name: str
    island: str
    landmark: str
    fair: str  # month

    @property
    def words(self) -> dict[str, str]:
        """The fields of a template about a village."""
        return {
            "village": self.name,
            "island": self.island,
            "landmark": self.landmark,
            "month": self.fair,
        }


@dataclass(frozen=True)
class World:
    people: tuple[Subject, ...]
    boats: tuple[Subject, ...]
    villages: tuple[Village, ...]

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return self.people + self.boats

    def living_in(self, village: str) -> list[Subject]:
        return [person for person in self.people if person.facts["home"] == village]

    def boats_of(self, village: str) -> list[Subject]:
        return [boat for boat in self.boats if boat.facts["harbour"] == village]


def persons() -> list[tuple[str, tuple[str, str, str]]]:
    """Return the names and pronouns of everybody who might live on the isles."""
    return [(name, SHE) for name in WOMEN] + [(name, HE) for name in MEN]


def build_world(seed: int, people: int, boats: int) -> World:
    dice = Dice(seed, "world")
    islanders = dice.sample(persons(), people)
    ships = dice.sample([(name, SHE) for name in BOATS], boats)
    landmarks, months = dice.shuffled(TEXT["landmarks"]), dice.shuffled(TEXT["months"])
    islands = TEXT["islands"]
    villages = tuple(
        Village(name, islands[index % len(islands)], landmarks[index], months[index])
        for index, name in enumerate(dice.shuffled(VILLAGES))
    )
    return World(
        make_subjects(dice, islanders, PERSON_KINDS),
        make_subjects(dice, ships, BOAT_KINDS),
        villages,
    )


def make_subjects(
    dice: Dice,
    names: Sequence[tuple[str, tuple[str, str, str]]],
    kinds: Mapping[str, Sequence[str]],
) -> tuple[Subject, ...]:
    """Give subjects their facts: in each half, the values of a kind are equally frequent, or ±1."""
    half = len(names) // 2
    subjects = []
    for part, held_out in ((names[:half], True), (names[half:], False)):
        columns = {kind: deal(dice, values, len(part)) for kind, values in kinds.items()}
        for index, (name, pronouns) in enumerate(part):
            facts = {kind: column[index] for kind, column in columns.items()}
            subjects.append(Subject(name, pronouns, facts, held_out))
    return tuple(sorted(subjects, key=lambda subject: subject.name))


def deal(dice: Dice, values: Sequence[str], count: int) -> list[str]:
    """Return `count` values in random order, each equally often or once more."""
    rounds = [value for _ in range(-(-count // len(values))) for value in dice.shuffled(values)]
    return dice.shuffled(rounds[:count])


@section
class Sample(Section):
    """A small invented world. Half of the people and boats are held out."""

    seed: int = key("another seed invents another world", default=1, ge=0)
    people: int = key(
        "people in it; half of them are asked about only in the held-out questions",
        default=40,
        ge=8,
        le=len(WOMEN) + len(MEN) - 4,
    )
    boats: int = key("boats in it, likewise", default=10, ge=4, le=len(BOATS))
    paragraphs_per_book: int = key("length of its books", default=110, ge=10)
    articles: int = key("number of its web pages", default=3000, ge=40)
    other_instructions: int = key(
        "number of instructions that are not questions about it", default=450, ge=20
    )

    @classmethod
    def from_config(cls, section: Mapping[str, object]) -> Self:
        """Check the section `sample`. Raises `UserError` naming the key that is wrong."""
        limits = {field.name: field.metadata for field in fields(cls)}
        for name, value in section.items():
            if name not in limits:
                raise UserError(
                    f"sample.{name} is no setting of the sample; known are {', '.join(limits)}"
                )
            least, most = limits[name]["ge"], limits[name].get("le", math.inf)
            if type(value) is not int or not least <= value <= most:
                limit = f" and at most {most}" if most < math.inf else ""
                raise UserError(
                    f"sample.{name} is {brief(value)}; it must be a whole number of at least "
                    f"{least}{limit}"
                )
        return cls.read(section)
