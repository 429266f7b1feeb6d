"""Log-likelihoods of continuations: packing them together changes nothing."""

import math

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.evaluation import continuations
from nanoeuler.evaluation.continuations import Pair, encode, log_likelihoods
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.models import wide_transformer

END = 0


def some_pairs(count: int) -> list[Pair]:
    random = np.random.default_rng(4)
    pairs = []
    for _ in range(count):
        length = int(random.integers(2, 20))
        ids = random.integers(1, 19, length).astype(np.int32)
        ids[0] = END
        pairs.append(Pair(ids, int(random.integers(1, min(length, 12)))))
    return pairs


def directly(model: Transformer, pair: Pair, window: int) -> tuple[float, bool]:
    """One forward pass of one row for each token of the continuation, softmax in float64."""
    total, greedy = 0.0, True
    kept = pair.ids[-(window + 1) :]
    for offset in range(len(kept) - pair.scored, len(kept)):
        ids = kept[:offset][None]
        hidden = model.forward(
            Batch(ids, np.arange(offset, dtype=np.int32)[None], np.zeros_like(ids))
        ).stream.normed[-1:]
        logits = model.first_logits(hidden)[0].astype(np.float64)
        total += logits[kept[offset]] - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        greedy &= int(logits.argmax()) == kept[offset]
    return total, greedy


@pytest.mark.parametrize("slice_elements", [ReferenceBackend.scored_logits_at_once, 40])
@pytest.mark.parametrize("batch_tokens", [continuations.BATCH_TOKENS, 24])
def test_packed_together_they_are_what_each_gives_alone(monkeypatch, batch_tokens, slice_elements):
    monkeypatch.setattr(continuations, "BATCH_TOKENS", batch_tokens)
    monkeypatch.setattr(ReferenceBackend, "scored_logits_at_once", slice_elements)
    model, pairs, told = wide_transformer(context=12, mtp_heads=2), some_pairs(40), []
    sums, greedy = log_likelihoods(model, pairs, 12, END, told.append)
    expected = [directly(model, pair, 12) for pair in pairs]
    # float32 products of other shapes round differently
    np.testing.assert_allclose(sums, [value for value, _ in expected], rtol=2e-5)
    assert greedy.tolist() == [likeliest for _, likeliest in expected]
    assert any(pair.inputs(12) < len(pair.ids) - 1 for pair in pairs), "some are cut on the left"
    assert sum(told) == 40


def test_what_the_model_writes_greedily_is_greedy():
    model = wide_transformer(context=12, mtp_heads=2)
    ids = [END, 3]
    for _ in range(4):
        hidden = model.forward(
            Batch(
                np.array([ids], np.int32),
                np.arange(len(ids), dtype=np.int32)[None],
                np.zeros((1, len(ids)), np.int32),
            )
        ).stream.normed[-1:]
        ids.append(int(model.first_logits(hidden)[0].argmax()))
    wrong = [*ids[:-1], (ids[-1] + 1) % 19]
    _, greedy = log_likelihoods(
        model, [Pair(np.array(ids, np.int32), 4), Pair(np.array(wrong, np.int32), 4)], 12, END
    )
    assert greedy.tolist() == [True, False]


def test_nothing_to_score_is_no_pass_at_all():
    sums, greedy = log_likelihoods(wide_transformer(context=12, mtp_heads=2), [], 12, END)
    assert (len(sums), len(greedy)) == (0, 0)


def test_context_and_continuation_part_where_the_context_alone_ends():
    # This merges a space with the letter a, whichever ids those are.
    tokenizer = Tokenizer(build([(20 + 32, 20 + 97)]))
    text = "the cat"
    pair = encode(tokenizer, text, " and")
    assert pair.ids[0] == tokenizer.end_id
    assert tokenizer.decode(pair.ids[1:]) == "the cat and"
    assert tokenizer.decode(pair.ids[-pair.scored :]) == " and"


def test_white_space_at_the_end_of_a_context_counts_to_the_continuation():
    tokenizer = Tokenizer(build([]))
    pair = encode(tokenizer, "the cat \n", " and")
    assert tokenizer.decode(pair.ids[-pair.scored :]) == " \n and"
    alone = encode(tokenizer, "", " and")
    assert (alone.ids[0], alone.scored, len(alone.ids)) == (tokenizer.end_id, 4, 5)
    with pytest.raises(ValueError, match="no token of its own"):
        encode(tokenizer, "the cat", "")
