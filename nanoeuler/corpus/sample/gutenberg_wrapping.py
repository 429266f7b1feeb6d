"""Headers, markers, credits and licences like those of Project Gutenberg's files over the years.

The markers are the original ones, since a cleaner has to recognise them; all other text is our own.
"""

import unicodedata
from dataclasses import dataclass

PREAMBLE = """This eBook was invented by a program, for anyone anywhere, at no cost and
with no restrictions whatsoever. It imitates the files of a large library
so that a pipeline can be tried without a network."""
LICENCE = """Everything below this line is the licence of the imitation.

Section 1. This electronic work was made up. Nobody lives on these islands.

Section 2. You may copy it, give it away or re-use it, and you need not ask.

Section 3. Donations are not accepted, since there is nobody to take them.

Most people start at our web site, which does not exist."""
SMALL_PRINT = """***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Why is this "Small Print!" statement here? Because old files had one, and
it stood before the book. This etext is invented; do with it what you like.
*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"""
PRODUCERS = (
    "Produced by Ottoline Marsh and the Proofreaders of Underwick",
    "Produced by an anonymous volunteer",
)
TRANSCRIBER = "Transcriber's Note: Spelling and punctuation were left as in the original text."


@dataclass(frozen=True)
class Wrapping:
    """A style of header and footer, an encoding, line ends, and a path on the mirror.

    `path` None means that of today's files, cache/epub/{id}/pg{id}.txt. Otherwise it is the suffix
    of the name in the older tree: -0 (UTF-8), -8 (Latin-1) or nothing (ASCII).
    """

    style: str
    encoding: str
    newline: str
    path: str | None = None

    def location(self, id: int) -> str:
        """Return the path of the file on the mirror."""
        if self.path is None:
            return f"cache/epub/{id}/pg{id}.txt"
        return f"{'/'.join(str(id)[:-1])}/{id}/{id}{self.path}.txt"

    def wrap(self, text: str, title: str, author: str, id: int) -> bytes:
        """Put header and footer around the book `text`, and encode it."""
        before, after = STYLES[self.style]
        words = {
            "title": title,
            "author": author,
            "id": id,
            "TITLE": title.upper(),
            "producer": PRODUCERS[id % len(PRODUCERS)],
        }
        whole = before.format(**words) + text + after.format(**words)
        if self.encoding == "ascii":
            decomposed = unicodedata.normalize("NFKD", whole)
            whole = "".join(letter for letter in decomposed if letter.isascii())
        return whole.replace("\n", self.newline).encode(self.encoding)


HEADER = (
    "The Project Gutenberg eBook of {title}, by {author}\n\n"
    + PREAMBLE
    + "\n\nTitle: {title}\n\nAuthor: {author}\n\n"
    + "Release date: March 1, 2020 [eBook #{id}]\n\nLanguage: English\n\n"
)
ETEXT_HEADER = (
    "The Project Gutenberg Etext of {title}, by {author}\n\nThis is an invented etext, "
    "number {id}.\n\n" + SMALL_PRINT + "\n\n\n\n"
)
FULL_LICENCE = "\n\nSTART: FULL LICENSE\n\n" + LICENCE + "\n"
OLD_LICENCE = "\n\n" + LICENCE + "\n"

STYLES = {
    "modern": (
        HEADER
        + "Credits: {producer}\n\n\n*** START OF THE PROJECT GUTENBERG EBOOK {TITLE} ***\n\n\n\n\n",
        "\n\n\n\n*** END OF THE PROJECT GUTENBERG EBOOK {TITLE} ***" + FULL_LICENCE,
    ),
    "this": (
        HEADER
        + "*** START OF THIS PROJECT GUTENBERG EBOOK {TITLE} ***\n\n\n\n\n{producer}\n\n\n\n\n\n",
        "\n\n\n\n\nEnd of the Project Gutenberg EBook of {title}, "
        "by {author}\n\n*** END OF THIS PROJECT GUTENBERG EBOOK {TITLE} ***" + OLD_LICENCE,
    ),
    "tight": (
        HEADER
        + "***START OF THE PROJECT GUTENBERG EBOOK {TITLE}***\n\n\n"
        + "E-text prepared by Ottoline Marsh\n\n\n\n"
        + TRANSCRIBER
        + "\n\n\n\n\n\n",
        "\n\n\n***END OF THE PROJECT GUTENBERG EBOOK {TITLE}***" + OLD_LICENCE,
    ),
    "two lines": (
        HEADER
        + "*** START OF THIS PROJECT GUTENBERG EBOOK {TITLE},\nBY AN AUTHOR OF THE ISLES ***"
        + "\n\n\n\n{producer}\n\n\n\n\n",
        "\n\n\n\nEnd of Project Gutenberg's {title}, by {author}\n\n*** END OF THIS PROJECT "
        "GUTENBERG EBOOK {TITLE},\nBY AN AUTHOR OF THE ISLES ***" + OLD_LICENCE,
    ),
    "comma": (
        HEADER
        + "*** START OF THE PROJECT GUTENBERG EBOOK, {TITLE} ***\n\n\n\n\n"
        + "E-text prepared by Ottoline Marsh\n\n\n\n\n",
        "\n\n\n\n*** END OF THE PROJECT GUTENBERG EBOOK, {TITLE} ***" + OLD_LICENCE,
    ),
    "small print": (
        ETEXT_HEADER,
        "\n\n\n\n\nEnd of the Project Gutenberg Etext of {title}, by {author}\n",
    ),
    "endless": (ETEXT_HEADER, ""),
    "unmarked": ("", ""),
    "copyrighted": (
        "This is a COPYRIGHTED Project Gutenberg eBook, details below.\n\n"
        + HEADER
        + "*** START OF THE PROJECT GUTENBERG EBOOK {TITLE} ***\n\n\n",
        "\n\n\n*** END OF THE PROJECT GUTENBERG EBOOK {TITLE} ***" + FULL_LICENCE,
    ),
}
