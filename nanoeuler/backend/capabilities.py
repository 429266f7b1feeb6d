"""Ops that only some engines have: whole layers, and the sampling of tokens.

An engine derives from the class of what it has, and `isinstance` asks for it.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import MappingProxyType

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, BlockForm, ChoiceRows, DecodeStep, DraftRows
from nanoeuler.backend.runtime import HostRing

NOT_KEPT = -2
"""Stands for a token that was chosen behind a wrong draft."""

LEAST_REPEATED, MOST_REPEATED = 2, 3
"""How many tokens at the end of a text are looked for in the text before them, to draft from."""


class FusingBackend(Backend):
    """An engine with an op for all blocks at once, for tokens that are decoded."""

    fused_layers: tuple[tuple[type[BlockForm], ...], ...]
    """Forms of the blocks that repeat in a model which `decode_fused` computes, by family."""
    fused_variants: Mapping[type[BlockForm], frozenset[str]] = MappingProxyType({})
    """Variants of those forms that it knows."""
    fused_rows = 1 << 30
    """Most new tokens that it takes at once."""
    fused_tokens = 1
    """Most of them that a sequence may have."""
    prompt_multiple = 1
    """Prompts take no longer when their lengths are rounded up to a multiple of this many tokens:
    there are fewer lengths to record."""

    def fuses(self, forms: Sequence[BlockForm], rows: int, tokens: int = 1) -> bool:
        """Does `decode_fused` compute blocks of these forms, for that many tokens of each row?

        No engine overrides this: a block that an engine does not know takes the composed path.
        """
        return (
            rows * tokens <= self.fused_rows
            and tokens <= self.fused_tokens
            and any(self.repeats(layer, forms) for layer in self.fused_layers)
        )

    def longest_prompts(self, forms: Sequence[BlockForm], dim: int, rows: int) -> int:
        """The most tokens of each row that `decode_fused` computes where they are more than
        `fused_tokens`; 0: none.

        There it knows `last_BD`.
        """
        return 0

    def repeats(self, layer: Sequence[type[BlockForm]], forms: Sequence[BlockForm]) -> bool:
        """Are the blocks of `forms` layers of these, without a variant that is not known?"""
        return len(forms) % len(layer) == 0 and all(
            type(form) is kind and form.variants <= self.fused_variants.get(kind, frozenset())
            for form, kind in zip(forms, cycle(layer), strict=False)
        )

    @abstractmethod
    def decode_fused(self, step: DecodeStep) -> None:
        """step.x ← the output of all blocks for the new tokens of each sequence.

        Keys and values go to the cache from slot lengths[b] on. Called where `fuses` or
        `longest_prompts` says so, with the same step for any number of tokens. With `last_BD` the
        last block need not compute more than goes there.
        """


class ChoosingBackend(Backend):
    """An engine that chooses tokens itself.

    `next_logits` and these ops read and write arrays of the device only, and a decoded token needs
    nothing from the host.
    """

    @abstractmethod
    def choose(
        self,
        logits_BV: Array,
        allowed_V: Array,
        rows: ChoiceRows,
        ring: HostRing | None = None,
        masks_BW: Array | None = None,
    ) -> None:
        """Choose each row's next token (−1: its logits are not finite) into `chosen`, and write
        `chosen` to its `ring` where one is given.

        A token must be 1 in `allowed`, and its bit set in its row's `masks`, if there are any:
        uint32, ⌈V / 32⌉ of each row, the lowest bit first. `tokens` and `lengths` are made ready
        for the next step, and `draws` counts up.
        """

    @abstractmethod
    def score(self, logits_BV: Array, tokens_B: Array, logprobs_B: Array) -> None:
        """logprobs ← the log-probability of each row's token by its logits, float32; of −1 it
        means nothing."""

    @abstractmethod
    def lay_out_drafts(
        self,
        rows: DraftRows,
        drafted_BH: Array,
        text_BS: Array,
        ids_BT: Array,
        positions_BT: Array,
        counters_BT: Array,
    ) -> None:
        """Each row's token with its drafts, where they stand, and which draw comes behind each.

        The drafts repeat what followed the last tokens when they stood in the text before, or else
        are those of the heads. `text` are the tokens in the cache; those laid out are added.
        """

    @abstractmethod
    def accept_drafts(self, chosen_BT: Array, x_ND: Array, rows: DraftRows, last_BD: Array) -> None:
        """Verify drafts: accept the longest correct prefix and the token after it.

        Tokens behind it become `NOT_KEPT`. `tokens` is the last one kept of each row, `last` the
        residual stream that it was chosen from; lengths and draws count those that were kept.
        """
