"""Held-out bits per byte and head accuracy, against a computation that goes token by token."""

import math
from dataclasses import replace

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.likelihood import HeldOutScore, bits_per_byte, token_byte_lengths
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Batch, Transformer
from tests.models import wide_transformer

END = 0


class Lengths:
    """A tokenizer of 19 ids: id i stands for i bytes, `</s>` (whose text has four) for none."""

    vocab_size, end_id, adds_space = 19, END, False

    def is_special(self, id: int) -> bool:
        return id == END

    def token_bytes(self, id: int) -> bytes:
        return b"x" * id or b"</s>"


TOKENIZER = Lengths()


def score(
    model: Transformer, tokens: np.ndarray, document_mask: bool = True, **options
) -> HeldOutScore:
    return bits_per_byte(model, tokens, int(tokens.sum()), TOKENIZER, document_mask, **options)


def text(length: int) -> np.ndarray:
    """Documents of a few tokens, each behind its `</s>`."""
    tokens = np.random.default_rng(5).integers(1, 19, length).astype(np.int32)
    tokens[[0, 5, 6, 17, *range(30, length, 13)]] = END
    return tokens


def directly(
    model: Transformer, tokens: np.ndarray, document_mask: bool, windows: list[int] | None = None
) -> tuple[float, list[int], list[int]]:
    """Nats of head 0, hits and targets of each head: one forward pass per predicted token, softmax
    in float64."""
    T, K = model.config.context, model.config.mtp_heads
    nats, hits, targets = 0.0, [0] * K, [0] * K
    padded = [*tokens.tolist(), *[END] * K]
    for offset in range(len(tokens)):
        start = offset - offset % T
        if windows is not None and start // T not in windows:
            continue
        if document_mask:
            start = max(
                [start, *(other for other in range(start, offset + 1) if tokens[other] == END)]
            )
        ids = tokens[start : offset + 1][None]
        batch = Batch(ids, np.arange(ids.shape[1], dtype=np.int32)[None], np.zeros_like(ids))
        hidden = model.forward(batch).stream.normed[-1]
        for head in range(K):
            if END in padded[offset + 1 : offset + 1 + head]:
                break
            weight = FlatBuffer(model.config, model.weights.flat)[head_name(head)]
            logits = (weight @ hidden).astype(np.float64)
            target = padded[offset + 1 + head]
            if head == 0:
                nats -= (
                    logits[target] - math.log(np.exp(logits - logits.max()).sum()) - logits.max()
                )
            hits[head] += int(logits.argmax() == target)
            targets[head] += 1
    return nats, hits, targets


@pytest.mark.parametrize("document_mask", [True, False])
@pytest.mark.parametrize("length", [61, 64, 3])
def test_it_is_the_sum_over_every_token_and_the_final_end(length, document_mask):
    model, tokens = wide_transformer(), text(max(length, 20))[:length]
    measured = score(model, tokens, document_mask, heads=3)
    nats, hits, targets = directly(model, tokens, document_mask)
    assert measured.nats == pytest.approx(nats, rel=1e-5)
    assert (list(measured.hits), list(measured.targets)) == (hits, targets)
    assert measured.tokens == length  # all but the first `</s>`, and the end of the text
    assert measured.text_bytes == tokens.sum()
    assert measured.bits_per_byte == pytest.approx(nats / math.log(2) / tokens.sum(), rel=1e-5)
    assert measured.nats_per_token == pytest.approx(nats / length, rel=1e-5)


def test_the_size_of_batches_and_logit_slices_does_not_matter(monkeypatch):
    model, tokens = wide_transformer(), text(150)
    whole = score(model, tokens, heads=3)
    for rows in (1, 2, 3, 7, 64):
        monkeypatch.setattr(ReferenceBackend, "scored_logits_at_once", rows * 100)
        other = score(model, tokens, batch_rows=rows, heads=3)
        # float32 products of other shapes round differently
        assert other.nats == pytest.approx(whole.nats, rel=1e-6)
        assert replace(other, nats=0) == replace(whole, nats=0)


def test_fewer_heads_leave_head_0_as_it_is():
    model, tokens = wide_transformer(), text(100)
    one, three = (score(model, tokens, heads=heads) for heads in (1, 3))
    assert one.nats == pytest.approx(three.nats, rel=1e-6)
    assert one.accuracy == three.accuracy[:1]


def test_tied_heads_are_scored_too():
    model, tokens = wide_transformer(tied=True), text(40)
    logits = model.first_logits(
        model.forward(
            Batch(tokens[None, :8], np.arange(8, dtype=np.int32)[None], np.zeros((1, 8), np.int32))
        ).stream.normed
    )
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    measured = score(model, tokens, document_mask=False, limit_tokens=8, heads=3)
    assert measured.nats == pytest.approx(-logprobs[np.arange(8), tokens[1:9]].sum(), rel=1e-5)


def test_a_limit_scores_whole_windows_from_all_over_the_text_and_counts_their_bytes():
    model, tokens = wide_transformer(), text(15 * 8 + 3)
    limited = score(model, tokens, limit_tokens=35, heads=3)
    windows = [0, 4, 8, 12]  # 16 windows, 4 of them fit
    nats, hits, targets = directly(model, tokens, True, windows)
    assert limited.nats == pytest.approx(nats, rel=1e-5)
    assert (limited.tokens, list(limited.hits), list(limited.targets)) == (32, hits, targets)
    assert limited.text_bytes == sum(tokens[8 * i + 1 : 8 * i + 9].sum() for i in windows)
    everything = score(model, tokens, heads=3)
    assert score(model, tokens, limit_tokens=10_000, heads=3) == everything
    assert score(model, tokens, limit_tokens=1).tokens == 8  # never less than one window


def test_another_window_reads_the_text_in_other_pieces():
    model, tokens = wide_transformer(), text(100)
    longer = score(model, tokens, document_mask=False, window=16)
    assert longer.tokens == 100
    wide = wide_transformer(context=16)
    assert longer.nats == pytest.approx(score(wide, tokens, document_mask=False).nats, rel=1e-6)


def test_progress_is_told_every_token_once():
    model, tokens, told = wide_transformer(), text(100), []
    score(model, tokens, batch_rows=4, advance=told.append)
    assert len(told) == 4
    assert sum(told) == 100


def test_units():
    measured = HeldOutScore(
        nats=math.log(2) * 30, tokens=10, text_bytes=20, hits=(5, 1), targets=(10, 8)
    )
    assert measured.bits_per_byte == pytest.approx(1.5)
    assert measured.accuracy == (0.5, 0.125)


def test_byte_lengths_count_no_byte_for_special_tokens():
    assert token_byte_lengths(TOKENIZER).tolist() == list(range(19))
