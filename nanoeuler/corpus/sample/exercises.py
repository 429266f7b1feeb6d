"""Small exercises with words: lists, opposites, counting. They need no fact about the isles.

They occur on the school pages of the web and in the instructions.
"""

from collections.abc import Callable
from typing import NamedTuple

from nanoeuler.corpus.sample.sentences import capitalise, enumerate_words, with_article
from nanoeuler.corpus.sample.world import (
    ANIMALS,
    COLOURS,
    FOODS,
    INSTRUMENTS,
    TRADES,
    VILLAGES,
    Dice,
)
from nanoeuler.shipped import tables_beside

TEXT = tables_beside(__file__)
NUMBERS: list[str] = TEXT["numbers"]
CATEGORIES = {
    "animal": ANIMALS,
    "colour": COLOURS,
    "instrument": INSTRUMENTS,
    "trade": TRADES,
    "village": VILLAGES,
    "food": FOODS,
}
OPPOSITES: dict[str, str] = TEXT["opposites"]
PAST: dict[str, str] = TEXT["past"]


class Exercise(NamedTuple):
    task: str
    given: str  # the task's input, may be empty
    answer: str


class School:
    """Writes exercises with their answers."""

    def __init__(self, dice: Dice):
        self.dice = dice
        self.kinds: tuple[Callable[[], Exercise], ...] = (
            self.name_some,
            self.pick_one,
            self.count,
            self.reverse,
            self.sort,
            self.first_or_last,
            self.capitals,
            self.past,
            self.opposite,
            self.sentence,
        )

    def words(self, low: int, high: int) -> list[str]:
        category = self.dice.pick((ANIMALS, COLOURS, INSTRUMENTS, TRADES))
        return self.dice.sample(category, self.dice.between(low, high))

    def name_some(self) -> Exercise:
        category, count = self.dice.pick(list(CATEGORIES)), self.dice.between(2, 3)
        words = self.dice.sample(CATEGORIES[category], count)
        task = f"Name {NUMBERS[count - 2].lower()} {TEXT['plurals'][category]}."
        return Exercise(task, "", capitalise(enumerate_words(words)))

    def pick_one(self) -> Exercise:
        category, *others = self.dice.sample(
            [category for category in CATEGORIES if category != "food"], 3
        )
        answer = self.dice.pick(CATEGORIES[category])
        words = self.dice.shuffled(
            [answer, *(self.dice.pick(CATEGORIES[other]) for other in others)]
        )
        return Exercise(
            f"Which of these is {with_article(category)}?", ", ".join(words), capitalise(answer)
        )

    def count(self) -> Exercise:
        words = self.words(2, 5)
        number = NUMBERS[len(words) - 2]
        return Exercise("How many words are in this list?", ", ".join(words), number)

    def reverse(self) -> Exercise:
        words = self.words(2, 3)
        backwards = ", ".join(reversed(words))
        return Exercise("Write the list in reverse order.", ", ".join(words), backwards)

    def sort(self) -> Exercise:
        words = self.words(2, 3)
        in_order = ", ".join(sorted(words))
        return Exercise("Sort the list by the alphabet.", ", ".join(words), in_order)

    def first_or_last(self) -> Exercise:
        words, first = self.words(2, 4), self.dice.chance(0.5)
        return Exercise(
            f"What is the {'first' if first else 'last'} word of the list?",
            ", ".join(words),
            capitalise(words[0 if first else -1]),
        )

    def capitals(self) -> Exercise:
        word = self.dice.pick(self.dice.pick((ANIMALS, COLOURS, INSTRUMENTS, FOODS)))
        return Exercise("Write this word in capital letters.", word, word.upper())

    def past(self) -> Exercise:
        words = {category: self.dice.pick(values) for category, values in CATEGORIES.items()}
        words |= {"animal": with_article(words["animal"]), "trade": with_article(words["trade"])}
        now = self.dice.pick(list(PAST))
        return Exercise(
            "Rewrite the sentence in the past tense.",
            f"She {now.format(**words)}.",
            f"She {PAST[now].format(**words)}.",
        )

    def opposite(self) -> Exercise:
        word = self.dice.pick(list(OPPOSITES))
        return Exercise(f"What is the opposite of {word}?", "", capitalise(OPPOSITES[word]))

    def sentence(self) -> Exercise:
        animal = self.dice.pick(ANIMALS)
        return Exercise(
            f"Write a sentence with the word {animal}.",
            "",
            f"The {animal} sleeps {self.dice.pick(TEXT['places'])}.",
        )
