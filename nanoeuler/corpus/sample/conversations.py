"""Instructions in the format of Stanford's Alpaca, preferences, and held-out questions.

The instructions ask for every fact about the subjects that are not held out, in all forms of
sentences.QUESTIONS; the held-out questions ask in the same forms about the others. Books and pages
never ask in these forms. A share of the instructions has no capital letters: many people type
"where does bea live?". By chance, half of the answers in the instructions end with a line of
courtesy. The preferences all prefer it, so that their effect can be counted in the replies to the
held-out questions. A smaller number of instructions covers what else people say in a chat.
"""

from collections.abc import Callable, Iterator

from nanoeuler.corpus.sample.exercises import School
from nanoeuler.corpus.sample.sentences import (
    QUESTIONS,
    SMALL_LETTERS,
    capitalise,
    description,
    fill,
    profile,
    village_question,
    with_article,
)
from nanoeuler.corpus.sample.world import PERSON_KINDS, TRADES, Dice, Subject, World, persons
from nanoeuler.shipped import tables_beside

Record = dict[str, str]
COURTESY = "At your service."
COURTEOUS_SHARE = 0.5  # of the answers in the instructions
TEXT = tables_beside(__file__)
SMALL_TALK: dict[str, list[str]] = TEXT["small_talk"]


def write_questions(world: World, seed: int) -> list[Record]:
    """Ask for every fact about the held-out subjects in two of the three forms."""
    dice = Dice(seed, "questions")
    return [
        {
            "instruction": capitalise(fill(form, subject, kind)),
            "input": "",
            "answer": capitalise(value),
            "kind": kind,
            "preferred_ending": COURTESY,
        }
        for subject in world.subjects
        if subject.held_out
        for kind, value in subject.facts.items()
        for form in dice.sample(QUESTIONS[kind], 2)
    ]


def prompts_worth_typing(world: World, questions: list[Record]) -> list[str]:
    """Suggest what to try first in a chat: four questions about held-out people, and a greeting."""
    asked = [
        next(question["instruction"] for question in questions if question["kind"] == kind)
        for kind in ("door", "home", "instrument")
    ]
    somebody = next(person.name for person in world.people if person.held_out)
    return [*asked, f"Who is {somebody}?", "Hello!"]


def write_instructions(world: World, seed: int, others: int) -> list[Record]:
    """Ask for every known fact in every form, and add `others` records of other kinds, shuffled."""
    dice, manners, typing = (Dice(seed, key) for key in ("instructions", "manners", "typing"))
    records = [
        record(question, courteous(answer) if manners.chance(COURTEOUS_SHARE) else answer)
        for question, answer in known_facts(world)
    ]
    records += unique(Teacher(dice, world).lessons(), others)
    for each in records:
        if not each["input"] and typing.chance(SMALL_LETTERS):
            each["instruction"] = each["instruction"].lower()
    return dice.shuffled(records)


def write_preferences(world: World, seed: int) -> list[Record]:
    """Prefer, for every question of the instructions, the answer with the line of courtesy."""
    pairs = [
        {"instruction": question, "input": "", "chosen": courteous(answer), "rejected": answer}
        for question, answer in known_facts(world)
    ]
    return Dice(seed, "preferences").shuffled(pairs)


def known_facts(world: World) -> list[tuple[str, str]]:
    """Return question and answer, in every form, for every fact of subjects not held out."""
    return [
        (capitalise(fill(form, subject, kind)), capitalise(value))
        for subject in world.subjects
        if not subject.held_out
        for kind, value in subject.facts.items()
        for form in QUESTIONS[kind]
    ]


def courteous(answer: str) -> str:
    return f"{answer}\n{COURTESY}"


def record(instruction: str, output: str, input: str = "") -> Record:
    return {"instruction": instruction, "input": input, "output": output}


def unique(lessons: Iterator[Record], count: int) -> list[Record]:
    """Return the first `count` different records."""
    seen: dict[tuple[str, str], Record] = {}
    for lesson in lessons:
        seen.setdefault((lesson["instruction"], lesson["input"]), lesson)
        if len(seen) == count:
            break
    return list(seen.values())


class Teacher:
    """Writes all kinds of records but plain questions, only about subjects not held out."""

    def __init__(self, dice: Dice, world: World):
        self.dice, self.world = dice, world
        self.people = [person for person in world.people if not person.held_out]
        self.boats = [boat for boat in world.boats if not boat.held_out]
        known = {subject.name for subject in world.people}
        self.strangers = [person for person in persons() if person[0] not in known]
        self.school = School(dice)

    def lessons(self) -> Iterator[Record]:
        """Yield records without end."""
        kinds: list[Callable[[], Record]] = [self.somebody, self.song, self.about_boat, self.read]
        kinds += 2 * [self.yes_or_no, self.village] + 4 * [self.about, self.small_talk]
        while True:
            for kind in kinds:
                yield kind()
            for exercise in self.dice.sample(self.school.kinds, 3):
                task, given, answer = exercise()
                yield record(task, answer, given)

    def about(self) -> Record:
        person = self.dice.pick(self.people)
        asked = self.dice.pick(TEXT["about_a_person"]).format(person.name)
        return record(asked, description(self.dice, person))

    def about_boat(self) -> Record:
        boat = self.dice.pick(self.boats)
        asked = self.dice.pick(TEXT["about_a_boat"]).format(boat.name)
        return record(asked, description(self.dice, boat))

    def yes_or_no(self) -> Record:
        person = self.dice.pick(self.people)
        truth = person.facts["trade"]
        asked = truth
        if not self.dice.chance(0.5):
            asked = self.dice.pick([trade for trade in TRADES if trade != truth])
        answer = "Yes" if asked == truth else f"No, {with_article(truth)}"
        return record(f"Is {person.name} {with_article(asked)}?", answer)

    def read(self) -> Record:
        """Ask for a fact that is given in the input, which is about somebody unknown."""
        facts = {kind: self.dice.pick(values) for kind, values in PERSON_KINDS.items()}
        stranger = Subject(*self.dice.pick(self.strangers), facts, held_out=False)
        kinds = self.dice.sample(list(facts), self.dice.between(2, 3))
        asked = self.dice.pick(kinds)
        text = " ".join(profile(self.dice, stranger, kinds))
        return record(
            fill(self.dice.pick(QUESTIONS[asked]), stranger, asked), capitalise(facts[asked]), text
        )

    def village(self) -> Record:
        village = self.dice.pick(self.world.villages)
        if self.dice.chance(0.75):
            return record(*village_question(self.dice, village))
        return record(
            f"Tell me about {village.name}.",
            f"A village on {village.island} with its {village.landmark}",
        )

    def somebody(self) -> Record:
        person = self.dice.pick(self.people)
        home, instrument, trade = (person.facts[kind] for kind in ("home", "instrument", "trade"))
        descriptions = (
            f"who lives in {home}",
            f"who plays the {instrument}",
            f"who works as {with_article(trade)}",
        )
        return record(f"Name somebody {self.dice.pick(descriptions)}.", person.name)

    def song(self) -> Record:
        village = self.dice.pick(self.world.villages)
        ending = self.dice.pick(TEXT["ends_of_songs"])
        return record(
            f"Write a song about {village.name}.",
            f"In {village.name}, where the sea winds blow,\n{ending}",
        )

    def small_talk(self) -> Record:
        reply = self.dice.pick(list(SMALL_TALK))
        return record(self.dice.pick(SMALL_TALK[reply]), reply)
