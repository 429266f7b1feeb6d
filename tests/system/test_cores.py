"""The threads that an engine starts are those that the machine and the environment leave it."""

import pytest

from nanoeuler.system import machine


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(
        machine.os, "sched_getaffinity", lambda process: set(range(8)), raising=False
    )
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("asked", "threads"),
    [("2", 2), ("2,1", 2), (" 3 , 1", 3), ("64", 8), ("0", 8), ("many", 8), ("²", 8), ("", 8)],
)
def test_the_environment_may_ask_for_fewer_threads_than_cores(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert machine.threads_allowed() == threads


def test_the_smaller_of_two_variables_counts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert machine.threads_allowed() == 3


V1 = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"


@pytest.mark.parametrize(
    ("groups", "files", "threads"),
    [
        pytest.param("0::/\n", {"cpu.max": "200000 100000"}, 2, id="a container of its own"),
        pytest.param("0::/\n", {"cpu.max": "150000 100000"}, 2, id="half a core counts as one"),
        pytest.param("0::/\n", {"cpu.max": "5000 100000"}, 1, id="less than a core"),
        pytest.param("0::/\n", {"cpu.max": "1600000 100000"}, 8, id="more than there are"),
        pytest.param("0::/\n", {"cpu.max": "max 100000"}, 8, id="no limit"),
        pytest.param("0::/\n", {"cpu.max": "nonsense"}, 8, id="a file that nobody understands"),
        pytest.param("0::/\n", {}, 8, id="the host, whose top group has no such file"),
        pytest.param(
            "0::/jobs/one\n",
            {"jobs/one/cpu.max": "max 100000", "jobs/cpu.max": "300000 100000"},
            3,
            id="the limit of the group above",
        ),
        pytest.param(
            "0::/jobs/one\n",
            {"jobs/one/cpu.max": "100000 50000", "jobs/cpu.max": "300000 100000"},
            2,
            id="the group's own limit is less",
        ),
        pytest.param(
            "0::/jobs/one\n", {"jobs/two/cpu.max": "100000 100000"}, 8, id="another group's limit"
        ),
        pytest.param(
            "0::/docker/abc\n",
            {"cpu.max": "200000 100000"},
            2,
            id="a container that is told the host's path",
        ),
        pytest.param(
            V1,
            {
                "cpu/docker/abc/cpu.cfs_quota_us": "400000",
                "cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            4,
            id="version 1",
        ),
        pytest.param(
            V1,
            {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"},
            3,
            id="version 1, the host's path",
        ),
        pytest.param(
            V1,
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            8,
            id="version 1 without a limit",
        ),
        pytest.param(None, {}, 8, id="no control groups"),
    ],
)
def test_a_quota_of_the_control_group_counts_like_cores(tmp_path, groups, files, threads):
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | (
        {"proc/self/cgroup": groups} if groups else {}
    )
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text.strip()}\n")
    assert machine.threads_allowed(tmp_path) == threads


def test_a_quota_and_the_environment_count_together(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("400000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert machine.threads_allowed(tmp_path) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert machine.threads_allowed(tmp_path) == 2
