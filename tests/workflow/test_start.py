"""A run is planned before its first job, and a finished one says where its results are."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from stub_checkout import CONFIG, ROOT, SOURCES

from nanoeuler.cli.greeting import next_steps
from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.corpus.own_text import find_files
from nanoeuler.corpus.sample.write import write_sample
from nanoeuler.corpus.sources.gutenberg import SOURCE as GUTENBERG
from nanoeuler.corpus.sources.registry import FETCHING
from nanoeuler.workflow.snakemake_internals import WorkflowLock
from nanoeuler.workflow.start import mark, plan_options
from tests.waiting import wait_until


@pytest.fixture
def config(tmp_path, monkeypatch) -> dict:
    monkeypatch.chdir(tmp_path)
    Path("sources.yaml").write_text(SOURCES)
    Path("config.yaml").write_text(CONFIG)
    return load(
        "config.yaml", overrides=['evaluate.prompts=["Who lives here?", "Why?", "When?", "Where?"]']
    )


def test_the_plan_counts_the_stages_that_will_run(config):
    command = plan_options(
        config, {"fetch_book", "sft_scratch", "pretrain"}, ["config.yaml"], gpus=1, local=True
    )
    assert command[-5:] == [
        "--name=config.yaml",
        *("--stages", "pretrain,sft_scratch"),
        *("--gpus", "1"),
    ]
    assert command[command.index("--save") + 1] == "results/trial/plan.json"


def test_where_only_downloads_happen_no_stage_counts(config):
    command = plan_options(config, {"fetch_book", "download"}, ["config.yaml"], gpus=0, local=True)
    assert command[-4:] == ["--stages", "", "--gpus", "0"]


def test_every_rule_that_downloads_is_planned(config):
    assert {"fetch_task", "extract_fineweb"} < set(FETCHING)
    for rule in FETCHING:
        assert plan_options(config, {rule}, ["config.yaml"], gpus=0, local=True), rule


def test_small_work_and_work_for_other_machines_is_not_planned(config):
    assert plan_options(config, {"write_report", "all"}, ["config.yaml"], gpus=0, local=True) == []
    assert plan_options(config, {"pretrain"}, ["config.yaml"], gpus=0, local=False) == []


def test_a_plan_that_says_no_stops_the_run_before_its_first_job(checkout):
    stopped = checkout.snakemake(failing="plan")
    assert stopped.returncode != 0
    assert (
        "this run cannot be made as it is, see above; nothing was downloaded or started"
        in stopped.stdout + stopped.stderr
    )
    assert [call.split()[0] for call in checkout.calls] == ["plan"]


def test_the_next_steps_say_where_things_are_and_how_to_chat(config):
    lines = next_steps(config).split("\n")
    assert lines[1] == "report   results/trial/report.html"
    assert lines[2] == "model    results/trial/dpo/model"
    assert lines[3].endswith("nanoeuler chat results/trial/dpo/model")
    assert [line.removeprefix("try").strip() for line in lines[4:]] == [
        "Who lives here?",
        "Why?",
        "When?",
    ]


def test_control_characters_of_a_configuration_do_not_reach_the_terminal(config, command):
    config["evaluate"]["prompts"] = ["Who \x1b[31mlives here?"]
    assert "Who \\x1b[31mlives here?" in next_steps(config)
    config |= {"data_dir": "d\u202egnp.exe"}
    status, out, _ = command("plan", "--config", json.dumps(config), "--stages", "")
    assert status == 0
    assert "in d\\u202egnp.exe" in out
    assert "\u202e" not in out


def test_what_the_demo_suggests_to_type_is_asked_in_its_held_out_questions(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    demo = load("config/config.yaml")
    world = write_sample(demo["sample"], tmp_path / "sample")
    asked = {
        json.loads(line)["instruction"]
        for line in (tmp_path / "sample/questions.jsonl").read_text().splitlines()
    }
    assert world["questions"] >= 200
    assert len(demo["evaluate"]["prompts"]) >= 3
    assert set(demo["evaluate"]["prompts"][:3]) <= asked


SLOW = """
rule all:
    output: "slow.txt"
    shell: "touch started; while [ ! -e go ]; do sleep 0.05; done; touch {output}"
"""


def start_snakemake(folder: Path, awaited: str = "started") -> subprocess.Popen:
    """A Snakemake of a workflow with our lock, which has made the file `awaited`."""
    lines = (
        "from nanoeuler.workflow.snakemake_internals import WorkflowLock\nlock = WorkflowLock()\n"
    )
    (folder / "Snakefile").write_text(lines + SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: any(folder.glob(awaited)) or process.poll() is not None)
    return process


def test_a_killed_snakemake_leaves_no_lock_and_a_living_one_keeps_its_own(tmp_path):
    killed = start_snakemake(tmp_path)
    second = start_snakemake(tmp_path)
    assert "Directory cannot be locked" in second.communicate()[0]
    killed.kill()
    (tmp_path / "go").touch()  # which also ends the job that the killed one has left
    killed.communicate()
    said, _ = start_snakemake(tmp_path).communicate()
    assert "the last Snakemake in this folder was killed" in said
    assert "Directory cannot be locked" not in said
    assert not list((tmp_path / ".snakemake").glob("locks/*"))


def test_a_snakemake_that_is_killed_as_soon_as_it_has_its_lock_leaves_none(tmp_path):
    killed = start_snakemake(tmp_path, ".snakemake/locks/*.lock")
    killed.kill()
    (tmp_path / "go").touch()
    killed.communicate()
    assert list((tmp_path / ".snakemake").glob("locks/*"))
    said, _ = start_snakemake(tmp_path).communicate()
    assert "the last Snakemake in this folder was killed" in said
    assert (tmp_path / "slow.txt").exists()


@pytest.mark.parametrize("notes", ["", "[", '["elsewhere", 0]\n', "7\n"])
def test_locks_that_may_be_those_of_others_stay(tmp_path, notes):
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "0.input.lock").touch()
    (tmp_path / "nanoeuler-locks.jsonl").write_text(notes)
    WorkflowLock(tmp_path).end()
    assert (locks / "0.input.lock").exists()
    assert (tmp_path / "nanoeuler-locks.jsonl").read_text() == ""


@dataclass
class Job:
    """A job of Snakemake's DAG that will run."""

    output: list[str]


def test_what_the_jobs_will_fill_is_marked_before_anything_is_in_it(config):
    paths = Paths(config)
    book = GUTENBERG.fetched(config, "84")
    jobs = [Job([book]), Job([paths.report]), Job([paths.corpus_manifest])]
    mark(paths, jobs)
    marks = sorted(str(file) for file in Path().rglob(".made-by-nanoeuler"))
    assert [os.path.dirname(file) for file in marks] == [
        "data/corpora",
        "data/gutenberg",
        "results/trial",
    ]
    for name in (book, paths.card, "data/mine/letters.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text")
    assert find_files(".") == [Path("data/mine/letters.txt")]
