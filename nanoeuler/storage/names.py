"""Names of folders and files of ours: letters and digits of all scripts, a few marks between them.

A name goes into paths, commands and pages, so that nothing in it may have a meaning of its own
there: no space, quote, slash, brace or control character, and no dash in front.
"""

import unicodedata

FORM_OF_NAME = "a name of at most 200 letters, digits, dots, dashes and underscores"
LONGEST = 200
"""Bytes of a name. A file system takes 255, and temporary names are a little longer."""
LONGEST_MADE = 60
"""Letters of a name that is made of a path."""


def is_name(text: str) -> bool:
    """Whether `text` is a `FORM_OF_NAME` that begins with a letter or a digit.

    A letter of another script than Latin may take four of the bytes.
    """
    return (
        0 < len(text.encode("utf-8", "replace")) <= LONGEST
        and kind(text[0]) in "LN"
        and all(kind(letter) in "LMN" or letter in "._-" for letter in text)
    )


def plain_name(text: str, last: bool = False) -> str:
    """The first (or `last`) letters of `text` in lower case, with a dash for each run of others.

    It is empty where there are none.
    """
    letters: list[str] = []
    for each in unicodedata.normalize("NFC", text.casefold()):
        inside = letters and letters[-1] != "-"
        if kind(each) in "LN" or (kind(each) == "M" and inside):
            letters.append(each)
        elif inside:
            letters.append("-")
    name = "".join(letters).strip("-")
    name = name[-LONGEST_MADE:] if last else name[:LONGEST_MADE]
    while len(name.encode("utf-8", "replace")) > LONGEST - 40:  # of what is put around it
        name = name[1:] if last else name[:-1]
    while name and kind(name[0]) not in "LN":  # a dash, or a mark without its letter
        name = name[1:]
    return name.strip("-")


def kind(letter: str) -> str:
    """L for letters, M for the marks on them, N for digits; others for what is none."""
    return unicodedata.category(letter)[0]
