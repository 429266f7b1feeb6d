"""Paragraphs about the world, which books and web pages are composed of.

A storyteller takes people and boats in rounds, so that each occurs about equally often, and mixes
the facts with weather, roads and talk.
"""

from collections.abc import Sequence

from nanoeuler.corpus.sample.sentences import (
    ASKED_IN_TEXT,
    FIRST_PERSON,
    SHORT_ANSWERS,
    STATEMENTS,
    capitalise,
    description,
    enumerate_words,
    fill,
    profile,
    summary,
    tell,
    typed,
    village_question,
)
from nanoeuler.corpus.sample.world import PERSON_KINDS, Dice, Rounds, Subject, Village, World
from nanoeuler.shipped import tables_beside

TEXT = tables_beside(__file__)


class Storyteller:
    """Writes paragraphs with the random choices of `dice`."""

    def __init__(self, dice: Dice, world: World):
        self.dice, self.world, self.typing = dice, world, Dice("typing")
        self.people, self.boats = Rounds(dice, world.people), Rounds(dice, world.boats)
        self.villages = Rounds(dice, world.villages)

    def pick(self, name: str) -> str:
        """Choose one of the texts of that name."""
        return self.dice.pick(TEXT[name])

    def kinds(self, subject: Subject, low: int, high: int) -> list[str]:
        """Choose `low` to `high` kinds of facts of `subject`, in random order."""
        return self.dice.sample(list(subject.facts), self.dice.between(low, high))

    def scenery(self) -> str:
        if self.dice.chance(0.15):
            return f"As they say on the isles, {self.pick('proverbs')}."
        words = {name: self.dice.pick(values) for name, values in TEXT["slots"].items()}
        return self.pick("scenery").format(**words, Time=words["time"])

    def arrival(self) -> str:
        """Begin a chapter with the weather and the village."""
        village = self.villages.next()
        return f"{self.scenery()} {self.pick('arrivals').format(**village.words)} {self.scenery()}"

    def with_scenery(self, sentences: Sequence[str], share: float = 0.25) -> str:
        """Join sentences to a paragraph, sometimes with the weather before or after them."""
        parts = [*sentences]
        if self.dice.chance(share):
            parts.insert(self.dice.pick((0, len(parts))), self.scenery())
        return " ".join(parts)

    def about(self, subject: Subject, kinds: Sequence[str] = ()) -> str:
        """Tell facts of one subject, a sentence each."""
        return self.with_scenery(profile(self.dice, subject, kinds or self.kinds(subject, 3, 6)))

    def portrait(self, subject: Subject) -> str:
        """Tell several facts in one sentence, and others in one each.

        No paragraph tells a fact twice: a model could copy the second time and need not know it.
        """
        kinds = self.kinds(subject, 4, 6)
        return self.with_scenery(
            [summary(self.dice, subject, kinds[:3]), *profile(self.dice, subject, kinds[3:])]
        )

    def boat(self, boat: Subject) -> str:
        kinds = self.kinds(boat, 3, 3)
        return self.with_scenery(
            profile(self.dice, boat, kinds)
            if self.dice.chance(0.6)
            else [summary(self.dice, boat, kinds)]
        )

    def quiz(self, count: int = 6) -> str:
        """Ask about different people, boats and villages, with each answer on the next line."""
        lines: list[str] = []
        for _ in range(count):
            subject = self.boats.next() if self.dice.chance(0.12) else self.people.next()
            if self.dice.chance(0.07):
                question, answer = village_question(self.dice, self.villages.next())
            elif self.dice.chance(0.12):
                question = f"{'What' if subject.is_boat else 'Who'} is {subject.called}?"
                answer = description(self.dice, subject)
            else:
                kind = self.dice.pick(list(subject.facts))
                question = capitalise(fill(self.dice.pick(ASKED_IN_TEXT[kind]), subject, kind))
                answer = capitalise(subject.facts[kind])
            lines += [typed(self.typing, question), answer]
        return "\n".join(lines)

    def dialogue(self, subject: Subject) -> str:
        """Let two strangers talk about someone, each question and answer on its own line."""
        asker, teller = self.dice.sample(TEXT["strangers"], 2)
        lines = []
        for index, kind in enumerate(self.kinds(subject, 2, 4)):
            asked = self.dice.pick(ASKED_IN_TEXT[kind])
            pronoun = index > 0 and self.dice.chance(0.4)
            question = capitalise(fill(asked, subject, kind, pronoun))
            answer = (
                fill(self.dice.pick(SHORT_ANSWERS[kind]), subject, kind)
                if self.dice.chance(0.6)
                else tell(self.dice, subject, kind)[:-1]
            )
            if index == 0 or self.dice.chance(0.3):
                lines.append(f'"{question}" {self.pick("asking")} {asker}.')
                lines.append(f'"{answer}," {self.pick("speaking")} {teller}.')
            else:
                lines.append(f'"{question}"')
                lines.append(f'"{answer}."')
        return "\n\n".join(lines)

    def gathering(self) -> str:
        """Put several people in one village, each with a fact or two."""
        village = self.villages.next()
        guests = self.people.several(self.dice.between(2, 4))
        seen = enumerate_words([f"{guest.name} {self.apposition(guest)}" for guest in guests])
        opening = self.pick("gatherings").format(**village.words, people=seen)
        kinds = list(PERSON_KINDS)
        told = [tell(self.dice, guest, self.dice.pick(kinds)) for guest in guests]
        return " ".join([opening, *told])

    def apposition(self, person: Subject) -> str:
        """Put a fact in a few words that follow the name: the baker, with her otter."""
        kind = self.dice.pick(list(TEXT["appositions"]))
        return fill(self.dice.pick(TEXT["appositions"][kind]), person, kind)

    def village(self, village: Village) -> str:
        """Tell of a village and some people who live there."""
        lines = [
            line.format(**village.words) for line in self.dice.sample(TEXT["village_lines"], 3)
        ]
        for person in self.dice.sample(self.world.living_in(village.name), 3):
            kind = self.dice.pick([kind for kind in PERSON_KINDS if kind != "home"])
            lines += [tell(self.dice, person, "home"), tell(self.dice, person, kind, pronoun=True)]
        lines += [
            tell(self.dice, boat, "harbour")
            for boat in self.dice.sample(self.world.boats_of(village.name), 1)
        ]
        return " ".join(lines)

    def song(self, person: Subject, kinds: Sequence[str] = ()) -> str:
        """Write rhymed couplets about someone."""
        kinds = kinds or self.kinds(person, 2, 5)
        sung = [kind for kind in PERSON_KINDS if kind in kinds]
        couplets = [capitalise(fill(TEXT["couplets"][kind], person, kind)) for kind in sung]
        return "\n".join(couplets).rstrip(";,.") + "."

    def riddle(self, person: Subject) -> str:
        told = self.first_person(person, self.kinds(person, 3, 5))
        return " ".join([*told, f"Who am I? I am {person.name}."])

    def introduction(self, person: Subject, kinds: Sequence[str] = ()) -> str:
        """Let somebody introduce himself or herself."""
        told = " ".join(self.first_person(person, kinds or self.kinds(person, 3, 5)))
        return f'"My name is {person.name}," {person.pronouns[0]} said. "{told}"'

    def ledger(self, subjects: Sequence[Subject]) -> str:
        """Write entries of a register, one line each."""
        lines = []
        for subject in subjects:
            kinds = self.kinds(subject, 2, 4)
            facts = ", ".join(
                f"{'village' if kind == 'home' else kind} {subject.facts[kind]}" for kind in kinds
            )
            lines.append(f"{subject.name}: {facts}.")
        return "\n".join(lines)

    def letter(self, writer: Subject, friend: Subject) -> str:
        news = " ".join(profile(self.dice, friend, self.kinds(friend, 3, 4)))
        own = " ".join(self.first_person(writer, self.kinds(writer, 1, 2)))
        return (
            f"Dear sister,\n\nYou ask me about {friend.name}. {news}\n\n"
            f"Here nothing has changed. {own} {self.scenery()}\n\nYour {writer.name}"
        )

    def errand(self, person: Subject) -> str:
        """Describe a person who must be found."""
        kinds = self.kinds(person, 3, 4)
        told = " ".join(
            capitalise(fill(self.dice.pick(STATEMENTS[kind]), person, kind, pronoun=index > 0))
            for index, kind in enumerate(kinds)
        )
        opening = f"{capitalise(self.pick('strangers'))} had a letter for {person.name}."
        return f'{opening} "{told}" That was all that anybody could say.'

    def first_person(self, person: Subject, kinds: Sequence[str]) -> list[str]:
        """Tell facts in the first person, a sentence each."""
        return [fill(self.dice.pick(FIRST_PERSON[kind]), person, kind) for kind in kinds]
