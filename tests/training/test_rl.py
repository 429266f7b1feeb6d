"""Is the policy gradient right? A toy of 8 tokens is enumerated: all 2,801 replies of up to 4.

The stage's own rows, weighted by how likely each group of replies is, give its expected gradient.
Beside it stands the derivative of the exact expected reward, by a complex step.
"""

import functools
import itertools

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Rl
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training import rollouts
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.rollouts import (
    Batch,
    Framed,
    PolicyGradient,
    Problem,
    Replies,
    RolloutStream,
    Sampler,
)
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.state import TrainingState

END, VOCABULARY, LONGEST = 0, 8, 4
TOY = ModelConfig(
    vocab_size=VOCABULARY, dim=8, layers=1, heads=2, kv_heads=1, ffn=8, context=6, mtp_heads=2
)
PROMPT = [END, 3]
PROBLEM = Problem("count", "", PROMPT)
EVERY = [
    [*words, *end]
    for length in range(LONGEST + 1)
    for words in itertools.product(range(1, VOCABULARY), repeat=length)
    for end in ([[END]] if length < LONGEST else [[]])
]
"""All replies: up to 3 words and `</s>`, or 4 words, cut off."""


class ToyTokenizer:
    end_id, vocab_size, special_ids = END, VOCABULARY, {"</s>": END}
    call_ids = None

    def decode_reply(self, ids):
        return "".join(map(str, ids))


def reward_of(reply):
    """1 for a reply whose words add up to 1, 4, 7, …, or that is cut off behind a 5."""
    return float(sum(reply) % 3 == 1 or reply[-1] == 5)


class ToyRewards:
    def of(self, prompt, reply, answer):
        return reward_of([*map(int, reply), *([END] if len(reply) < LONGEST else [])])


REWARDS = np.array([reward_of(reply) for reply in EVERY])


def parameters(seed):
    return 4 * initial_parameters(TOY, seed).astype(np.float64)


OLD, PRESENT, FIRST = parameters(1), parameters(1) + 0.15 * parameters(2), parameters(3)
"""Of the model that has sampled, the one that learns, and the one that the stage starts from."""
DIRECTION = np.random.default_rng(5).standard_normal(FlatBuffer.elements(TOY))


def model_of(values, dtype=np.float64):
    return Transformer(TOY, values.astype(dtype), ReferenceBackend(dtype))


def stream_of(**settings):
    settings = Rl(group=2, **{"clip": None} | settings)
    sampler = Sampler(ToyTokenizer(), ToyRewards(), LONGEST, lambda n, f: map(f, range(n)))
    return RolloutStream([PROBLEM], sampler, settings, 1, TOY.mtp_heads, seed=1)


def token_logprobs(values, dtype=np.float64):
    """Log-probabilities of the tokens of all replies, (2801, T), and which are a reply's."""
    stream = stream_of()
    rows = stream.reply_rows([PROBLEM] * len(EVERY), Replies(tokens=EVERY))
    framed = Framed(rows, len(EVERY))
    found = [part for _, part in all_logprobs(model_of(values, dtype), framed, 2801)]
    return np.concatenate(found), rows.targets[..., 0] >= 0


def derivative(function, direction=DIRECTION):
    """Of function(log-probabilities (2801, T)) at PRESENT, by a complex step."""
    step = 1e-30
    moved = PRESENT.astype(np.complex128) + 1j * step * direction
    logprobs_RT, _ = token_logprobs(moved, np.complex128)
    return function(logprobs_RT).imag / step


@pytest.fixture(autouse=True, scope="module")
def many_rows_at_once():
    """Small passes would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        scored = functools.partial(all_logprobs, rows_at_once=len(EVERY))
        patch.setattr(rollouts, "all_logprobs", scored)
        patch.setattr(rollouts, "ROWS_AT_ONCE", 1600)
        yield


LOGPROBS, LEARNED = token_logprobs(PRESENT)
OLD_LOGPROBS, _ = token_logprobs(OLD)
FIRST_LOGPROBS, _ = token_logprobs(FIRST)
LENGTHS = LEARNED.sum(axis=1)
PROBABILITIES = np.exp(LOGPROBS.sum(axis=1))
OLD_PROBABILITIES = np.exp(OLD_LOGPROBS.sum(axis=1))


def expected_gradient(sampled_RT, **settings):
    """The stage's gradient in DIRECTION, in expectation."""
    return float(whole_gradient(sampled_RT, **settings) @ DIRECTION)


def whole_gradient(sampled_RT, **settings):
    """The stage's gradient, in expectation over groups of two.

    A reply is measured by the other one, of which only the reward counts: so two partners do, one
    of each reward, as likely as all replies of that reward together. Two replies of a group are
    alike, so that it is enough to count the first.
    """
    stream = stream_of(**settings)
    likely_R = np.exp(sampled_RT.sum(axis=1))
    partners = [int(np.flatnonzero(reward == REWARDS)[7]) for reward in (0.0, 1.0)]
    shares = [likely_R[REWARDS[partner] == REWARDS].sum() for partner in partners]
    numbers, likely = [], []
    for partner, share in zip(partners, shares, strict=True):
        for first in range(len(EVERY)):
            numbers += [first, partner]
            likely.append(likely_R[first] * share)
    groups = len(likely)
    stream.problems_of = lambda number: [PROBLEM] * (2 * groups)
    replies = Replies(
        [EVERY[number] for number in numbers],
        [sampled_RT[number][LEARNED[number]].tolist() for number in numbers],
        [EVERY[number][-1] == END for number in numbers],
        REWARDS[numbers].tolist(),
    )
    reference = FIRST_LOGPROBS.sum(axis=1)[numbers].tolist() if stream.settings.kl else None
    model = model_of(PRESENT)
    rows = stream.frame(Batch(0, replies, reference), model)
    assert rows.weights.dtype == np.float64
    rows = rows.chosen(slice(0, None, 2))
    rows.weights *= 2 * groups * np.array(likely)[:, None, None]
    state = TrainingState(TOY, model.backend, PRESENT.copy(), AdamW(), objective=PolicyGradient())
    state.stage(rows)
    state.compute_gradients(len(rows.ids))
    return -state.gradients  # the loss is the reward's negative


def reward_now(logprobs_RT):
    """The exact expected reward."""
    return (np.exp(logprobs_RT.sum(axis=1)) * REWARDS).sum()


def test_all_replies_are_enumerated():
    assert len(EVERY) == 1 + 7 + 49 + 343 + 2401
    assert PROBABILITIES.sum() == pytest.approx(1, abs=1e-12)
    assert 0.05 < reward_now(LOGPROBS) < 0.95


def test_the_gradient_is_that_of_the_expected_reward():
    assert expected_gradient(LOGPROBS) == pytest.approx(derivative(reward_now), abs=1e-9)


def test_with_kl_it_is_that_of_the_reward_less_the_divergence():
    def objective(logprobs_RT):
        logprobs_R = logprobs_RT.sum(axis=1)
        divergence = np.exp(logprobs_R) * (logprobs_R - FIRST_LOGPROBS.sum(axis=1))
        return reward_now(logprobs_RT) - 0.3 * divergence.sum()

    expected = derivative(objective)
    assert abs(expected - derivative(reward_now)) > 1e-2
    assert expected_gradient(LOGPROBS, kl=0.3) == pytest.approx(expected, abs=1e-9)


def test_divided_by_length_it_is_that_of_a_reward_per_token_above_the_mean_reward():
    mean = reward_now(LOGPROBS)

    def objective(logprobs_RT):
        return (np.exp(logprobs_RT.sum(axis=1)) * (REWARDS - mean) / LENGTHS).sum()

    found = expected_gradient(LOGPROBS, divide_by_length=True)
    assert found == pytest.approx(derivative(objective), abs=1e-9)


def test_divided_by_spread_a_group_of_two_counts_twice():
    found = expected_gradient(LOGPROBS, divide_by_spread=True)
    assert found == pytest.approx(2 * derivative(reward_now), abs=1e-9)


def surrogate(logprobs_RT, clip):
    """PPO's objective of replies that OLD has sampled (Schulman et al. 2017, equation 7)."""
    ratio_RT = np.exp(np.where(LEARNED, logprobs_RT - OLD_LOGPROBS, 0))
    total = 0.0
    for partner in (0.0, 1.0):
        share = OLD_PROBABILITIES[partner == REWARDS].sum()
        A_R1 = (REWARDS - partner)[:, None]
        plain_RT = ratio_RT * A_R1
        clipped_RT = np.clip(ratio_RT.real, 1 - clip, 1 + clip) * A_R1
        least_RT = np.where(plain_RT.real <= clipped_RT, plain_RT, clipped_RT)
        total += share * (OLD_PROBABILITIES * (least_RT * LEARNED).sum(axis=1)).sum()
    return total


def test_replies_of_an_older_model_give_the_gradient_of_ppo_s_objective():
    clip = 0.15
    expected = derivative(lambda logprobs_RT: surrogate(logprobs_RT, clip))
    unclipped = derivative(lambda logprobs_RT: surrogate(logprobs_RT, 1e9))
    assert abs(expected - unclipped) > 1e-3, "some tokens are clipped"
    assert expected_gradient(OLD_LOGPROBS, clip=clip) == pytest.approx(expected, abs=1e-9)
    assert expected_gradient(OLD_LOGPROBS) == pytest.approx(unclipped, abs=1e-9)


def test_clipping_changes_nothing_where_the_model_is_the_one_that_sampled():
    found = expected_gradient(LOGPROBS, clip=0.2)
    assert found == pytest.approx(derivative(reward_now), abs=1e-9)


# ---- planted mistakes


def own_sample_in_baseline(rewards_PG, *, by_spread=False):
    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)


def test_a_baseline_with_a_reply_s_own_reward_is_caught(monkeypatch):
    monkeypatch.setattr(rollouts, "advantages", own_sample_in_baseline)
    expected = derivative(reward_now)
    assert expected_gradient(LOGPROBS) == pytest.approx(expected / 2, abs=1e-9)


def test_a_mean_over_tokens_in_place_of_the_sum_is_caught():
    found = expected_gradient(LOGPROBS, divide_by_length=True)
    assert abs(found - derivative(reward_now)) > 1e-2


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_that_is_off_by_one_is_caught(monkeypatch, shift):
    right = RolloutStream.reply_rows

    def shifted(self, problems, replies):
        rows = right(self, problems, replies)
        for row, (problem, reply) in enumerate(zip(problems, replies.tokens, strict=True)):
            tokens = [*problem.prompt, *reply, *[END] * 2]
            first = len(problem.prompt) + shift
            targets = np.full(rows.targets.shape[1], -1)
            learned = tokens[first : first + len(reply)][: len(targets) - first + 1]
            targets[first - 1 : first - 1 + len(learned)] = learned
            rows.targets[row, :, 0] = targets
        return rows

    monkeypatch.setattr(RolloutStream, "reply_rows", shifted)
    with pytest.raises((AssertionError, ValueError)):  # or there are more numbers than places
        assert expected_gradient(LOGPROBS) == pytest.approx(derivative(reward_now), abs=1e-3)


def test_log_probabilities_of_sampling_that_are_those_of_now_are_caught(monkeypatch):
    right = rollouts.token_weights
    monkeypatch.setattr(
        rollouts,
        "token_weights",
        lambda learned, ratios, *given: right(learned, 0 * ratios, *given),
    )
    expected = derivative(lambda logprobs_RT: surrogate(logprobs_RT, 1e9))
    assert abs(expected_gradient(OLD_LOGPROBS) - expected) > 1e-3


# ---- sampling


@pytest.fixture(scope="module")
def sampled():
    """25,600 groups of four replies, as the stage samples them on the CPU engine, 1,600 replies
    at a time."""
    engine = CpuBackend(1)
    model = Transformer(TOY, engine.from_host(PRESENT.astype(np.float32)), engine)
    sampler = stream_of().sampler
    found = Replies()
    for batch in range(16):
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=batch)
        found.add(sampler.replies(model, [PROBLEM] * 6400, sampling))
    return found


def test_the_sampled_gradient_is_unbiased(sampled):
    """Its mean over 102,400 replies lies within 3 standard errors of the exact one."""
    numbers = {tuple(reply): number for number, reply in enumerate(EVERY)}
    drawn = np.array([numbers[tuple(reply)] for reply in sampled.tokens])
    direction = whole_gradient(LOGPROBS)  # in which there is the least noise
    slopes_R = derivative(lambda logprobs_RT: logprobs_RT.sum(axis=1), direction)
    assert sampled.rewards == REWARDS[drawn].tolist()
    above_PG = rollouts.advantages(np.reshape(sampled.rewards, (-1, 4)))
    found_P = (above_PG * slopes_R[drawn].reshape(-1, 4)).mean(axis=1)
    error = found_P.std() / np.sqrt(len(found_P))
    expected = derivative(reward_now, direction)
    assert abs(found_P.mean() - expected) < 3 * error
    assert error < expected / 25, "a bias of a quarter would be six standard errors"


def test_a_reply_that_is_cut_off_may_earn_nothing():
    engine = CpuBackend(1)
    model = Transformer(TOY, engine.from_host(PRESENT.astype(np.float32)), engine)
    sampler, sampling = stream_of().sampler, Sampling(temperature=1.0, top_p=1.0, seed=1)
    every = sampler.replies(model, [PROBLEM] * 200, sampling)
    sampler.only_ended = True
    ended = sampler.replies(model, [PROBLEM] * 200, sampling)
    assert ended.tokens == every.tokens
    assert ended.rewards == [a * b for a, b in zip(every.rewards, every.ended, strict=True)]
    assert ended.rewards != every.rewards


def test_replies_are_as_frequent_as_they_are_likely(sampled):
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for reply in sampled.tokens:
        counts[reply[0], len(reply)] += 1
    expected = np.zeros_like(counts)
    np.add.at(expected, ([reply[0] for reply in EVERY], LENGTHS), PROBABILITIES)
    expected *= len(sampled.tokens)
    possible = expected > 5
    chi_squared = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_squared < possible.sum() + 4 * np.sqrt(2 * possible.sum())


def test_the_sampler_s_log_probabilities_are_the_trainer_s(sampled):
    """Within rounding: below 33 rows, the CPU engine adds up a product in another order."""
    numbers = {tuple(reply): number for number, reply in enumerate(EVERY)}
    for reply, logprobs in zip(sampled.tokens[:6400], sampled.logprobs[:6400], strict=True):
        number = numbers[tuple(reply)]
        assert logprobs == pytest.approx(LOGPROBS[number][LEARNED[number]].tolist(), abs=2e-5)
