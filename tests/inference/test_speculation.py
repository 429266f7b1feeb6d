"""Drafts, by MTP heads or from the text, change the time of a reply, never its tokens."""

import itertools

import numpy as np
import pytest

import nanoeuler
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.decoder import Decoder, Row
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.inference.speculation import (
    DEVICE_TRIAL,
    PERIOD,
    TRIAL,
    DeviceSpeculation,
    Drafts,
    HostSpeculation,
    Repeats,
    Speculation,
    Taken,
)
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from tests.choosing_backend import ChoosingReference
from tests.models import chain, cycle, transitions

MOST = 7  # drafts of a pass
ENGINES = {"reference": lambda: ReferenceBackend(np.float32), "cpu": lambda: CpuBackend(1)}
WARM = Sampling(temperature=1.0, top_p=1.0, seed=5)
END = 0
SIZES = {
    "vocab_size": 70,
    "dim": 72,
    "layers": 2,
    "heads": 6,
    "kv_heads": 2,
    "ffn": 101,
    "context": 64,
    "mtp_heads": 4,
}


def written(model, prompts, sampling, max_tokens, speculation=None, end=END):
    allowed = np.ones(model.config.vocab_size, bool)
    positions = 1000 * np.arange(len(prompts))
    decoding = Decoding(model, prompts, sampling, max_tokens, end, allowed, positions, speculation)
    while decoding.step():
        pass
    return decoding.continuations


# ---- the tokens


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(), Sampling(top_k=3, seed=9)])
@pytest.mark.parametrize("lengths", [[1], [7], [40], [95], [3, 1, 39, 12, 40]])
def test_drafts_change_no_token(engine, sampling, lengths):
    """90 tokens slide out of a context of 40 again and again; rows accept different numbers."""
    random = np.random.default_rng(len(lengths))
    prompts = [random.integers(1, 12, length).tolist() for length in lengths]
    model = chain(ENGINES[engine](), transitions(12, 2.0), noise=1.0, mixing=1.0)
    expected = written(model, prompts, sampling, 90, end=-1)
    speculation = HostSpeculation(4, 0.0)
    assert written(model, prompts, sampling, 90, speculation, end=-1) == expected
    assert all(each.dropped for each in expected)
    assert 1.05 < speculation.tokens_per_pass < 4


@pytest.mark.parametrize("engine", ENGINES)
def test_any_draft_whatever_gives_the_tokens_of_plain_decoding(engine):
    """All drafts that there can be, at some places and for some random numbers."""
    V, model = 5, chain(ENGINES[engine](), transitions(5, 1.0), mixing=1.0)
    allowed = np.ones(V, bool)
    for seed in range(3):
        sampling = Sampling(temperature=1.0, top_p=0.9, seed=seed)
        (plain,) = written(model, [[1, 2]], sampling, 5, end=-1)
        taken = set()
        for drafts in itertools.product(range(V), repeat=3):
            decoder, row = Decoder(model, 1, 20, allowed), Row([1, 2], sampling)
            decoder.rows.append(row)
            decoder.next()
            decoder.speculation, row.drafts = HostSpeculation(4, 0.0), Drafts(list(drafts))
            decoder.next()
            assert row.repeats.tokens == [1, 2, *row.ids]
            assert row.ids == plain.ids[: len(row.ids)]
            right = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(drafts, plain.ids[1:], strict=False)
            )
            assert len(row.ids) == 2 + len(list(right))
            assert decoder.speculation.drafted == [1, 1, 1]
            assert decoder.cache.lengths.tolist() == [1 + len(row.ids)]
            taken.add(len(row.ids) - 1)
        assert taken == {1, 2, 3, 4}


def test_sampled_replies_with_drafts_follow_the_distribution_of_the_model():
    """The 27 texts of three tokens, each with its chance; chi-square at 4.5 standard errors."""
    chances = transitions(3, 0.7)
    model = chain(CpuBackend(1), chances, noise=0.5)
    count, found = 4000, {}
    speculation = HostSpeculation(4, 0.0)
    for start in range(0, count, 400):
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=start)
        for each in written(model, [[1]] * 400, sampling, 3, speculation, end=-1):
            found[tuple(each.ids)] = found.get(tuple(each.ids), 0) + 1
    assert speculation.tokens_per_pass > 1.2
    statistic = 0.0
    for text in itertools.product(range(3), repeat=3):
        path = [1, *text]
        expected = count * np.prod([chances[a, b] for a, b in itertools.pairwise(path)])
        statistic += (found.get(text, 0) - expected) ** 2 / expected
    assert statistic < 26 + 4.5 * np.sqrt(2 * 26)


YARN = {"type": "yarn", "factor": 4.0, "original_context": 16}
CAPPED = {"attention_cap": 0.5, "logit_cap": 0.8, "query_scalar": 3.0, "windows": [9, 0]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fields", [{"family": "gpt2", "kv_heads": 6}, {"rope_scaling": YARN}, CAPPED]
)
def test_drafts_change_no_token_of_other_positions(engine, fields):
    """Rows that fill the context and slide: learned positions begin anew, and scaled ones lie
    behind the original context. And where scores and logits have caps."""
    config = ModelConfig.from_dict(SIZES | fields | {"context": 40})
    backend = ENGINES[engine]()
    model = Transformer(config, backend.from_host(4 * initial_parameters(config, 1)), backend)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6] * 6, [5]]
    expected = written(model, prompts, GREEDY, 60, end=-1)
    assert written(model, prompts, GREEDY, 60, HostSpeculation(4, 0.0), end=-1) == expected
    assert all(each.dropped for each in expected)


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_end_and_the_limit_may_lie_within_the_drafts(limit):
    model = chain(CpuBackend(1), cycle(8, 1e-6))  # 1, 2, …, 7, then the end
    for prompts in ([[1]], [[5], [1], [3]]):
        speculation = HostSpeculation(4, 0.0)
        replies = written(model, prompts, GREEDY, limit, speculation)
        assert replies == written(model, prompts, GREEDY, limit)
        for (last,), reply in zip(prompts, replies, strict=True):
            assert reply.ids == list(range(last + 1, 8))[:limit]
            assert reply.ended == (limit > 7 - last)
    if limit > 7:
        assert speculation.acceptance == [1, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"qk_norm": "rms"},
        {"qk_norm": "weighted"},
        {"family": "gpt2", "kv_heads": 6, "tied": True},
    ],
)
def test_a_few_tokens_at_once_have_the_bits_of_one_by_one_on_the_cpu(fields):
    """So a near tie is decided alike with drafts and without."""
    config = ModelConfig.from_dict(SIZES | fields)
    backend = CpuBackend(2)
    model = Transformer(config, 4 * initial_parameters(config, 1), backend)
    ids = np.random.default_rng(1).integers(0, 70, (3, 40)).astype(np.int32)
    for pieces in ([2] * 10, [3, 5, 8, 4], [7, 1, 6, 2, 4]):
        one, several = (model.new_cache(3, 64) for _ in range(2))
        for cache in (one, several):
            extend(model, cache, ids[:, :20], np.array([20, 3, 11]))
        at = 20
        for piece in pieces:
            logits = np.array(extend(model, several, ids[:, at : at + piece], every=True))
            for i in range(piece):
                alone = extend(model, one, ids[:, at + i : at + i + 1])
                np.testing.assert_array_equal(logits[:, i], alone)
            at += piece


# ---- how many drafts


def test_as_many_drafts_are_taken_as_pay():
    def drafts_after_trial(shares, cost, rows=1):
        speculation = HostSpeculation(4, cost)
        for i in range(TRIAL):
            right = sum(i < share * TRIAL for share in shares)
            taken = Taken([5] * (1 + right), 3)
            speculation.note([taken] * rows)
        return speculation.heads

    assert drafts_after_trial((0.8, 0.6, 0.4), 0.15) == 3
    assert drafts_after_trial((0.8, 0.6, 0.1), 0.15) == 2
    assert drafts_after_trial((0.8, 0.1, 0.0), 0.3) == 1
    assert drafts_after_trial((0.2, 0.1, 0.0), 0.3) == 0
    assert drafts_after_trial((0.8, 0.6, 0.4), 0.3, rows=16) == 0  # many rows cost what they are


def test_drafts_that_do_not_pay_are_tried_again_later():
    model = chain(CpuBackend(1), transitions(300, 0.5), noise=30.0, context=1000)
    speculation = HostSpeculation(4, 0.3)
    (reply,) = written(model, [[1]], WARM, 700, speculation, end=-1)
    assert reply == written(model, [[1]], WARM, 700, end=-1)[0]
    assert speculation.tokens == 700
    assert speculation.passes > 650
    assert TRIAL * 2 <= speculation.drafted[0] <= TRIAL * 3  # of some 2.5 times TRIAL + PERIOD
    assert PERIOD > 10 * TRIAL


def test_a_text_that_repeats_gets_more_drafts_as_long_as_they_are_right():
    speculation = HostSpeculation(1, 0.2)
    taken = []
    for right in (3, 5, 7, 7, 0, 2, 1, 0, 0, 0, 0, 0):
        drafted = speculation.from_text
        taken.append(drafted)
        speculation.note([Taken([5] * (1 + min(right, drafted)), drafted, repeats=True)])
    assert taken == [3, 5, 7, MOST, MOST, 6, 5, 4, 3, 2, 1, 1]
    assert (speculation.repeats, speculation.right_repeats) == (12, 25)
    assert speculation.heads == 0


def test_a_device_drafts_where_that_pays_or_the_text_repeats_itself():
    fresh, repeating = Repeats([1, 2, 3, 2, 3]), Repeats([1, 2, 3, 1, 2, 3])
    assert (fresh.repeated, repeating.repeated) == (2, 3)

    def after_trial(tokens, heads=2):
        speculation = DeviceSpeculation(heads, 0.1)  # so that a pass costs 1.7
        for number in range(DEVICE_TRIAL):
            drafts = MOST if heads > 1 else 0
            assert speculation.wanted([fresh], 8) == drafts
            new = 2 if number < tokens - DEVICE_TRIAL else 1
            speculation.note([Taken([5] * new, drafts)])
        return speculation

    assert after_trial(14).wanted([fresh], 8) == MOST
    for speculation in (after_trial(13), after_trial(13, heads=1)):
        texts = fresh, repeating, repeating, fresh, repeating
        assert [speculation.wanted([text], 8) for text in texts] == [0, MOST, MOST, 0, MOST]
        assert speculation.wanted([repeating], 7) == 0, "there is no room"
        for number in range(PERIOD):
            assert speculation.wanted([fresh], 8) == 0, number
            speculation.note([Taken([5])])
        again = speculation.wanted([fresh], 8)
        assert again == (MOST if speculation.drafted else 0), "there is another trial"


def test_a_trial_ends_early_when_no_draft_is_right():
    for rights in ((0, 0), (0, 1), (1, 0)):
        speculation = DeviceSpeculation(4, 0.1, 3)
        speculation.note([Taken([5])])  # a prompt's pass tells nothing
        for right in rights:
            assert speculation.wanted([Repeats()], 8) == 3
            speculation.note([Taken([5] * (1 + right), 3)])
        assert speculation.wanted([Repeats()], 8) == (3 if any(rights) else 0)


@pytest.mark.parametrize("engine", [*ENGINES, "choosing"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_of_one_head_takes_drafts_from_its_text(engine, family):
    """It repeats itself, but not to the letter, and grows out of its context."""
    backend = ChoosingReference() if engine == "choosing" else ENGINES[engine]()
    model = chain(backend, cycle(12, 0.1), mixing=0.5, family=family, mtp_heads=1)
    prompts = [[3, 4, 5, 6, 7]]
    for sampling in (GREEDY, WARM):
        expected = written(model, prompts, sampling, 150, end=-1)
        speculation = Speculation.of(model)
        assert written(model, prompts, sampling, 150, speculation, end=-1) == expected
        assert expected[0].dropped > 0
        assert speculation.acceptance == []
        assert speculation.repeats > 5
        assert 1.3 < speculation.tokens_per_pass < 1 + MOST


# ---- as users meet them


def test_a_stream_takes_fewer_passes_and_gives_the_same_pieces(tuned_folder):
    quick, slow = (nanoeuler.load(tuned_folder, "cpu", speculation=on) for on in (True, False))
    for prompt in ("Count.", "Where does the fox live?"):
        reply, plain = (model.stream(prompt, temperature=0) for model in (quick, slow))
        assert list(reply) == list(plain)
        assert reply.ids == plain.ids
        assert reply.ended
        assert plain.speculation is None
        assert reply.speculation.tokens_per_pass > 1.3
        assert reply.speculation.tokens == len(reply.ids) + 1
        assert reply.tokens_per_second > 0


def test_a_stream_that_is_left_counts_no_token_that_was_not_shown(tuned_folder):
    model = nanoeuler.load(tuned_folder, "cpu")
    reply = model.stream("Count.", temperature=0)
    pieces = []
    for piece in reply:
        pieces.append(piece)
        if len(pieces) % 2 == 0:
            break
    assert model.tokenizer.decode(reply.ids) == "".join(pieces)
    assert not reply.ended


def test_generate_reports_what_drafts_brought_and_can_do_without(command, tuned_folder):
    arguments = "generate", tuned_folder, "Count.", "--temperature", "0", "--device", "cpu"
    status, text, err = command(*arguments)
    assert (status, text) == (0, "one two three four five six seven\n")
    assert "speculation tokens_per_pass=" in err
    assert "acceptance_by_head=" in err
    status, plain, err = command(*arguments, "--no-speculation")
    assert (status, plain) == (0, text)
    assert "speculation" not in err
