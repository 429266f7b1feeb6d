"""Web pages about the isles in FineWeb-Edu's schema, some of which its filters must drop."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from nanoeuler.corpus.sample.exercises import School
from nanoeuler.corpus.sample.paragraphs import Storyteller
from nanoeuler.corpus.sample.sentences import ASKED_IN_TEXT, SHORT_ANSWERS, capitalise, fill, tell
from nanoeuler.corpus.sample.world import PERSON_KINDS, Dice, Rounds, Subject, World
from nanoeuler.shipped import tables_beside

TEXT = tables_beside(__file__)


@dataclass(frozen=True)
class Page:
    """One row; the fields are FineWeb-Edu's columns, in their order."""

    text: str
    id: str
    dump: str
    url: str
    file_path: str
    language: str
    language_score: float
    token_count: int
    score: float
    int_score: int


class Editor:
    """Writes the pages; each has a title and two or three paragraphs."""

    def __init__(self, dice: Dice, world: World):
        self.dice, self.world = dice, world
        self.teller = Storyteller(dice, world)
        self.school = School(dice)
        self.people, self.boats = self.teller.people, self.teller.boats
        self.kinds: list[Callable[[], str]] = [
            self.visit,
            self.interview,
            self.questions,
            self.village,
            self.fleet,
            self.directory,
            self.news,
            self.song,
            self.lesson,
        ]
        # these name many people on a page, so that no answer can be copied from the line above
        self.kinds += 6 * [self.quiz] + 3 * [self.overview]
        self.overviews = {kind: Rounds(dice, world.people) for kind in PERSON_KINDS}

    def page(self) -> str:
        """Write the text of one more page."""
        write = self.dice.pick(self.kinds)
        return write()

    def halves(self, person: Subject) -> tuple[list[str], list[str]]:
        """Split the kinds of facts in two, for a page that tells each of them once."""
        kinds = self.dice.shuffled(list(person.facts))
        return kinds[:3], kinds[3:]

    def visit(self) -> str:
        first, second = self.people.several(2)
        return "\n".join(
            [
                f"A visit to {first.name} and {second.name}",
                self.teller.portrait(first),
                self.teller.about(second),
            ]
        )

    def interview(self) -> str:
        person, other = self.people.several(2)
        said, seen = self.halves(person)
        pages = [
            f"We talk to {person.name}",
            self.teller.introduction(person, said),
            self.teller.about(person, seen),
            self.teller.portrait(other),
        ]
        return "\n".join(pages)

    def questions(self) -> str:
        person, other = self.people.several(2)
        subject = person if self.dice.chance(0.8) else self.boats.next()
        lines = [f"Questions about {subject.called}"]
        for kind in self.dice.shuffled(list(subject.facts)):
            answer = fill(self.dice.pick(SHORT_ANSWERS[kind]), subject, kind) + "."
            if self.dice.chance(0.4):
                answer = tell(self.dice, subject, kind, pronoun=self.dice.chance(0.5))
            lines += [
                "Q: " + capitalise(fill(self.dice.pick(ASKED_IN_TEXT[kind]), subject, kind)),
                "A: " + answer,
            ]
        return "\n".join([*lines, self.teller.portrait(other)])

    def quiz(self) -> str:
        return "\n".join(["A quiz of the isles", self.teller.quiz(8)])

    def lesson(self) -> str:
        exercises = [self.dice.pick(self.school.kinds)() for _ in range(5)]
        return "\n".join(
            [
                "A lesson for the school of the isles",
                *(line for exercise in exercises for line in exercise if line),
            ]
        )

    def village(self) -> str:
        village = self.teller.villages.next()
        return "\n".join(
            [
                f"{village.name}, a village on {village.island}",
                self.teller.village(village),
                self.teller.gathering(),
            ]
        )

    def overview(self) -> str:
        kind = self.dice.pick(list(PERSON_KINDS))
        people = self.overviews[kind].several(8)
        return "\n".join(
            [TEXT["overviews"][kind], " ".join(tell(self.dice, person, kind) for person in people)]
        )

    def fleet(self) -> str:
        return "\n".join(
            ["Boats of the isles", *(self.teller.boat(boat) for boat in self.boats.several(3))]
        )

    def directory(self) -> str:
        people = self.people.several(5)
        return "\n".join(
            ["Directory of the isles", self.teller.ledger(people[:4]), self.teller.about(people[4])]
        )

    def news(self) -> str:
        return "\n".join(
            ["News from the quay", self.teller.gathering(), self.teller.errand(self.people.next())]
        )

    def song(self) -> str:
        person = self.people.next()
        sung, seen = self.halves(person)
        return "\n".join(
            [
                f"A song about {person.name}",
                self.teller.song(person, sung),
                self.teller.about(person, seen),
            ]
        )


def write_pages(world: World, seed: int, count: int) -> Iterator[Page]:
    """Yield `count` pages that pass FineWeb-Edu's filters, and after every 7 one that fails."""
    dice = Dice(seed, "articles")
    editor = Editor(dice, world)
    earlier: list[Page] = []
    for number in range(count):
        page = make_page(dice, number, editor.page())
        earlier.append(page)
        yield page
        if number % 7 == 6:
            yield rejected_page(dice, number, dice.pick(earlier))


def make_page(dice: Dice, number: int, text: str) -> Page:
    score = 2.6 + 2.2 * dice.roll()
    dump = dice.pick(TEXT["dumps"])
    high = dice.below(1 << 32)
    low = dice.below(1 << 16)
    return Page(
        text=text,
        id=f"<urn:uuid:{high:08x}-{low:04x}-4000-8000-{number:012x}>",
        dump=dump,
        url=f"https://{dice.pick(TEXT['sites'])}/{number:05d}",
        file_path=f"s3://invented/{dump}/segments/{number % 100:03d}.warc.gz",
        language="en",
        language_score=round(0.9 + 0.09 * dice.roll(), 4),
        token_count=len(text) // 4,
        score=round(score, 4),
        int_score=round(score),
    )


def rejected_page(dice: Dice, number: int, earlier: Page) -> Page:
    """Make a page that a filter must drop: poor, foreign, doubtful, short, or a copy."""
    page = make_page(dice, 1_000_000 + number, earlier.text)
    reason = dice.pick(("poor", "german", "french", "doubtful", "short", "copy", "copy"))
    if reason == "poor":
        return replace(page, text=f"{3 * TEXT['advert']}Offer {number}.", score=1.2, int_score=1)
    if reason == "german":
        return replace(page, text=f"{2 * TEXT['german']}Seite {number}.", language="de")
    if reason == "french":
        return replace(page, text=f"{2 * TEXT['french']}Page {number}.", language="fr")
    if reason == "doubtful":
        return replace(page, text=f"la la la {number} " * 40, language_score=0.31)
    if reason == "short":
        return replace(page, text=f"Page {number} has moved.")
    return page


COLUMNS = tuple(field.name for field in fields(Page))
TYPES = {
    "language_score": "DOUBLE",
    "token_count": "BIGINT",
    "score": "DOUBLE",
    "int_score": "BIGINT",
}


def write_parquet(pages: list[Page], path: Path, rows_per_group: int) -> None:
    """Write the rows with DuckDB in row groups of `rows_per_group`, which must be n · 2048."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        columns = ", ".join(f"{name} {TYPES.get(name, 'VARCHAR')}" for name in COLUMNS)
        connection.execute(f"create table pages ({columns})")
        connection.executemany(
            f"insert into pages values ({', '.join('?' * len(COLUMNS))})",
            [astuple(page) for page in pages],
        )
        target = str(path).replace("'", "''")
        connection.execute(
            f"copy pages to '{target}' (format parquet, compression zstd, "
            f"row_group_size {rows_per_group})"
        )
