"""What a tokenizer consists of: its tokens by id, the special ones among them, and the merges in the order in which they were learned.

A new vocabulary has 16 special ids, then the 256 bytes in GPT-2's order, then one id for each new byte string that merging makes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

END = "</s>"
GPT2_END = "<|endoftext|>"
SPECIALS = (
    END,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    *(f"<|reserved_{index}|>" for index in range(4, 16)),
)

# GPT-2 writes a byte as a printing character: itself where Latin-1 prints it, else the next free one from U+0100 on.
PRINTING = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)
BYTE_ORDER = (
    *PRINTING,
    *sorted(set(range(256)) - set(PRINTING)),
)  # byte → id less the special ones: position in this tuple
CHARACTER_OF_BYTE = {
    byte: chr(byte if index < len(PRINTING) else 0x100 + index - len(PRINTING))
    for index, byte in enumerate(BYTE_ORDER)
}
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}

SMALLEST = len(SPECIALS) + 256


@dataclass(frozen=True)
class Vocabulary:
    """`merges` holds (left id, right id, id of the product); its index is the rank, and a lower rank merges first."""

    tokens: list[bytes]  # a special token's literal, in UTF-8, like the bytes of any other
    specials: dict[str, int]
    merges: list[tuple[int, int, int]]

    @property
    def end_id(self) -> int:
        """The special token that frames documents: ours, or GPT-2's in a vocabulary that was imported."""
        return self.specials[END if END in self.specials else GPT2_END]


def build(pairs: Iterable[tuple[int, int]]) -> Vocabulary:
    """The vocabulary that merging `pairs` of ids in this order makes. A product that is already a token gets no second id."""
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
