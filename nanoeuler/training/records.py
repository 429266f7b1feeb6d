"""Instruction records as training rows; the loss is on each response and its `</s>`.

Several records share a row without seeing each other: attention and positions stay within a record.
Records are packed once; epochs visit the rows in different orders.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.calls import encode_reply
from nanoeuler.model.documents import frame
from nanoeuler.model.template import TEMPLATES
from nanoeuler.storage.record_folder import check_texts, earlier_turns, read_apart
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.streams import RowOrder, StepRows, loss_weights

if TYPE_CHECKING:
    from nanoeuler.model.transformer import Transformer


@dataclass
class TokenRecord:
    """`</s>` prompt response `</s>`; a conversation goes on with prompt response `</s>` …"""

    tokens: np.ndarray  # int32
    learned: np.ndarray  # bool: the tokens that are learned
    calls: int = 0  # of the calculator
    calls_dropped: int = 0  # because their result is not the calculator's


@dataclass
class Fit:
    """Counts of records and response tokens that the context holds."""

    records: int = 0
    whole: int = 0
    without_response: int = 0
    response_tokens: int = 0
    kept_response_tokens: int = 0
    calls: int = 0
    calls_dropped: int = 0

    @property
    def whole_share(self) -> float:
        return self.whole / max(1, self.records)

    @property
    def kept_share(self) -> float:
        return self.kept_response_tokens / max(1, self.response_tokens)


def encode_records(
    path: Path,
    tokenizer: Tokenizer,
    template: str,
    context: int,
    held_out: Collection[str] = (),
) -> tuple[list[TokenRecord], Fit]:
    """Read the JSON lines at `path` and frame each record with the template.

    A record longer than context + 1 tokens (the last is only a target) loses its end. It is dropped
    when no response is left, or when the key of its prompt is `held_out` of the preferences. Raises
    `UserError` naming a line that is no record.
    """
    fit, records = Fit(), []
    for where, entry in read_apart(path, held_out):
        if "output" not in entry:
            raise UserError(
                f"{path}: holds no instructions with a response; "
                "give the manifest.json that `nanoeuler instructions` writes"
            )
        check_texts(entry, ("instruction", "output"), where)
        turns = [*earlier_turns(entry, where), entry]
        whole = encode_turns(turns, tokenizer, TEMPLATES[template])
        kept = cut(whole, context)
        fit.records += 1
        fit.whole += kept is whole
        fit.response_tokens += int(whole.learned.sum())
        fit.kept_response_tokens += int(kept.learned.sum())
        fit.calls += whole.calls
        fit.calls_dropped += whole.calls_dropped
        if kept.learned.any():
            records.append(kept)
        else:
            fit.without_response += 1
    return records, fit


def encode_turns(
    turns: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, fill: Callable[[str, str], str]
) -> TokenRecord:
    """Turns of instruction, input (if any) and output, one after another as in a chat.

    Every output and its `</s>` are learned, except in a turn whose `learned` is false, and results
    of the calculator (see `nanoeuler/model/calls.py`).
    """
    end = np.array([tokenizer.end_id], np.int32)
    tokens, learned, calls, dropped = [end], [np.array([False])], 0, 0
    for turn in turns:
        prompt = tokenizer.encode(fill(turn["instruction"], turn.get("input", "")))
        reply = encode_reply(turn["output"], tokenizer)
        tokens += [prompt, reply.ids, end]
        is_learned = np.array([turn.get("learned", True)])
        learned += [np.zeros(len(prompt), bool), reply.learned & is_learned, is_learned]
        calls, dropped = calls + reply.calls, dropped + reply.dropped
    whole = np.concatenate(tokens).astype(np.int32), np.concatenate(learned)
    return TokenRecord(*whole, calls, dropped)


def cut(record: TokenRecord, context: int) -> TokenRecord:
    """The record itself if a row of `context` tokens holds it, else its beginning."""
    if len(record.tokens) <= context + 1:
        return record
    kept = record.tokens[: context + 1], record.learned[: context + 1]
    return TokenRecord(*kept, record.calls, record.calls_dropped)


def frame_record(record: TokenRecord, heads: int, end_id: int) -> np.ndarray:
    """Targets (T, heads) of a record, −1 where nothing is learned. Its last token is only a target.

    Head k at position t predicts the token at t + k + 1; nothing is known behind the last token.
    """
    size = len(record.tokens) - 1
    following = np.full((1, heads), end_id, np.int32)
    following[0, 0] = record.tokens[-1]
    targets = frame(record.tokens[None, :-1], following, end_id, document_mask=False)[2][0]
    for head in range(heads):
        targets[: size - head, head][~record.learned[head + 1 :]] = -1
        targets[max(0, size - head) :, head] = -1
    return targets


def pack(lengths: list[int], context: int) -> list[list[int]]:
    """Indices of the sequences that share a row of `context` tokens, by best-fit decreasing.

    Rows wait in stacks by the room that is left in them. An integer with a bit for each stack that
    is not empty finds the tightest fit at once. Deterministic.
    """
    rows: list[list[int]] = []
    waiting: list[list[int]] = [[] for _ in range(context + 1)]
    stacks = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = stacks >> lengths[index]
        if fitting:
            room = lengths[index] + (fitting & -fitting).bit_length() - 1
            row = waiting[room].pop()
            if not waiting[room]:
                stacks ^= 1 << room
        else:
            room, row = context, len(rows)
            rows.append([])
        rows[row].append(index)
        left = room - lengths[index]
        waiting[left].append(row)
        stacks |= 1 << left
    return rows


class RecordStream:
    """Packed rows of records in a seeded order; see `StepRows`."""

    pure = True

    def __init__(
        self,
        records: list[TokenRecord],
        context: int,
        batch_tokens: int,
        mtp_weights: tuple[float, ...],
        end_id: int,
        seed: int,
        name: str,
        by_record: bool = False,
    ):
        """`by_record` gives every record of a step the same weight, instead of every token."""
        if not records:
            raise UserError(
                "no record has a response that fits the context; "
                "raise sft.context or use other instructions"
            )
        self.records, self.length, self.by_record = records, context, by_record
        self.mtp_weights, self.end_id = mtp_weights, end_id
        # a record's last token is only a target, so it takes up no position of the row
        self.packed = pack([len(record.tokens) - 1 for record in records], context)
        self.row_count = len(self.packed)
        self.width = max(
            sum(len(records[index].tokens) - 1 for index in row) for row in self.packed
        )
        self.rows_per_step = min(max(1, batch_tokens // context), self.row_count)
        self.order = RowOrder(seed, name, self.row_count, self.rows_per_step)

    def rows(self, step: int, model: "Transformer | None" = None) -> StepRows:
        return self.frame_rows(self.order.step(step))

    def frame_rows(self, indices: np.ndarray) -> StepRows:
        """The rows with numbers `indices`, all as wide as the fullest row of the stream."""
        packed = [self.packed[int(index)] for index in indices]
        K = len(self.mtp_weights)
        shape = (len(packed), self.width)
        ids, positions, starts = (np.zeros(shape, np.int32) for _ in range(3))
        ids[...] = self.end_id
        targets = np.full((*shape, K), -1, np.int32)
        importance = np.ones(shape)
        for row, members in enumerate(packed):
            start = 0
            for member in members:
                record = self.records[member]
                size = len(record.tokens) - 1
                span = slice(start, start + size)
                ids[row, span] = record.tokens[:-1]
                positions[row, span] = np.arange(size)
                starts[row, span] = start
                targets[row, span] = frame_record(record, K, self.end_id)
                if self.by_record:
                    importance[row, span] = 1 / record.learned.sum()
                start += size
            starts[row, start:] = start
        weights = loss_weights(targets, self.mtp_weights, importance)
        return StepRows(ids, positions, starts, targets, weights)
