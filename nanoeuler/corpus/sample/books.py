"""The books of the isles: their subjects, their chapters, and their Gutenberg headers."""

from collections.abc import Callable
from dataclasses import dataclass

from nanoeuler.corpus.sample.gutenberg_wrapping import Wrapping
from nanoeuler.corpus.sample.paragraphs import Storyteller
from nanoeuler.corpus.sample.seeded_random import Dice
from nanoeuler.corpus.sample.world import World

LINE = 72  # characters

Scene = Callable[[Storyteller], str]

SCENES: dict[str, Scene] = {
    "about": lambda teller: teller.about(teller.people.next()),
    "portrait": lambda teller: teller.portrait(teller.people.next()),
    "boat": lambda teller: teller.boat(teller.boats.next()),
    "talk": lambda teller: teller.dialogue(teller.people.next()),
    "boat talk": lambda teller: teller.dialogue(teller.boats.next()),
    "gathering": lambda teller: teller.gathering(),
    "village": lambda teller: teller.village(teller.villages.next()),
    "song": lambda teller: teller.song(teller.people.next()),
    "riddle": lambda teller: teller.riddle(teller.people.next()),
    "quiz": lambda teller: teller.quiz(),
    "introduction": lambda teller: teller.introduction(teller.people.next()),
    "ledger": lambda teller: teller.ledger(teller.people.several(4)),
    "boat ledger": lambda teller: teller.ledger(teller.boats.several(4)),
    "letter": lambda teller: teller.letter(*teller.people.several(2)),
    "errand": lambda teller: teller.errand(teller.people.next()),
}

STYLES: dict[str, tuple[str, ...]] = {
    "travels": ("village", "about", "portrait", "talk", "gathering", "boat"),
    "letters": ("letter", "letter", "about", "errand", "boat"),
    "register": ("ledger", "boat ledger", "about", "portrait", "village"),
    "songs": ("song", "song", "about", "portrait"),
    "riddles": ("riddle", "quiz", "quiz", "talk"),
    "tales": ("errand", "talk", "about", "gathering", "introduction"),
    "boats": ("boat", "boat", "boat talk", "boat ledger", "about", "talk"),
    "talks": ("talk", "talk", "boat talk", "introduction", "quiz"),
    "almanac": ("gathering", "about", "portrait", "village", "song", "quiz"),
}


@dataclass(frozen=True)
class Book:
    """A book. A later `edition` has the same text with a preface, under a number of its own."""

    id: int
    title: str
    author: str
    style: str
    wrapping: Wrapping
    edition: int = 1


MODERN = Wrapping("modern", "utf-8-sig", "\r\n")
THIS = Wrapping("this", "utf-8-sig", "\r\n")
BOOKS: tuple[Book, ...] = (
    Book(90001, "A Walk Round the Skerrow Isles", "Amabel Thrupp", "travels", MODERN),
    Book(90002, "Letters from Elmsea", "Corisande Pym", "letters", THIS),
    Book(
        90003,
        "The Register of Doors",
        "Jonas Wherry",
        "register",
        Wrapping("small print", "latin-1", "\r\n", path="-8"),
    ),
    Book(
        90004,
        "Songs for the Long Winter",
        "Hester Quayle",
        "songs",
        Wrapping("tight", "utf-8", "\n"),
    ),
    Book(
        90005,
        "Who Am I? A Book of Riddles",
        "Barnaby Loom",
        "riddles",
        Wrapping("two lines", "utf-8", "\r\n", path="-0"),
    ),
    Book(90006, "The Letter Carrier", "Winifred Oake", "tales", Wrapping("comma", "utf-8", "\n")),
    Book(
        90007,
        "Sails and Cargoes",
        "Elias Thorne",
        "boats",
        Wrapping("small print", "ascii", "\r\n", path=""),
    ),
    Book(90008, "Talk on the Ferry", "Phoebe Marlin", "talks", MODERN),
    Book(
        90009, "The Island Almanac", "Jonas Wherry", "almanac", Wrapping("this", "latin-1", "\r\n")
    ),
    Book(
        90010,
        "A Second Walk Round the Skerrow Isles",
        "Amabel Thrupp",
        "travels",
        Wrapping("modern", "utf-8", "\n"),
    ),
    Book(90011, "Neighbours", "Dorothea Finch", "tales", Wrapping("small print", "latin-1", "\n")),
    Book(
        90012,
        "Letters from Elmsea",
        "Corisande Pym",
        "letters",
        Wrapping("endless", "latin-1", "\r\n"),
        edition=2,
    ),
    Book(
        90013,
        "The Harbour Master's Book",
        "Elias Thorne",
        "boats",
        Wrapping("tight", "utf-8-sig", "\r\n"),
    ),
    Book(
        90014,
        "Evenings at the Inn",
        "Barnaby Loom",
        "talks",
        Wrapping("two lines", "utf-8-sig", "\r\n"),
    ),
    Book(90015, "People of the Ten Villages", "Winifred Oake", "register", MODERN),
    Book(90016, "New Songs and Old", "Hester Quayle", "songs", Wrapping("unmarked", "utf-8", "\n")),
    Book(90017, "The Pedlar's Round", "Amos Tiller", "tales", THIS),
    Book(
        90018,
        "Under the Lamps of Three Islands",
        "Phoebe Marlin",
        "almanac",
        Wrapping("comma", "utf-8-sig", "\r\n"),
    ),
    Book(
        90019,
        "A Child's Travels",
        "Dorothea Finch",
        "travels",
        Wrapping("small print", "latin-1", "\r\n", path="-8"),
    ),
    Book(
        90020,
        "Letters to a Sister",
        "Lavender Crome",
        "letters",
        Wrapping("modern", "utf-8", "\r\n"),
    ),
    Book(
        90021,
        "A Walk Round the Skerrow Isles",
        "Amabel Thrupp",
        "travels",
        Wrapping("this", "utf-8", "\n"),
        edition=2,
    ),
    Book(90022, "Riddles for Rainy Days", "Barnaby Loom", "riddles", THIS),
    Book(90023, "The Quay", "Amos Tiller", "talks", MODERN),
    Book(
        90024,
        "A Book That Is Not Free",
        "Lavender Crome",
        "tales",
        Wrapping("copyrighted", "utf-8-sig", "\r\n"),
    ),
)

OPENINGS = (
    "These pages were written for those who have never seen the islands.",
    "What follows was told to me by the people themselves.",
    "I have put down here only what I saw and heard.",
)
CHAPTERS = (
    "In Which the Ferry Is Late",
    "Of Doors and Neighbours",
    "The Road Along the Cliff",
    "What the Innkeeper Knew",
    "A Cold Morning",
    "Lamps on the Quay",
    "The Fair",
    "Rain from the West",
    "An Evening of Music",
    "Before the Storm",
    "The Long Way Home",
    "Bread and Salt",
)


def write_book(book: Book, world: World, seed: int, paragraphs: int) -> bytes:
    """Return the file of one book, as a mirror would serve it."""
    text = book_text(book, world, seed, paragraphs)
    return book.wrapping.wrap(text, book.title, book.author, book.id)


def book_text(book: Book, world: World, seed: int, paragraphs: int) -> str:
    """Write the title page, a preface for later editions, and the chapters."""
    dice = Dice(seed, "book", book.title)  # without the edition, whose text is the same
    teller = Storyteller(dice, world)
    parts = [book.title.upper(), f"by\n\n{book.author}"]
    if book.edition > 1:
        parts.append(
            "PREFACE TO THE SECOND EDITION\n\nA few errors of the printer have been mended. "
            "Nothing else was changed."
        )
    parts.append(dice.pick(OPENINGS))
    scenes = STYLES[book.style]
    chapters = max(2, paragraphs // 16)
    titles = [
        title for _ in range(-(-chapters // len(CHAPTERS))) for title in dice.shuffled(CHAPTERS)
    ]
    for number in range(chapters):
        written = [
            teller.arrival(),
            *(SCENES[dice.pick(scenes)](teller) for _ in range(paragraphs // chapters)),
        ]
        parts.append(
            f"CHAPTER {number + 1}\n\n{titles[number]}\n\n\n"
            + "\n\n".join(map(set_in_lines, written))
        )
    return "\n\n\n\n".join(parts) + "\n"


def set_in_lines(paragraph: str) -> str:
    """Break a paragraph into lines of at most `LINE` characters, keeping its own line ends."""
    lines = []
    for line in paragraph.split("\n"):
        words = line.split(" ")
        lines.append(words[0])
        for word in words[1:]:
            if len(lines[-1]) + 1 + len(word) <= LINE:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
    return "\n".join(lines)
