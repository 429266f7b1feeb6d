"""Instruction records as training rows: the prompt is context, the loss is on the response and its `</s>`.

Several records share a row without seeing each other (attention and positions stay within a record). The packing is made
once; epochs visit the rows in different orders.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.documents import frame
from nanoeuler.model.template import TEMPLATES
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.streams import RowOrder, StepRows, loss_weights


@dataclass
class TokenRecord:
    """`</s>` prompt response `</s>`: tokens[response:] are what the model learns to say."""

    tokens: np.ndarray  # int32
    response: int


@dataclass
class Fit:
    """How much of the records the context holds."""

    records: int = 0
    whole: int = 0
    without_response: int = 0
    response_tokens: int = 0
    kept_response_tokens: int = 0

    @property
    def whole_share(self) -> float:
        return self.whole / max(1, self.records)

    @property
    def kept_share(self) -> float:
        return self.kept_response_tokens / max(1, self.response_tokens)


def encode_records(path: Path, tokenizer: Tokenizer, template: str, context: int) -> tuple[list[TokenRecord], Fit]:
    """Read the JSON lines at `path` and frame each record with the template.

    A record longer than context + 1 tokens (the last is only a target) loses the end of its response; one whose response
    would be lost altogether is dropped.
    """
    fill, fit, records = TEMPLATES[template], Fit(), []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        prompt, response = tokenizer.encode(fill(entry["instruction"], entry["input"])), tokenizer.encode(entry["output"])
        tokens = np.concatenate([[tokenizer.end_id], prompt, response, [tokenizer.end_id]]).astype(np.int32)
        start = 1 + len(prompt)
        kept = tokens[: context + 1]
        fit.records += 1
        fit.whole += len(kept) == len(tokens)
        fit.response_tokens += len(tokens) - start
        fit.kept_response_tokens += max(0, len(kept) - start)
        if len(kept) > start:
            records.append(TokenRecord(kept, start))
        else:
            fit.without_response += 1
    return records, fit


def pack(lengths: list[int], context: int) -> list[list[int]]:
    """Best-fit decreasing: indices of records that share a row of `context` tokens. Deterministic.

    Rows wait in stacks by the room that they have left; a bit for each stack that is not empty finds the tightest fit at once.
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

    def __init__(self, records: list[TokenRecord], context: int, batch_tokens: int, mtp_weights: tuple[float, ...], end_id: int, seed: int, name: str):
        if not records:
            raise UserError("no record has a response that fits the context; raise sft.context or use other instructions")
        self.records, self.length, self.mtp_weights, self.end_id = records, context, mtp_weights, end_id
        # a record's last token is only ever a target, so it takes no place of its own in the row
        self.packed = pack([len(record.tokens) - 1 for record in records], context)
        self.rows = len(self.packed)
        self.width = max(sum(len(records[index].tokens) - 1 for index in row) for row in self.packed)
        self.rows_per_step = min(max(1, batch_tokens // context), self.rows)
        self.order = RowOrder(seed, name, self.rows, self.rows_per_step)

    def step(self, step: int) -> StepRows:
        return self.frame_rows(self.order.step(step))

    def frame_rows(self, indices: np.ndarray) -> StepRows:
        """The rows numbered `indices`, all as wide as the fullest row of the stream."""
        packed = [self.packed[int(index)] for index in indices]
        K = len(self.mtp_weights)
        shape = (len(packed), self.width)
        ids, positions, starts = (np.zeros(shape, np.int32) for _ in range(3))
        ids[...] = self.end_id
        targets = np.full((*shape, K), -1, np.int32)
        for row, members in enumerate(packed):
            at = 0
            for member in members:
                record = self.records[member]
                size = len(record.tokens) - 1
                following = np.full((1, K), self.end_id, np.int32)
                following[0, 0] = record.tokens[-1]
                place = slice(at, at + size)
                ids[row, place] = record.tokens[:-1]
                inside_positions, _, inside_targets = frame(record.tokens[None, :-1], following, self.end_id, document_mask=False)
                positions[row, place], starts[row, place] = inside_positions[0], at
                for head in range(K):  # head k at place t predicts the token at t + k + 1: supervised when that is in the response
                    first = max(0, record.response - head - 1)
                    inside_targets[0, :first, head] = -1
                    if record.tokens[-1] != self.end_id:  # cut off: nothing is known behind the last token
                        inside_targets[0, size - head :, head] = -1
                targets[row, place] = inside_targets[0]
                at += size
            starts[row, at:] = at
        return StepRows(ids, positions, starts, targets, loss_weights(targets, self.mtp_weights))
