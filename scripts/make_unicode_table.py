"""Make nanoeuler/tokenizer/unicode16.txt, the letters, numbers and white space of Unicode 16.

    pip install unicodedata2==16.0.0 tokenizers==0.23.3
    python scripts/make_unicode_table.py > nanoeuler/tokenizer/unicode16.txt    (ten seconds)

`unicodedata2` is the source. The script stops if `tokenizers`, which reads our files, too, differs
from it for any code point. Python's own `unicodedata` changes with Python's version.
"""

import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby

import unicodedata2
from tokenizers.pre_tokenizers import ByteLevel

# Unicode 16, PropList.txt, White_Space (unicodedata2 does not carry this property).
WHITE_SPACE = {
    *range(0x09, 0x0E),
    0x20,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
}
CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]  # all but the surrogates
LINE = 100  # characters

HEADER = """\
# Letters, numbers and white space of Unicode 16: inclusive ranges of code points in hexadecimal.
# Made by scripts/make_unicode_table.py: do not edit. They are pinned, because Python's own tables
# change with its version (3.11 has those of Unicode 14) and ids must not.
"""


def class_of(code: int) -> str:
    """Return L (general category L*), N (N*), S (White_Space) or O (other)."""
    if code in WHITE_SPACE:
        return "S"
    major = unicodedata2.category(chr(code))[0]
    return major if major in "LN" else "O"


def class_by_tokenizers(code: int, pretokenizer: ByteLevel) -> str:
    """Return the class of a code point for `tokenizers`: that of the characters it joins with."""
    for name, neighbour in (("L", "a"), ("N", "1"), ("O", "!")):
        if len(pretokenizer.pre_tokenize_str(neighbour + chr(code))) == 1:
            return name
    return "S"


def ranges(codes: list[int]) -> Iterator[str]:
    """Yield runs of consecutive numbers, such as 41-5A and AA."""
    for _, run in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
        members = [code for _, code in run]
        yield f"{members[0]:X}-{members[-1]:X}" if len(members) > 1 else f"{members[0]:X}"


def main() -> None:
    if unicodedata2.unidata_version != "16.0.0":
        sys.exit(
            f"unicodedata2 carries Unicode {unicodedata2.unidata_version}, and 16.0.0 is wanted: "
            "pip install unicodedata2==16.0.0"
        )
    pretokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    members: dict[str, list[int]] = {"L": [], "N": [], "S": [], "O": []}
    for code in CODE_POINTS:
        name = class_of(code)
        theirs = class_by_tokenizers(code, pretokenizer)
        if theirs != name:
            sys.exit(f"U+{code:04X} is {name} here and {theirs} for tokenizers")
        members[name].append(code)
    tables = [
        f"{name}\n{textwrap.fill(' '.join(ranges(members[key])), LINE, break_on_hyphens=False)}\n"
        for name, key in (("LETTERS", "L"), ("NUMBERS", "N"), ("WHITE_SPACE", "S"))
    ]
    sys.stdout.write(HEADER + "\n" + "\n".join(tables))


if __name__ == "__main__":
    main()
