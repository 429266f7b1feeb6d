import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.quick_sampling import UNDECIDED, pick_rows
from nanoeuler.inference.sampling import (
    GREEDY,
    STREAM,
    Sampling,
    falling,
    sample,
    sample_sorted,
    uniform,
)

LOGITS = np.log(np.array([[0.5, 0.25, 0.15, 0.1]]))


def draws(sampling, logits=LOGITS, count=4000, allowed=None):
    """Frequencies of `count` choices at positions 0, 1, 2, …"""
    chosen = sample(np.repeat(logits, count, axis=0), sampling, np.arange(count), allowed)
    return np.bincount(chosen, minlength=logits.shape[1]) / count


def test_greedy_takes_the_likeliest_and_ties_go_to_the_first():
    assert sample(np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]]), GREEDY, np.zeros(2)).tolist() == [
        1,
        0,
    ]


def test_sampling_follows_the_probabilities():
    # four standard errors of a share of 4,000 draws are at most 0.032
    np.testing.assert_allclose(
        draws(Sampling(temperature=1.0, top_p=1.0)), [0.5, 0.25, 0.15, 0.1], atol=0.032
    )


def test_temperature_sharpens_and_flattens():
    for temperature in (0.5, 2.0):
        expected = np.array([0.5, 0.25, 0.15, 0.1]) ** (1 / temperature)
        np.testing.assert_allclose(
            draws(Sampling(temperature=temperature, top_p=1.0)),
            expected / expected.sum(),
            atol=0.032,
        )


def test_ties_are_ranked_by_id_however_many_there_are():
    random = np.random.default_rng(1)
    logits = random.integers(0, 5, (50, 300)).astype(float)
    sampling = Sampling(temperature=1.0, top_k=40, top_p=1.0)
    order = np.argsort(-logits, axis=1, kind="stable")
    for row, chosen in enumerate(sample(logits, sampling, np.arange(50))):
        assert chosen in order[row, :40]


def test_a_temperature_near_zero_is_greedy_without_a_warning():
    with np.errstate(all="raise", under="ignore"):
        assert draws(Sampling(temperature=1e-300), count=100)[0] == 1


def test_top_k_keeps_the_k_likeliest():
    np.testing.assert_allclose(
        draws(Sampling(temperature=1.0, top_k=2, top_p=1.0)), [2 / 3, 1 / 3, 0, 0], atol=0.032
    )
    assert draws(Sampling(temperature=1.0, top_k=1), count=100)[0] == 1
    assert (draws(Sampling(temperature=1.0, top_k=99, top_p=1.0)) > 0).all()


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.001, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.95, 4), (1.0, 4)]
)
def test_top_p_keeps_the_fewest_tokens_that_hold_p(top_p, kept):
    shares = draws(Sampling(temperature=1.0, top_p=top_p))
    assert (shares > 0).tolist() == [rank < kept for rank in range(4)]


def test_top_p_counts_within_the_top_k():
    # of the three likeliest, rescaled to 0.556, 0.278, 0.167, the first two hold 0.8
    assert (draws(Sampling(temperature=1.0, top_k=3, top_p=0.8)) > 0).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_a_token_depends_on_seed_and_position_alone():
    random = np.random.default_rng(1)
    logits, positions = random.standard_normal((6, 50)), np.array([3, 1, 4, 1, 5, 9])
    together = sample(logits, Sampling(seed=7), positions)
    alone = [
        sample(logits[row : row + 1], Sampling(seed=7), positions[row : row + 1])[0]
        for row in range(6)
    ]
    assert together.tolist() == alone


def rows_of_logits(vocab_size):
    """Rows of float32 logits: flat, as of a model, peaked, with ties, all equal, with −∞."""
    random = np.random.default_rng(1)
    normal = random.standard_normal((6, 8, vocab_size)).astype(np.float32)
    factors = np.array([0.01, 2, 9, 2, 0, 5], np.float32)
    logits = normal * factors[:, None, None]
    logits[3] = np.round(logits[3])
    logits[5, :, 1::3] = -np.inf
    return logits.reshape(48, vocab_size)


@pytest.mark.parametrize("vocab_size", [2, 512, 9000])
def test_the_choice_without_sorting_is_that_with_sorting(vocab_size):
    logits = rows_of_logits(vocab_size)
    random = np.random.default_rng(2)
    allowed = random.random(vocab_size) < 0.9
    allowed[0] = True
    positions = random.integers(0, 1000, len(logits))
    for temperature in (0.0, 1e-40, 0.05, 0.7, 1.0, 1e8):
        for top_k, top_p in ((0, 1.0), (0, 0.95), (0, 1 - 1e-16), (1, 1.0), (40, 0.5), (10**9, 1)):
            settings = [
                Sampling(temperature, top_k, top_p, seed=seed) for seed in range(len(logits))
            ]
            given = logits, settings, positions
            np.testing.assert_array_equal(sample(*given), sample_sorted(*given, None))
            given = *given, allowed
            np.testing.assert_array_equal(sample(*given), sample_sorted(*given))


def test_hardly_any_choice_needs_sorting():
    logits = rows_of_logits(512)
    settings, draws = np.zeros((48, 3)), np.random.default_rng(3).random(48)
    for temperature, top_k, top_p in ((0.0, 0, 1), (0.7, 0, 0.95), (1.0, 0, 1), (1.0, 40, 1)):
        settings[:] = temperature, top_k, top_p
        chosen = np.zeros(48, np.int32)
        pick_rows(logits, np.ones((1, 512), np.bool_), settings, draws, chosen)
        assert (chosen != UNDECIDED).all()


def test_seeds_and_positions_give_different_draws():
    numbers = [uniform(seed, position) for seed in range(20) for position in range(20)]
    assert len(set(numbers)) == 400
    assert all(0 <= number < 1 for number in numbers)
    assert np.mean(numbers) == pytest.approx(0.5, abs=4 * 12**-0.5 / 20)


def test_the_random_numbers_are_pinned():
    # A changed generator would change every sampled text that somebody has written down.
    assert uniform(1, 0) == 0.5640363114369342
    assert uniform(2**64 - 1, 10**6) == 0.7168538076467527
    for position in (1, 63, 64, 2**40 + 5):  # the first of the four numbers of each counter
        generator = np.random.Philox(key=np.array([3, 0x73616D706C65], np.uint64), counter=position)
        assert uniform(3, position) == int(generator.random_raw() >> 11) * 2.0**-53


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=5.0, top_p=1.0)])
def test_what_is_not_allowed_is_never_chosen(sampling):
    allowed = np.array([False, True, False, True])
    shares = draws(sampling, allowed=allowed)
    assert (shares[~allowed] == 0).all()
    assert shares[1] > 0


def test_more_of_top_k_than_is_allowed_never_reaches_a_forbidden_token():
    shares = draws(
        Sampling(temperature=1.0, top_k=4, top_p=1.0),
        allowed=np.array([True, False, False, False]),
        count=100,
    )
    assert shares.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(broken):
    with pytest.raises(UserError, match="not finite"):
        sample(np.array([[0.0, broken]]), Sampling(), np.zeros(1))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0.0}, "top-p is 0.0"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting, words):
    with pytest.raises(UserError) as caught:
        Sampling(**setting)
    assert words in str(caught.value)


def test_a_random_number_is_the_first_of_its_counter():
    for seed, position in ((0, 0), (1, 63), (2**64 - 1, 64), (7, 10**12 + 5)):
        key = np.array([seed, STREAM], np.uint64)
        bits = np.random.Philox(key=key, counter=position).random_raw()
        assert uniform(seed, position) == (bits >> 11) / 2**53


def test_scores_are_sorted_as_by_a_stable_sort():
    random = np.random.default_rng(5)
    scores = random.choice([-np.inf, -2.5, -1e-45, -0.0, 0.0, 1e-45, 3.25, 3e38], (40, 60))
    scores[20:] = 4 * random.standard_normal((20, 60)).astype(np.float32)
    for given in (scores, scores / 3):  # the second is no longer of float32
        np.testing.assert_array_equal(falling(given), np.argsort(-given, axis=1, kind="stable"))
