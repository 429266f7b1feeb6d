"""What a job of a run knows of the time until the whole run ends."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoeuler.config import load, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.model.config import ModelConfig
from nanoeuler.planning.data import estimate_text
from nanoeuler.planning.plan import Plan, stage_costs
from nanoeuler.planning.remaining import START, WholeRun
from nanoeuler.workflow.start import keep_jobs

ROOT = Path(__file__).parents[2]


class Run:
    """A run of the demo's configuration, of which the jobs are noted that are still to do."""

    def __init__(self, root: Path):
        (root / "config").symlink_to(ROOT / "config")
        self.config = load("config/config.yaml")
        self.paths, self.model = Paths(self.config), ModelConfig.from_dict(self.config["model"])
        self.folder = Path(self.paths.results)
        outputs = {
            "build_corpus": (self.paths.corpus_manifest, self.paths.log("build_corpus")),
            **{
                stage: (self.paths.model(stage)["weights"], f"{self.folder}/{stage}/train.log")
                for stage in self.paths.stages
            },
            "evaluate_model": (
                self.paths.evaluation("dpo"),
                self.paths.log("evaluate_model/dpo"),
            ),
            "write_report": (self.paths.report, self.paths.log("write_report")),
        }
        self.logs = {rule: log for rule, (_, log) in outputs.items()}
        self.outputs = {rule: output for rule, (output, _) in outputs.items()}

    def note(self, *rules: str) -> None:
        jobs = [
            SimpleNamespace(
                rule=SimpleNamespace(name=rule), output=[self.outputs[rule]], log=[self.logs[rule]]
            )
            for rule in rules
        ]
        write_resolved(self.paths.configuration, self.config)
        keep_jobs(self.folder, jobs)

    def whole(self, rule: str, tag: str, rate: float, left: float) -> float | None:
        return WholeRun(self.logs[rule]).seconds(tag, rate, left)

    def work(self, stage: str) -> float:
        text = estimate_text(self.config, self.paths, reads=False)
        cost = stage_costs(Plan(0, "", **vars(text)), self.config)[stage]
        assert cost.tokens < cost.work(self.model) < 1.1 * cost.tokens  # with its measurements
        return cost.work(self.model)

    def took(self, rule: str, seconds: float) -> None:
        path = Path(self.logs[rule]).with_suffix(".times.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        line = {"stage": rule, "seconds": seconds, "status": 0, "peak_bytes": 1_000_000}
        path.write_text(json.dumps(line) + "\n")

    def finish(self, rule: str) -> None:
        path = Path(self.outputs[rule])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path)


def test_training_adds_the_stages_the_evaluation_and_the_report_behind_it(run):
    run.note("pretrain", "sft", "evaluate_model", "write_report")
    sft = run.work("sft")
    run.took("evaluate_model", 7.0)
    whole = run.whole("pretrain", "pretrain", 1000.0, 60.0)
    assert whole == pytest.approx(60.0 + START + sft / 1000.0 + 7.0 + START)
    run.finish("sft")
    assert run.whole("pretrain", "pretrain", 1000.0, 60.0) == pytest.approx(60.0 + 7.0 + START)


def test_an_evaluation_that_was_never_timed_is_estimated_from_its_tokens(run):
    run.note("pretrain", "evaluate_model")
    slow, fast = (run.whole("pretrain", "pretrain", rate, 60.0) for rate in (1e4, 1e6))
    assert 64.0 < fast < slow < 120.0  # the demo's takes 3 to 10 seconds at 15,000 tokens/s


def test_before_training_the_rate_of_the_plan_tells_how_long_it_takes(run):
    run.note("build_corpus", "pretrain")
    assert run.whole("build_corpus", "write books", 2e6, 1.0) is None  # no rate is known
    (run.folder / "plan.json").write_text(json.dumps({"tokens_per_second": 1e4}))
    expected = START + run.work("pretrain") / 1e4
    whole = run.whole("build_corpus", "write books", 2e6, 1.0)
    assert whole == pytest.approx(START + expected, abs=1.0)  # its other pieces are in it
    assert run.whole("build_corpus", "write books", 2e6, 100.0) == pytest.approx(100 + expected)


def test_outputs_of_an_earlier_run_are_not_taken_for_those_of_this_one(run):
    run.finish("write_report")
    os.utime(run.outputs["write_report"], (time.time() - 9, time.time() - 9))
    run.note("pretrain", "write_report")
    assert run.whole("pretrain", "pretrain", 1e4, 60.0) == pytest.approx(60.0 + START)


def test_the_last_job_and_one_by_hand_say_nothing_of_the_whole(run):
    run.note("write_report")
    assert run.whole("write_report", "report", 1.0, 5.0) is None
    assert run.whole("pretrain", "pretrain", 1e4, 5.0) is None  # no job of this workflow
    (run.folder / "jobs.json").write_text("{}")
    assert run.whole("write_report", "report", 1.0, 5.0) is None
    assert WholeRun("elsewhere/train.log").seconds("pretrain", 1.0, 5.0) is None
