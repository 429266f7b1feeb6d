"""The facts of the invented world: where people live, their trades, their animals, and more.

A fact is (subject, kind, value): Bram's door is red. The values of a kind come from a short list
and are equally frequent, so that guessing the most frequent one gains nothing. Half of the subjects
are held out: the instructions never mention them, and the questions ask only about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanoeuler.corpus.sample.seeded_random import Dice
from nanoeuler.shipped import tables_beside

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
