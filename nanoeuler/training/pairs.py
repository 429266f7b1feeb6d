"""Preference pairs as training rows.

Both replies to a prompt share a row, as two documents that don't see each other. A row is as wide
as two contexts, so that every pair fits into one row and thus into one micro-batch: the loss needs
both sides.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.config.settings import Dpo
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.template import TEMPLATES
from nanoeuler.storage.record_folder import check_texts, earlier_turns, read_apart
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.records import TokenRecord, cut, encode_turns, frame_record, pack
from nanoeuler.training.streams import RowOrder, StepRows

if TYPE_CHECKING:
    from nanoeuler.model.transformer import Transformer


@dataclass
class TokenPair:
    """Two replies to one prompt. On each side, only the reply and its `</s>` are learned."""

    chosen: TokenRecord
    rejected: TokenRecord

    @property
    def sides(self) -> tuple[TokenRecord, TokenRecord]:
        return self.chosen, self.rejected


@dataclass
class PairFit:
    """Counts of pairs that the context holds, wholly or not."""

    pairs: int = 0
    whole: int = 0
    prompt_too_long: int = 0
    alike_when_cut: int = 0

    @property
    def whole_share(self) -> float:
        return self.whole / max(1, self.pairs)


def encode_pairs(
    path: Path,
    tokenizer: Tokenizer,
    template: str,
    context: int,
    held_out: Collection[str] = (),
) -> tuple[list[TokenPair], PairFit]:
    """Read the JSON lines at `path` and frame both sides of each pair with the template.

    A side longer than context + 1 tokens loses its end. Left out are pairs whose prompts' keys are
    `held_out` of the instructions. Left out and counted are a pair whose
    prompt fills the context, and a pair whose sides differ only beyond it. Raises `UserError`
    naming a line that is no pair.
    """
    fit, pairs = PairFit(), []
    for where, entry in read_apart(path, held_out):
        if "chosen" not in entry:
            raise UserError(
                f"{path}: holds no pairs of replies; "
                "give the manifest.json that `nanoeuler preferences` writes"
            )
        check_texts(entry, ("instruction", "chosen", "rejected"), where)
        prompt = {"instruction": entry["instruction"], "input": entry.get("input", "")}
        earlier, fill = earlier_turns(entry, where), TEMPLATES[template]
        whole = [
            encode_turns([*earlier, prompt | {"output": entry[side]}], tokenizer, fill)
            for side in ("chosen", "rejected")
        ]
        sides = [cut(record, context) for record in whole]
        not_learned = len(encode_turns(earlier, tokenizer, fill).tokens)
        for side in sides:
            side.learned[:not_learned] = False
        fit.pairs += 1
        if not all(side.learned.any() for side in sides):
            fit.prompt_too_long += 1
        elif np.array_equal(sides[0].tokens, sides[1].tokens):
            fit.alike_when_cut += 1
        else:
            fit.whole += all(side is record for side, record in zip(sides, whole, strict=True))
            pairs.append(TokenPair(*sides))
    return pairs, fit


class PairStream:
    """Packed rows of pairs in a seeded order; `StepRows.further` has the inputs of `preference`.

    With `loss: simpo` each reply's log-probability is divided by its number of tokens, and there is
    no reference.
    """

    pure = True

    def __init__(
        self,
        pairs: list[TokenPair],
        settings: Dpo,
        model: ModelConfig,
        batch_tokens: int,
        end_id: int,
        seed: int,
        name: str,
    ):
        if not pairs:
            raise UserError(
                "no pair has replies that fit the context; "
                "raise dpo.context or use other preferences"
            )
        self.pairs, self.length = pairs, 2 * model.context
        self.heads, self.end_id = model.mtp_heads, end_id
        self.scale, self.by_length = settings.beta, settings.loss == "simpo"
        lengths = [sum(len(side.tokens) - 1 for side in pair.sides) for pair in pairs]
        self.packed = pack(lengths, self.length)
        self.row_count = len(self.packed)
        self.width = max(sum(lengths[index] for index in row) for row in self.packed)
        self.pairs_per_row = max(map(len, self.packed))
        self.rows_per_step = min(max(1, batch_tokens // self.length), self.row_count)
        self.order = RowOrder(seed, name, self.row_count, self.rows_per_step)
        self.reference = np.zeros((self.row_count, self.pairs_per_row, 2))
        """Log-probability of each side under the parent, (rows, P, 2); set by the stage."""

    def rows(self, step: int, model: "Transformer | None" = None) -> StepRows:
        return self.frame_rows(self.order.step(step))

    def frame_rows(self, indices: np.ndarray) -> StepRows:
        """The rows with numbers `indices`, all as wide as the fullest row of the stream.

        Only head 0 has targets. R rows have slots for P pairs each.
        """
        R, T, P = len(indices), self.width, self.pairs_per_row
        ids = np.full((R, T), self.end_id, np.int32)
        positions, starts = np.zeros((R, T), np.int32), np.zeros((R, T), np.int32)
        targets = np.full((R, T, self.heads), -1, np.int32)
        spans = np.zeros((R, P, 3), np.int32)  # where chosen starts, rejected starts, and both end
        scales = np.zeros((R, P, 2), np.float32)
        shares = np.zeros((R, P), np.float32)
        for row, index in enumerate(indices):
            start = 0
            for slot, member in enumerate(self.packed[int(index)]):
                spans[row, slot, 0] = start
                shares[row, slot] = 1
                for side, record in enumerate(self.pairs[member].sides):
                    size = len(record.tokens) - 1
                    span = slice(start, start + size)
                    ids[row, span] = record.tokens[:-1]
                    positions[row, span] = np.arange(size)
                    starts[row, span] = start
                    targets[row, span, 0] = frame_record(record, 1, self.end_id)[:, 0]
                    length = record.learned.sum() if self.by_length else 1
                    scales[row, slot, side] = self.scale / length
                    start += size
                    spans[row, slot, side + 1] = start
            starts[row, start:] = start
        reference = self.reference[np.asarray(indices, np.int64)] * (not self.by_length)
        return StepRows(
            ids,
            positions,
            starts,
            targets,
            np.zeros(targets.shape, np.float32),
            (spans, reference, scales, shares / shares.sum()),
        )


def reply_sums(logprobs_RT: np.ndarray, spans_RP3: np.ndarray) -> np.ndarray:
    """Sums of the log-probabilities of each side of each pair, (R, P, 2) float64.

    They are added in the order in which the op `preference` adds them.
    """
    sums = np.zeros((*spans_RP3.shape[:2], 2))
    for row, slot, side in np.ndindex(sums.shape):
        first, last = spans_RP3[row, slot, side : side + 2]
        sums[row, slot, side] = logprobs_RT[row, first:last].sum(dtype=np.float64)
    return sums
