"""The plan for a cluster: its jobs are those of the workflow, and ask for the same."""

import json
import re

import pytest
import yaml
from stub_checkout import ROOT

from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.corpus.sources.fineweb import SOURCE as FINEWEB
from nanoeuler.workflow import cluster_plan
from nanoeuler.workflow.cluster import read_node
from nanoeuler.workflow.cluster_plan import rule_costs, too_long, totals, whole_fineweb_edu
from tests.workflow.test_many_shards import take

NODES = [read_node("all*|32|64000|gpu:1|1-00:00:00")] * 3
TELL_RESOURCES = """

asks = {
    each.name: {name: one.value for name, one in each.resources.items() if name != "tmpdir"}
    for each in workflow.rules
    if each.name not in ("trial", "measure_speed")  # which another command submits
}
with open("asks.json", "w") as file:
    json.dump(asks, file)
"""


@pytest.fixture
def large(tmp_path, monkeypatch):
    """config/large.yaml, in a folder where nothing was downloaded yet."""
    config = load(str(ROOT / "config/large.yaml"))
    monkeypatch.chdir(tmp_path)
    return config


@pytest.mark.parametrize("shards", [1, 18])
def test_jobs_and_what_they_ask_for_are_those_of_the_workflow(checkout, shards, monkeypatch):
    if shards > 1:
        take(checkout, shards)
    snakefile = (checkout.path / "workflow/Snakefile").read_text()
    checkout.write("workflow/Snakefile", f"import json\n{snakefile}{TELL_RESOURCES}")
    said = checkout.run("-n", "-c", "1", "--config", "index=true", "slurm={hours: 3}")
    asks = json.loads((checkout.path / "asks.json").read_text())
    monkeypatch.chdir(checkout.path)
    config = load("config/config.yaml", ["index=true", "slurm.hours=3"])
    costs = rule_costs(config, [], dict.fromkeys(Paths(config).stages))
    listed = dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE))
    fetched = ("fetch_", "clean_", "all", "total", "check_fit")
    assert {rule: cost.jobs for rule, cost in costs.items()} == {
        rule: int(jobs) for rule, jobs in listed.items() if not rule.startswith(fetched)
    }
    for rule, cost in costs.items():
        assert {name: asks[rule][name] for name in cost.asks} == cost.asks, rule


def test_numbers_of_the_profile_are_those_of_the_plan():
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    assert profile["jobs"] == cluster_plan.JOBS
    assert profile["cores"] == cluster_plan.LOGIN_CORES


def test_all_of_fineweb_edu_takes_more_jobs_of_the_same_memory(large):
    here, whole = rule_costs(large, NODES, {}), rule_costs(whole_fineweb_edu(large), NODES, {})
    assert "compare_group" not in here
    assert whole["compare_group"].jobs == whole["tokenize_group"].jobs == 96
    assert whole["compare_group"].at_once == 6  # two jobs of 16 CPUs on each of three nodes
    assert totals(whole)["megabytes"] < 8_000
    assert totals(whole)["jobs_at_once"] == 6
    assert 3e12 < totals(whole)["downloads"] < 4e12
    assert totals(whole)["spills"] == pytest.approx(1.26e9 * (523 + 58), rel=0.01)
    ratio = totals(whole)["downloads"] / totals(here)["downloads"]
    text = 1.26e9 * 4_540 / 10e9
    assert ratio == pytest.approx(text, rel=0.01)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
def test_no_job_of_all_of_fineweb_edu_takes_8_gb_whatever_is_held_out(large, share):
    whole = whole_fineweb_edu(large)
    held_out = whole | {"corpus": whole["corpus"] | {"validation_share": share}, "index": True}
    costs = rule_costs(held_out, NODES, {})
    assert {"hold_out", "choose_documents", "compare_group", "index"} <= costs.keys()
    assert totals(costs)["megabytes"] == 6_596


def test_nodes_with_network_extract_more_shards_at_a_time_than_the_login_node(large):
    connected = large | {"slurm": large["slurm"] | {"network": True}}
    of_login, of_nodes = (
        rule_costs(whole_fineweb_edu(config), NODES, {})["extract_fineweb"]
        for config in (large, connected)
    )
    assert (of_login.at_once, of_nodes.at_once) == (cluster_plan.LOGIN_CORES, cluster_plan.JOBS)
    assert of_nodes.asks["cpus_per_task"] == 1


def test_what_is_there_already_has_no_jobs(large, tmp_path):
    for shard in FINEWEB.items(large)[:-1]:
        file = tmp_path / FINEWEB.fetched(large, shard)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text")
    assert rule_costs(large, [], {})["extract_fineweb"].jobs == 1
    corpus = tmp_path / Paths(large).corpus_manifest
    corpus.parent.mkdir(parents=True)
    corpus.write_text("{}")
    assert rule_costs(large, [], {}).keys() == {"extract_fineweb", "learn_bpe", "tokenize"}


def test_a_job_that_would_not_end_in_its_wall_time_is_named(large):
    whole = whole_fineweb_edu(large)
    assert too_long(whole, rule_costs(whole, NODES, {})) == []
    (first, *_) = too_long(
        whole | {"slurm": large["slurm"] | {"hours": 0.1}}, rule_costs(whole, NODES, {})
    )
    assert re.fullmatch(
        r"slurm\.hours: a job of compare_group takes about 0\.\d hours, more than 0\.1, and is not "
        r"resumed; set at least \d",
        first,
    ), first


def test_the_plan_is_printed_where_no_cluster_answers(large, command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = command("plan", "--config", json.dumps(large), "--slurm")
    assert status == 1
    assert "sinfo: no Slurm cluster answers here" in err
    assert re.search(r"pretrain +1 +1 +16,286 +\dh\d\dm", out)
    shown = (ROOT / "docs/cluster.md").read_text().split("```text\n")[-1].split("```")[0]
    assert shown.startswith("all of FineWeb-Edu: 5.7 TB, 1,260,000,000 pages")
    assert out.endswith(shown)


def test_without_web_pages_nothing_is_said_of_more_of_them(command, tmp_path, monkeypatch):
    (tmp_path / "own.txt").write_text("A page of one's own.\n\n" * 2_000)
    (tmp_path / "own.yaml").write_text(
        "run: own\ncorpus: {sources: [own.txt]}\nmodel: {preset: small}\n"
        "pretrain: {tokens: 1000, batch_tokens: 512, learning_rate: 1e-3}\ndevice: cpu\n"
    )
    monkeypatch.chdir(tmp_path)
    _, out, _ = command("plan", "own.yaml", "--slurm")
    assert "corpus.sources names no web pages" in out
    assert "extract_fineweb" not in out


def test_a_size_that_the_sources_file_does_not_state_is_assumed_aloud(large, command):
    large["sources"]["fineweb"]["shards"] = [{"url": "https://example.org/a.parquet"}] * 10
    _, out, _ = command("plan", "--config", json.dumps(large), "--slurm")
    assert "2.0 GB for a web shard whose size the sources file does not state" in out


def test_a_stage_that_there_is_not_is_refused(large, command):
    status, _, err = command("plan", "--config", json.dumps(large), "--stages", "pretrian")
    assert status == 1
    assert "--stages: there is no stage pretrian; name some of pretrain, sft" in err
