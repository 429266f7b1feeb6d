"""Requests for experiments: those that are refused, and budgets of joules."""

import subprocess
import sys
from dataclasses import replace

import pytest
from checkouts import ROOT

from nanoeuler import log
from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.experiments.changes import read_change
from nanoeuler.experiments.experiment import prepare
from nanoeuler.storage.files import write_json

LESSONS = ROOT / "config" / "lessons.yaml"
CHANGES = ("--change", "pretrain.learning_rate=2e-3", "--change", "pretrain={weight_decay: 0.2}")


def experiment(folder, *arguments):
    command = [sys.executable, "-m", "nanoeuler", "experiment", LESSONS, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--change", "pretrain.lerning_rate=1"), "did you mean pretrain.learning_rate?"),
        (("--change", "tokenizer.vocab_size=300"), "compares ways of training on the same data"),
        (("--change", "seed=3"), "--seeds sets seed in an experiment; leave it out"),
        ((*CHANGES, "--seeds", "1"), "--seeds 1: the spread between seeds tells what is real"),
        ((*CHANGES, "--seeds", "4,4"), "--seeds 4,4: "),
        (
            (*CHANGES, "--seeds", "4294967296,4"),
            "seed must be a whole number of at least 0 and at most 4294967295",
        ),
        ((*CHANGES, *CHANGES[:2]), "trains as pretrain.learning_rate=2e-3 does; leave it out"),
        ((*CHANGES, "--tokens", "10"), "fewer than 10 steps, too few to measure"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(tmp_path, arguments, words):
    done = experiment(tmp_path, "--tokens", 60_000, *arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_changes_of_a_sweep_that_train_alike_are_trained_once(tmp_path, capsys):
    changes = [read_change(f"pretrain.weight_decay={value}") for value in ("0.1", "0.2", "2e-1")]
    asked = {"unit": "tokens", "amount": 60_000, "name": str(tmp_path / "mine")}
    log.start()
    experiment = prepare(LESSONS, [], [1, 2], 0.01, swept=changes, **asked)  # 0.1 is the base's
    assert [arm.title for arm in experiment.arms] == ["base", "pretrain.weight_decay=0.2"]
    assert "2 changes left out, which train as another does" in capsys.readouterr().err
    with pytest.raises(UserError, match="--sweep: each of its changes trains as the base does"):
        prepare(LESSONS, [], [1, 2], 0.01, swept=changes[:1], **asked)


def test_a_trial_whose_held_out_loss_is_no_number_has_failed(tmp_path):
    """Its arm has the scores before it; the verdict of another stands."""
    asked = {"unit": "tokens", "amount": 60_000, "name": str(tmp_path / "mine")}
    changes = [read_change(text) for text in CHANGES[1::2]]
    experiment = prepare(LESSONS, changes, [1, 2], 0.05, **asked)
    base, ends, best = (
        replace(arm, config=arm.config | {"pretrain": arm.config["pretrain"] | {"keep": keep}})
        for arm, keep in zip(experiment.arms, ("final", "final", "best"), strict=True)
    )
    experiment = replace(experiment, arms=(base, ends, best))
    last = [(base, ("1.0", "1.2")), (ends, ("0.9", "NaN")), (best, ("NaN", "NaN"))]
    for arm, scores in last:
        for seed, score in zip((1, 2), scores, strict=True):
            metrics = experiment.trial(arm, seed) / "pretrain/metrics.jsonl"
            metrics.parent.mkdir(parents=True)
            step = '{"step": 1, "tokens": 1, "seconds": 1.0, '
            measured = [f'{step}"validation": {{"a": {each}}}}}\n' for each in ("NaN", "2", score)]
            metrics.write_text("".join([*measured, f'{step}"finished": true}}\n']))
    assert experiment.due((1, 2)) == [(ends, 2)]
    assert experiment.scores(ends) == [0.9]
    (_, one), (_, other) = experiment.verdicts()
    assert (one.verdict, one.seeds) == ("undecided", 1)
    assert (experiment.scores(best), other.difference) == ([2.0, 2.0], pytest.approx(0.9))


def test_of_two_experiments_that_begin_at_once_one_has_the_folder(tmp_path):
    asked = {"unit": "tokens", "amount": 60_000, "name": str(tmp_path / "mine")}
    one, other = ([read_change(text)] for text in CHANGES[1::2])
    first = prepare(LESSONS, one, [1, 2], 0.01, **asked)
    with pytest.raises(UserError, match="mine: is there and holds no experiment"):
        prepare(LESSONS, other, [1, 2], 0.01, **asked)  # which has not written its question yet
    first.write()
    with pytest.raises(UserError, match="mine: holds an experiment with another question"):
        prepare(LESSONS, other, [1, 2], 0.01, **asked)
    assert prepare(LESSONS, one, [1, 2], 0.01, **asked) == first


@pytest.mark.parametrize("command", ["compare", "report"])
def test_an_experiment_that_is_taken_for_a_run_is_told_from_one(tmp_path, capsys, command):
    (tmp_path / "experiment.json").touch()
    assert main([command, str(tmp_path)]) == 1
    assert "an experiment without verdicts yet; its command, given again" in capsys.readouterr().err
    (tmp_path / "verdicts.json").touch()
    assert main([command, str(tmp_path), str(tmp_path / "run")]) == 1
    assert f"give it alone: nanoeuler compare {tmp_path}" in capsys.readouterr().err


def test_joules_are_tokens_by_what_a_token_takes(tmp_path):
    changes = [read_change(text) for text in CHANGES[1::2]]
    asked = prepare(
        LESSONS, changes, [1, 2], 0.01, unit="joules", amount=6000.0, name=str(tmp_path / "mine")
    )
    (speed,) = set(asked.timed().values())  # the changes don't change how long a step takes
    stage = {"depth": 0.5, "updates": 2.0, "tokens": 1000, "watts": {"cpu_joules": 30.0}}
    write_json(speed, {"tokens_per_second": 1000.0, "stages": {"pretrain": stage}})
    of_token = 0.5 / 1000 + 2 / 1000  # seconds
    for arm in asked.with_tokens().arms:
        assert arm.tokens == int(6000 / (30 * of_token))
        assert arm.tokens_per_second == pytest.approx(1 / of_token)
    write_json(speed, {"tokens_per_second": 1000.0, "stages": {"pretrain": stage | {"watts": {}}}})
    with pytest.raises(UserError, match="--joules: this machine shows no counter of energy"):
        asked.with_tokens()


def test_minutes_too_few_for_what_a_change_begins_are_said_before_any_trial(tmp_path):
    changes = [read_change("pretrain.short_rows_until=20")]
    asked = prepare(
        LESSONS, changes, [1, 2], 0.01, unit="minutes", amount=0.1, name=str(tmp_path / "mine")
    )
    batch = asked.arms[0].config["pretrain"]["batch_tokens"]
    stage = {"depth": 1.0, "updates": 0.0, "tokens": 1000, "watts": {}}
    for speed in asked.timed().values():
        write_json(speed, {"tokens_per_second": 20 * batch / 6, "stages": {"pretrain": stage}})
    with pytest.raises(UserError, match="short_rows_until is 20, but training has 20 steps"):
        asked.with_tokens()


@pytest.mark.parametrize(
    ("trained", "at_once", "seeds"),
    [(0, 0, (1, 2)), (0, 7, (1, 2)), (0, 9, (1, 2, 3)), (2, 5, (3,)), (2, 6, (3, 4)), (5, 99, ())],
)
def test_seeds_that_gpus_are_left_over_for_are_trained_meanwhile(tmp_path, trained, at_once, seeds):
    """Three trials are due of each: the base's and those of two changes."""
    changes = [read_change(text) for text in CHANGES[1::2]]
    asked = prepare(
        LESSONS, changes, 5, 0.01, unit="tokens", amount=60_000, name=str(tmp_path / "mine")
    )
    assert asked.next_seeds(trained, at_once) == seeds
