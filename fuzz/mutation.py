"""Seeded mutations of valid inputs: of JSON values, of text and of bytes."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MARK = "\ue000{}\ue000"  # a placeholder: `json.dumps` would not write these literals
LITERALS = {
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5_000,
    "2000 brackets": "[" * 2_000 + "]" * 2_000,
    "unclosed brackets": "[" * 2_000,
    "100000 braces": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "large exponent": "1e999",
    "number": "NaN",
}
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 2**31, 2**31 - 1, -(2**63), 2**64, 100_000, 10**18),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "0", "-1", "1e5", "null", "true", "a" * 300, "a" * 70_000, "ß", "²", "\0"),
    *("\x1b[2J\x1b[31mred", "\u202egnp.exe", "\ud800", "\ufeff", "\u2028", "\u0660"),
    *(".", "..", "../..", "~", "/", "/proc/self/mem", "/dev/null", "a/b", "{x}", "%s"),
    *("http://[::1", "http://127.0.0.1:1/", "file:///etc/hosts", "https://", "{data_dir}"),
    *("<script>1</script>", [], {}, [[]], [None], {"": None}, [{}], {"a": {"b": {"c": []}}}),
)
NUMBERS = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
SNIPPETS = (b"\0", b"\xff", b"\r\n", b"\n\n", b'"', b"\\", b"{", b"[", b"]", b"\xed\xa0\x80")

Keys = tuple[Any, ...]
"""The keys and indices that lead from a JSON value to a value inside it."""


class Mutator:
    """Draws mutations from `rng`; equal seeds give equal mutations."""

    def __init__(self, rng: random.Random):
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def scalar(self) -> Any:
        """A value that a careless reader would stumble over."""
        if self.chance(0.12):
            return MARK.format(self.rng.choice(list(LITERALS)))
        return self.rng.choice(SCALARS)

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with one to three changes at random places."""
        changed = json.loads(json.dumps({"": value}))
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            self.change_one(changed)
        return changed[""]

    def change_one(self, root: dict[str, Any]) -> None:
        *above, key = self.rng.choice(list(places(root)))
        parent: Any = root
        for step in above:
            parent = parent[step]
        changes: list[Callable[[], None]] = [
            lambda: parent.__setitem__(key, self.scalar()),
            lambda: parent.__setitem__(key, self.near(parent[key])),
        ]
        if above:
            changes += [
                lambda: parent.__delitem__(key),
                lambda: parent.__setitem__(key, [parent[key]]),
                lambda: parent.__setitem__(key, {"a": parent[key]}),
                lambda: self.add(parent),
            ]
        self.rng.choice(changes)()

    def near(self, value: Any) -> Any:
        """A value of mostly the same type, close to `value`."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            near = (-value, value + 1, value - 1, value * 1_000, value / 3, str(value))
            return self.rng.choice(near)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return value * self.rng.choice((0, 2, 50))
        return {self.text(name): item for name, item in value.items()} if value else {}

    def add(self, parent: Any) -> None:
        if isinstance(parent, dict):
            name = self.rng.choice(("a", "", "nanoeuler", "url", "\x1b[1m", "a" * 300))
            parent[name] = self.scalar()
        else:
            parent.insert(self.rng.randrange(len(parent) + 1), self.scalar())

    def text(self, text: str) -> str:
        """The same text with a change or two, after which it may not be encodable as UTF-8."""
        for _ in range(self.rng.choice((1, 1, 2))):
            at = self.rng.randrange(len(text) + 1)
            piece = self.scalar()
            inserted = piece if isinstance(piece, str) else str(piece)[:400]
            end = min(len(text), at + self.rng.choice((0, 1, 5, 50)))
            text = text[:at] + inserted + text[end:]
        return text

    def bytes(self, data: bytes, first: int = 0, last: int | None = None) -> bytes:
        """The same bytes with some changes between `first` and `last`."""
        content = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 4, 16))):
            stop = len(content) if last is None else min(last, len(content))
            at = self.rng.randrange(first, stop) if stop > first else len(content)
            size = self.rng.choice((1, 2, 4, 8, 64, 1_000))
            change = self.rng.randrange(7)
            if change == 0 and at < len(content):
                content[at] ^= 1 << self.rng.randrange(8)
            elif change == 1:
                del content[at : at + size]
            elif change == 2:
                content[at:at] = content[at : at + size] * self.rng.choice((1, 2, 20))
            elif change == 3:
                content[at : at + size] = self.rng.randbytes(size)
            elif change == 4:
                number = self.rng.choice(NUMBERS)
                width = self.rng.choice([n for n in (1, 2, 4, 8) if number < 256**n])
                raw = number.to_bytes(width, "little" if self.chance(0.5) else "big")
                content[at : at + width] = raw
            elif change == 5:
                content[at:at] = self.rng.choice(SNIPPETS) * self.rng.choice((1, 1, 300))
            elif self.chance(0.2):
                del content[at:]
        return bytes(content)


def places(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys to every value inside `value`, without itself."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*keys, key)
        yield from places(item, (*keys, key))


def to_json(value: Any) -> str:
    """The JSON text of a mutated value, with each mark replaced by its literal."""
    text = json.dumps(value)
    for name, literal in LITERALS.items():
        mark = MARK.format(name)
        if json.dumps(mark) in text:
            text = text.replace(json.dumps(mark), literal)
        text = text.replace(json.dumps(mark)[1:-1], name)
    return text
