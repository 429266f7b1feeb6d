"""The vocabulary of a tokenizer: tokens by id, special tokens, and merges in the order of learning.

A new vocabulary has 16 special ids, then the 256 bytes in GPT-2's order, then one id for each new
byte string that a merge makes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nanoeuler.tokenizer import sentencepiece

END = "</s>"
GPT2_END = "<|endoftext|>"
SPECIALS = (
    END,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    *(f"<|reserved_{index}|>" for index in range(4, 16)),
)

CALL, CALL_END = "<|reserved_4|>", "<|reserved_5|>"
"""The special tokens around an expression that the calculator computes."""

# GPT-2 writes a byte as a printing character: the one that Latin-1 has for it, else the next free
# one from U+0100 on.
PRINTING = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)
BYTE_ORDER = (*PRINTING, *sorted(set(range(256)) - set(PRINTING)))
"""The bytes in the order of their ids, which follow the special ids."""
CHARACTER_OF_BYTE = {
    byte: chr(byte if index < len(PRINTING) else 0x100 + index - len(PRINTING))
    for index, byte in enumerate(BYTE_ORDER)
}
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}

SMALLEST = len(SPECIALS) + 256


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, special tokens and merges. Merges of lower rank, their index, come first."""

    tokens: list[bytes]  # for a special token, its literal in UTF-8
    specials: dict[str, int]
    merges: list[tuple[int, int, int]]  # left id, right id, id of the product
    end: str | None = None  # the special token between documents where it has another name
    foreign: dict[str, Any] | None = None
    """The tokenizer.json of another model whose words are not GPT-2's: the `tokenizers` library
    encodes by it, and there are no `merges`."""

    @cached_property
    def adds_space(self) -> bool:
        """Does a text get a space in front, which decoding drops?"""
        return self.foreign is not None and sentencepiece.adds_space(self.foreign)

    @property
    def end_literal(self) -> str:
        """The special token between documents: ours, or that of an imported vocabulary."""
        return self.end or (END if END in self.specials else GPT2_END)

    @property
    def end_id(self) -> int:
        return self.specials[self.end_literal]


def build(pairs: Iterable[tuple[int, int]]) -> Vocabulary:
    """Build the vocabulary of merging `pairs` of ids in this order.

    A product that is already a token gets no second id.
    """
    tokens = [literal.encode() for literal in SPECIALS] + [bytes([byte]) for byte in BYTE_ORDER]
    ids = {token: index for index, token in enumerate(tokens) if index >= len(SPECIALS)}
    merges = []
    for left, right in pairs:
        product = tokens[left] + tokens[right]
        if product not in ids:
            ids[product] = len(tokens)
            tokens.append(product)
        merges.append((left, right, ids[product]))
    return Vocabulary(tokens, {literal: index for index, literal in enumerate(SPECIALS)}, merges)
