"""The policy gradient of a toy that calls a calculator, whose results are not sampled.

As in test_rl.py all replies are enumerated: behind the end of a call there is one reply alone.
"""

import functools

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.config.settings import Rl
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.calls import Calculator
from nanoeuler.model.transformer import Transformer
from nanoeuler.training import rollouts
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.rollouts import Batch, PolicyGradient, Replies, RolloutStream, Sampler
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.state import TrainingState
from tests.training.test_rl import (
    DIRECTION,
    END,
    LONGEST,
    PRESENT,
    PROBLEM,
    TOY,
    VOCABULARY,
    model_of,
    reward_of,
)

CALL, CALL_END = 6, 7
WORDS = "12345"


class CallingTokenizer:
    """The tokens 1 to 5 are digits; other characters of a result are 2, and it has two tokens at
    most."""

    end_id, vocab_size, call_ids = END, VOCABULARY, (CALL, CALL_END)

    @property
    def special_ids(self):
        return {"</s>": END, "call": CALL, "end": CALL_END}

    def encode(self, text, continues):
        return np.array([int(each) if each in WORDS else 2 for each in text[:2]])

    def decode(self, ids, continues):
        return "".join("#"[: id not in range(1, 6)] or str(id) for id in ids)

    def decode_reply(self, ids):
        return " ".join(map(str, ids))


class Rewarded:
    def of(self, prompt, reply, answer):
        ids = [int(id) for id in reply.split()]
        return reward_of([*ids, *([END] if len(ids) < LONGEST else [])])


def result(expression):
    """The calculator of the toy once more: an expression of one token is that, any other none."""
    return expression if len(expression) == 1 and expression[0] in range(1, 6) else [2, 2]


def grown(reply=(), learned=(), opened=None, given=()):
    """All replies, and which of their tokens are sampled."""
    if len(reply) == LONGEST or reply[-1:] == (END,):
        yield list(reply), list(learned)
        return
    for token in given[:1] or range(VOCABULARY):
        put_in, inside = given[1:], opened
        if not given and token == CALL:
            inside = ()
        elif not given and token == CALL_END and opened is not None:
            put_in, inside = tuple(result(list(opened))), None
        elif not given and opened is not None:
            inside = (*opened, token)
        yield from grown((*reply, token), (*learned, not given), inside, put_in)


EVERY, SAMPLED = zip(*grown(), strict=True)
REWARDS = np.array([reward_of(reply) for reply in EVERY])


@pytest.fixture(autouse=True, scope="module")
def many_rows_at_once():
    with pytest.MonkeyPatch.context() as patch:
        scored = functools.partial(all_logprobs, rows_at_once=len(EVERY))
        patch.setattr(rollouts, "all_logprobs", scored)
        yield


def stream_of():
    sampler = Sampler(
        CallingTokenizer(), Rewarded(), LONGEST, lambda n, f: map(f, range(n)), calculator=True
    )
    return RolloutStream([PROBLEM], sampler, Rl(group=2, clip=None), 1, TOY.mtp_heads, seed=1)


def sampled_logprobs(values, dtype=np.float64):
    """Of the sampled tokens of all replies, 0 elsewhere: (R, T); by rows of its own."""
    R, first = len(EVERY), len(PROBLEM.prompt) - 1
    stream = stream_of()
    stream.sampler.calculator = None  # every token has a target
    rows = stream.reply_rows([PROBLEM] * R, Replies(tokens=EVERY))
    framed = rollouts.Framed(rows, R)
    found = [part for _, part in all_logprobs(model_of(values, dtype), framed, R)]
    mask = np.zeros(rows.targets.shape[:2], bool)
    for row, sampled in enumerate(SAMPLED):
        mask[row, first : first + len(sampled)] = sampled
    return np.where(mask, np.concatenate(found), 0)


LOGPROBS = sampled_logprobs(PRESENT)
PROBABILITIES = np.exp(LOGPROBS.sum(axis=1))


def exact_derivative():
    """Of the exact expected reward at PRESENT in DIRECTION, by a complex step."""
    moved = PRESENT.astype(np.complex128) + 1e-30j * DIRECTION
    logprobs_RT = sampled_logprobs(moved, np.complex128)
    return (np.exp(logprobs_RT.sum(axis=1)) * REWARDS).sum().imag / 1e-30


def expected_gradient(is_kept):
    """The stage's gradient in DIRECTION, in expectation over groups of two: see test_rl.py.

    `is_kept` says of the tokens of a reply which have log-probabilities.
    """
    stream = stream_of()
    first = len(PROBLEM.prompt) - 1
    numbers, likely = [], []
    for reward in (0.0, 1.0):
        partner = int(np.flatnonzero(reward == REWARDS)[7])
        for number in range(len(EVERY)):
            numbers += [number, partner]
            likely.append(PROBABILITIES[number] * PROBABILITIES[reward == REWARDS].sum())
    groups = len(likely)
    stream.problems_of = lambda number: [PROBLEM] * (2 * groups)
    logprobs = [
        [float(LOGPROBS[number, first + at]) for at, kept in enumerate(is_kept(number)) if kept]
        for number in numbers
    ]
    replies = Replies(
        [EVERY[number] for number in numbers],
        logprobs,
        [EVERY[number][-1] == END for number in numbers],
        REWARDS[numbers].tolist(),
    )
    model = model_of(PRESENT)
    rows = stream.frame(Batch(0, replies), model).chosen(slice(0, None, 2))
    rows.weights *= 2 * groups * np.array(likely)[:, None, None]
    state = TrainingState(TOY, model.backend, PRESENT.copy(), AdamW(), objective=PolicyGradient())
    state.stage(rows)
    state.compute_gradients(len(rows.ids))
    return -float(state.gradients @ DIRECTION)


def test_all_replies_are_enumerated():
    assert PROBABILITIES.sum() == pytest.approx(1, abs=1e-12)
    assert [CALL, 4, CALL_END, 4] in EVERY
    assert [CALL, CALL_END, 2, 2] in EVERY
    assert [CALL, CALL_END, 2, 1] not in EVERY
    assert SAMPLED[EVERY.index([CALL, CALL_END, 2, 2])] == [True, True, False, False]


def test_the_gradient_is_that_of_the_expected_reward_and_results_weigh_nothing():
    found = expected_gradient(SAMPLED.__getitem__)
    assert found == pytest.approx(exact_derivative(), abs=1e-9)


def test_results_that_are_learned_are_caught(monkeypatch):
    monkeypatch.setattr(Calculator, "results", lambda self, ids: [False] * len(ids))
    found = expected_gradient(lambda number: [True] * len(EVERY[number]))
    assert abs(found - exact_derivative()) > 1e-3


def test_replies_are_sampled_as_often_as_they_are_likely_and_scored_where_they_are_sampled():
    engine = CpuBackend(1)
    model = Transformer(TOY, engine.from_host(PRESENT.astype(np.float32)), engine)
    sampling = Sampling(temperature=1.0, top_p=1.0, seed=3)
    found = stream_of().sampler.replies(model, [PROBLEM] * 6400, sampling)
    numbers = {tuple(reply): number for number, reply in enumerate(EVERY)}
    drawn = [numbers[tuple(reply)] for reply in found.tokens]
    first = len(PROBLEM.prompt) - 1
    for number, logprobs in zip(drawn, found.logprobs, strict=True):
        exact = LOGPROBS[number, first : first + len(EVERY[number])][np.array(SAMPLED[number])]
        assert logprobs == pytest.approx(exact.tolist(), abs=2e-5)
    with_calls = np.array([CALL_END in reply[:-1] for reply in EVERY])
    for kind in (with_calls, ~with_calls):
        share = PROBABILITIES[kind].sum()
        spread = np.sqrt(share * (1 - share) / len(drawn))
        assert abs(kind[drawn].mean() - share) < 4 * spread
    assert found.rewards == REWARDS[drawn].tolist()
