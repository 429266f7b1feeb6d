"""The threads that an engine starts are those that the machine and the environment leave it."""

import pytest

from nanoeuler import cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(("asked", "threads"), [("2", 2), ("2,1", 2), (" 3 , 1", 3), ("64", 8), ("0", 8), ("many", 8), ("²", 8), ("", 8)])
def test_the_environment_may_ask_for_fewer_threads_than_cores(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert cores.threads_allowed() == threads


def test_the_smaller_of_two_variables_counts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert cores.threads_allowed() == 3
