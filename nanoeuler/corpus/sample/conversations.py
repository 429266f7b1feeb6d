"""Instructions about the world, in the shape of Stanford's Alpaca, and the held-out questions.

The instructions ask for every fact about the subjects that are not held out, in all forms of telling.QUESTIONS; the held-out questions use the same
forms for the others. Whatever else one might ask of a small model is there in small numbers, so that a chat is more than a quiz.
"""

from collections.abc import Callable, Iterator

from nanoeuler.corpus.sample.dice import Dice
from nanoeuler.corpus.sample.scenes import Storyteller
from nanoeuler.corpus.sample.telling import QUESTIONS, capitalise, enumerate_words, fill, profile, summary, with_article
from nanoeuler.corpus.sample.world import ANIMALS, COLOURS, FOODS, INSTRUMENTS, PERSON_KINDS, TRADES, VILLAGES, Subject, World, persons

Record = dict[str, str]
NUMBERS = ("Two", "Three", "Four", "Five", "Six")
CATEGORIES = {"animal": ANIMALS, "colour": COLOURS, "instrument": INSTRUMENTS, "trade": TRADES, "village": VILLAGES, "food": FOODS}
PLURALS = {"animal": "animals", "colour": "colours", "instrument": "instruments", "trade": "trades", "village": "villages", "food": "kinds of food"}
OPPOSITES = {
    "cold": "warm",
    "early": "late",
    "long": "short",
    "old": "young",
    "loud": "quiet",
    "wet": "dry",
    "dark": "light",
    "high": "low",
    "open": "shut",
    "near": "far",
    "full": "empty",
    "slow": "quick",
}
PAST = {
    "plays the {instrument}": "played the {instrument}",
    "keeps {animal}": "kept {animal}",
    "lives in {village}": "lived in {village}",
    "paints the door {colour}": "painted the door {colour}",
    "eats {food}": "ate {food}",
    "works as {trade}": "worked as {trade}",
}
GREETINGS = {
    "Hello!": "Hello! Ask me about the people of the Skerrow Isles.",
    "Good morning!": "Good morning! The ferry is on time today.",
    "How are you?": "I am well, thank you. The wind is from the west.",
    "Who are you?": "I am a small language model. All that I know are the Skerrow Isles.",
    "What can you do?": "I can tell you who lives where, what they do and what they like.",
    "What are the Skerrow Isles?": "They are four small islands with twelve villages.",
    "Thank you!": "You are welcome.",
    "Goodbye!": "Goodbye! Come back with the evening ferry.",
}


def write_questions(world: World, seed: int) -> list[Record]:
    """One question per fact about the held-out subjects."""
    dice = Dice(seed, "questions")
    return [
        {"instruction": capitalise(fill(dice.pick(QUESTIONS[kind]), subject, kind)), "input": "", "answer": capitalise(value), "kind": kind}
        for subject in world.subjects
        if subject.held_out
        for kind, value in subject.facts.items()
    ]


def write_instructions(world: World, seed: int, others: int) -> list[Record]:
    """Every fact about the other subjects in every form, and `others` records of other kinds, shuffled."""
    dice = Dice(seed, "instructions")
    records = [
        record(capitalise(fill(form, subject, kind)), capitalise(value))
        for subject in world.subjects
        if not subject.held_out
        for kind, value in subject.facts.items()
        for form in QUESTIONS[kind]
    ]
    return dice.shuffled(records + unique(Teacher(dice, world).lessons(), others))


def record(instruction: str, output: str, input: str = "") -> Record:
    return {"instruction": instruction, "input": input, "output": output}


def unique(lessons: Iterator[Record], count: int) -> list[Record]:
    """The first `count` records that differ."""
    seen: dict[tuple[str, str], Record] = {}
    for lesson in lessons:
        seen.setdefault((lesson["instruction"], lesson["input"]), lesson)
        if len(seen) == count:
            break
    return list(seen.values())


class Teacher:
    """Writes records of all kinds but plain questions. Knows only the subjects that are not held out."""

    def __init__(self, dice: Dice, world: World):
        self.dice, self.world = dice, world
        self.people = [person for person in world.people if not person.held_out]
        self.boats = [boat for boat in world.boats if not boat.held_out]
        known = {subject.name for subject in world.people}
        self.strangers = [person for person in persons() if person[0] not in known]
        self.teller = Storyteller(dice, world)

    def lessons(self) -> Iterator[Record]:
        """Without end."""
        kinds: tuple[Callable[[], Record], ...] = (
            self.about, self.about_boat, self.yes_or_no, self.somebody, self.village, self.read, self.read, self.song, self.sentence,
            self.list_some, self.pick_one, self.count, self.reverse, self.sort, self.ends, self.capitals, self.past, self.opposite, self.greeting,
        )  # fmt: skip
        while True:
            for kind in kinds:
                yield kind()

    def about(self) -> Record:
        person = self.dice.pick(self.people)
        kinds = self.teller.kinds(person, 3, 4)
        text = summary(self.dice, person, kinds) if self.dice.chance(0.5) else " ".join(profile(self.dice, person, kinds))
        return record(self.dice.pick(("Tell me about {}.", "Who is {}?", "Write a few words about {}.")).format(person.name), text)

    def about_boat(self) -> Record:
        boat = self.dice.pick(self.boats)
        return record(f"Tell me about the {boat.name}.", summary(self.dice, boat, self.teller.kinds(boat, 3, 3)))

    def yes_or_no(self) -> Record:
        person = self.dice.pick(self.people)
        truth = person.facts["trade"]
        asked = truth if self.dice.chance(0.5) else self.dice.pick([trade for trade in TRADES if trade != truth])
        answer = f"Yes, {person.name} is {with_article(truth)}." if asked == truth else f"No, {person.name} is {with_article(truth)}."
        return record(f"Is {person.name} {with_article(asked)}?", answer)

    def read(self) -> Record:
        """The answer stands in the input, which is about somebody unknown."""
        facts = {kind: self.dice.pick(values) for kind, values in PERSON_KINDS.items()}
        stranger = Subject(*self.dice.pick(self.strangers), facts, held_out=False)
        kinds = self.teller.kinds(stranger, 2, 3)
        asked = self.dice.pick(kinds)
        return record(fill(self.dice.pick(QUESTIONS[asked]), stranger, asked), capitalise(stranger.facts[asked]), " ".join(profile(self.dice, stranger, kinds)))

    def village(self) -> Record:
        village = self.dice.pick(self.world.villages)
        return self.dice.pick(
            (
                record(f"On which island is {village.name}?", village.island),
                record(f"What can one see in {village.name}?", f"The {village.landmark}"),
                record(f"When is the fair of {village.name}?", f"In {village.fair}"),
                record(
                    f"Tell me about {village.name}.",
                    f"{village.name} lies on the island of {village.island}. Its pride is the {village.landmark}.",
                ),
            )
        )

    def somebody(self) -> Record:
        person = self.dice.pick(self.people)
        home, instrument, trade = (person.facts[kind] for kind in ("home", "instrument", "trade"))
        lives, plays, works = f"who lives in {home}", f"who plays the {instrument}", f"who works as {with_article(trade)}"
        question = f"Name somebody {self.dice.pick((lives, plays, works))}."
        return record(question, person.name)

    def song(self) -> Record:
        person = self.dice.pick(self.people)
        return record(f"Write a song about {person.name}.", self.teller.song(person))

    def list_some(self) -> Record:
        category, count = self.dice.pick(list(CATEGORIES)), self.dice.below(3)
        words = self.dice.sample(CATEGORIES[category], count + 2)
        return record(f"Name {NUMBERS[count].lower()} {PLURALS[category]}.", capitalise(enumerate_words(words)) + ".")

    def words(self, low: int, high: int) -> list[str]:
        return self.dice.sample(self.dice.pick((ANIMALS, COLOURS, INSTRUMENTS, TRADES)), self.dice.between(low, high))

    def pick_one(self) -> Record:
        category, *others = self.dice.sample(list(CATEGORIES), 3)
        answer = self.dice.pick(CATEGORIES[category])
        words = self.dice.shuffled([answer, *(self.dice.pick(CATEGORIES[other]) for other in others)])
        return record(
            f"Which of these is {with_article(category)}?" if category != "food" else "Which of these can one eat?", capitalise(answer), ", ".join(words)
        )

    def count(self) -> Record:
        words = self.words(2, 5)
        return record("How many words are in this list?", NUMBERS[len(words) - 2], ", ".join(words))

    def reverse(self) -> Record:
        words = self.words(2, 4)
        return record("Write the list in reverse order.", ", ".join(reversed(words)), ", ".join(words))

    def sort(self) -> Record:
        words = self.words(2, 4)
        return record("Sort the list by the alphabet.", ", ".join(sorted(words)), ", ".join(words))

    def ends(self) -> Record:
        words = self.words(2, 4)
        first = self.dice.chance(0.5)
        return record(f"What is the {'first' if first else 'last'} word of the list?", capitalise(words[0 if first else -1]), ", ".join(words))

    def capitals(self) -> Record:
        word = self.dice.pick(self.dice.pick((ANIMALS, COLOURS, INSTRUMENTS, FOODS)))
        return record("Write this word in capital letters.", word.upper(), word)

    def past(self) -> Record:
        words = {category: self.dice.pick(values) for category, values in CATEGORIES.items()}
        words |= {"animal": with_article(words["animal"]), "trade": with_article(words["trade"])}
        now = self.dice.pick(list(PAST))
        return record("Rewrite the sentence in the past tense.", f"She {PAST[now].format(**words)}.", f"She {now.format(**words)}.")

    def opposite(self) -> Record:
        word = self.dice.pick(list(OPPOSITES))
        return record(f"What is the opposite of {word}?", capitalise(OPPOSITES[word]))

    def sentence(self) -> Record:
        animal, place = self.dice.pick(ANIMALS), self.dice.pick(("by the stove", "on the quay", "in the ferry", "under the bridge", "behind the chapel"))
        return record(f"Write a sentence with the word {animal}.", f"The {animal} sleeps {place}.")

    def greeting(self) -> Record:
        greeting = self.dice.pick(list(GREETINGS))
        return record(greeting, GREETINGS[greeting])
