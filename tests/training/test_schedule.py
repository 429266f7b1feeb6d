"""The learning rate follows its schedule."""

import pytest

from nanoeuler.training.schedule import Schedule


def test_warm_up_rises_linearly_to_the_peak():
    schedule = Schedule("cosine", 1.0, 100, 10)
    assert [schedule.rate(step) for step in range(10)] == pytest.approx(
        [0.1 * (step + 1) for step in range(10)]
    )


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_the_last_step_has_the_smallest_rate(kind):
    schedule = Schedule(kind, 2.0, 50, 5, minimum_share=0.1, decay_share=0.2)
    rates = [schedule.rate(step) for step in range(50)]
    assert rates[-1] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(2.0)
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_cosine_is_half_way_down_at_half_time():
    schedule = Schedule("cosine", 1.0, 101, 0, minimum_share=0.0)
    assert schedule.rate(49) == pytest.approx(0.5, abs=0.02)


def test_wsd_does_not_depend_on_its_length_before_the_decay():
    short, long = Schedule("wsd", 1.0, 100, 10), Schedule("wsd", 1.0, 1000, 10)
    assert short.decay_start == 80
    assert [short.rate(step) for step in range(80)] == [long.rate(step) for step in range(80)]
    assert short.rate(80) < long.rate(80)


def test_warm_up_takes_at_most_half_of_a_short_run():
    schedule = Schedule("cosine", 1.0, 10, 1000)
    assert schedule.warm == 5
    assert schedule.rate(4) == 1.0


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_a_single_step_has_the_peak_rate(kind):
    assert Schedule(kind, 1.0, 1, 100).rate(0) == 1.0


@pytest.mark.parametrize(("first", "second"), [(100, 1000), (150, 170), (200, 300), (60, 90)])
def test_wsd_runs_of_two_lengths_share_the_steps_that_have_equal_rates(first, second):
    short, long = Schedule("wsd", 1.0, first, 100), Schedule("wsd", 1.0, second, 100)
    equal = [short.rate(step) == long.rate(step) for step in range(first)]
    assert short.shared_steps(second) == long.shared_steps(first)
    assert all(equal[: short.shared_steps(second)])
    assert not any(equal[short.shared_steps(second) : min(short.warm, long.warm)])
    assert (short.shared_steps(second) > 0) == (first >= 200)
